"""How far each trace is read: a small file that workers write to, each in its own place, and that the first reads.

A file, since it passes to any kind of worker as a path; where a worker does not see it (another machine), nothing is
known of it until its result is there.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

_RECORD = struct.Struct("<qqqq")


class ReadingPhase(IntEnum):
    """What is done with a trace."""

    WAITING = 0
    FETCHING = 1
    READING = 2
    DONE = 3


class TraceProgress(Struct, frozen=True, kw_only=True):
    """How far one trace is."""

    phase: ReadingPhase = ReadingPhase.WAITING
    total_bytes: int = 0
    """Of its file; 0 where nobody knows."""
    num_bytes: int = 0
    """Of these, how many are fetched or read, by phase."""
    num_events: int = 0


class Meter:
    """One trace's place on the board, for whoever reads it; without a board it does nothing."""

    def __init__(self, board: Path | None = None, number: int = 0) -> None:
        self._board = board
        self._number = number
        self._now = TraceProgress()

    def begin(self, phase: ReadingPhase, total_bytes: int | None) -> None:
        """A phase begins.

        Args:
            phase: which one.
            total_bytes: how many bytes of the file there are to fetch or read, if that is known.
        """
        self._write(TraceProgress(phase=phase, total_bytes=total_bytes or 0, num_events=self._now.num_events))

    def advance(self, num_bytes: int, num_events: int = 0) -> None:
        """More bytes of the file, as it lies on disk, are fetched or read, and so many events are among them."""
        now = self._now
        num_bytes, num_events = now.num_bytes + num_bytes, now.num_events + num_events
        self._write(replace(now, num_bytes=num_bytes, num_events=num_events))

    def end(self) -> None:
        """The trace is read and taken apart."""
        self._write(replace(self._now, phase=ReadingPhase.DONE, num_bytes=self._now.total_bytes))

    def _write(self, now: TraceProgress) -> None:
        self._now = now
        if self._board is None:
            return
        try:
            handle = os.open(self._board, os.O_WRONLY)
            try:
                record = _RECORD.pack(now.phase, now.total_bytes, now.num_bytes, now.num_events)
                os.pwrite(handle, record, self._number * _RECORD.size)
            finally:
                os.close(handle)
        except OSError:
            self._board = None  # another machine, or no room: nothing depends on it


class Board:
    """The places of all traces, in the order in which they are given out."""

    def __init__(self, path: Path, num_traces: int) -> None:
        self._path = path
        self._num_traces = num_traces
        path.write_bytes(bytes(_RECORD.size * num_traces))

    def meter(self, number: int) -> Meter:
        """What the reader of a trace is given."""
        return Meter(self._path, number)

    def read(self) -> list[TraceProgress]:
        """How far each trace is."""
        found = []
        for phase, total, done, events in _RECORD.iter_unpack(self._path.read_bytes()):
            found.append(TraceProgress(phase=ReadingPhase(phase), total_bytes=total, num_bytes=done, num_events=events))
        return found


class Watch(Protocol):
    """Somebody who watches an analysis."""

    def hand_out(self, names: Sequence[str], sizes: Sequence[int | None]) -> Sequence[Meter]:
        """Traces are about to be read.

        Args:
            names: of their files.
            sizes: bytes of each, where that is known.

        Returns:
            A meter for each.
        """

    def look(self) -> None:
        """Workers are there: from now on a thread that watches disturbs no fork."""

    def stage(self, words: str) -> None:
        """Something else begins, for all ranks together."""


class Unwatched:
    """Nobody watches."""

    def hand_out(self, names: Sequence[str], sizes: Sequence[int | None]) -> Sequence[Meter]:  # noqa: ARG002
        """Meters that lead nowhere."""
        return [Meter() for _ in names]

    def look(self) -> None:
        """Nothing."""

    def stage(self, words: str) -> None:
        """Nothing."""
