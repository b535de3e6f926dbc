"""The events of a rank in stretches of consecutive steps, so that memory does not grow with the trace.

A trace of few events is one stretch. Of a longer one events lie on disk, slice by slice as they were read, and one
stretch of them is in memory at a time. A stretch *counts* from its begin to its end: stretches share no instant and
leave none out. What runs over a border is in both, with all of its length, so that any figure that adds up over
instants is the sum of those of the stretches, each taken between its borders.

What is asked of a stretch must be told by the rows that it has: all that run while it counts or while one of its step
windows lasts, and of each device the next rows behind that, for these tell what was waited for before them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.launches import LaunchLinks, on_device
from zerotrace.analysis.slices import Slices
from zerotrace.freed import give_back_memory
from zerotrace.model import Category, StepWindow
from zerotrace.tables import BoolArray, equals, in_one_piece, ints, optional_ints, take_rows

#: Events that are in memory at once, as far as steps can be told apart: a single longer step is.
MAX_ROWS = 1 << 17

_EARLIEST, _LATEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class Stretch(Struct, frozen=True, eq=False):
    """Consecutive steps of a rank.

    Attributes:
        begin: from when on it counts, nanoseconds.
        end: until when.
        windows: its step windows, all of which begin in between.
        events: rows of :data:`zerotrace.schema.EVENTS` with the columns of their launches.
    """

    begin: int
    end: int
    windows: Sequence[StepWindow]
    events: pa.Table

    def begins_here(self) -> BoolArray:
        """Which of its events begin while it counts; each event begins in one stretch."""
        start = ints(self.events, "start_ns")
        return np.asarray((start >= self.begin) & (start < self.end), dtype=bool)


class RankEvents:
    """The events of one rank that are needed.

    Args:
        folder: where they lie once they are too many for memory; the system's own place for temporary files by default.

    Use as a context manager: what it holds is gone behind it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._links = LaunchLinks()
        self._slices = Slices(MAX_ROWS, folder)
        self._starts: list[dict[int, _Starts]] = []
        self.awaited: set[int] = set()
        """Correlation ids of the event records that streams or calls wait for."""

    def __enter__(self) -> RankEvents:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._slices.close()

    def add(self, events: pa.Table) -> None:
        """Takes the next rows of :data:`zerotrace.schema.EVENTS`, in their order."""
        if events.num_rows:
            here = np.unique(ints(events, "device")[on_device(events)]).tolist()
            self._starts.append({device: _Starts.of(events, device) for device in here})
            record, known = optional_ints(events, "wait_on_correlation")
            self.awaited.update(record[known].tolist())
        self._slices.add(self._links.link(events))

    @property
    def devices(self) -> Sequence[int | None]:
        """The devices that have rows, or ``None`` alone for the host's own time."""
        return sorted({device for starts in self._starts for device in starts}) or [None]

    @property
    def num_rows(self) -> int:
        """How many there are."""
        return self._slices.num_rows

    @property
    def num_linked(self) -> int:
        """Rows that have a launch."""
        return self._links.num_linked

    def of_all(self, choose: Callable[[pa.Table], BoolArray]) -> pa.Table:
        """All rows that are chosen, in their order.

        Args:
            choose: is given some of the rows at a time, and says which of them.
        """
        return in_one_piece(_chosen(events, choose(events)) for events in self._slices)

    def stretches(self, windows: Sequence[StepWindow]) -> Iterator[Stretch]:
        """Stretches of these steps, at least one.

        Args:
            windows: the rank's step windows, sorted by start.
        """
        cuts = self._cuts(windows)
        begins, ends = [_EARLIEST, *cuts], [*cuts, _LATEST]
        first = np.searchsorted([window.start_ns for window in windows], [*begins, _LATEST]).tolist()
        for number, (begin, end) in enumerate(zip(begins, ends)):
            mine = windows[first[number] : first[number + 1]]
            give_back_memory(self.num_rows)
            yield Stretch(begin, end, mine, self._between(begin, max([end, *(window.end_ns for window in mine)])))

    def _cuts(self, windows: Sequence[StepWindow]) -> list[int]:
        """Where to cut: at the begin of each step with which a stretch would get too long."""
        begins = np.unique([window.start_ns for window in windows])
        if self._slices.num_rows <= MAX_ROWS or begins.size == 1:
            return []
        before = np.zeros(begins.size, dtype=np.int64)
        for number in range(len(self._slices)):
            start = ints(self._slices.load(number, "start_ns"), "start_ns")
            before += np.searchsorted(np.sort(start), begins)
        before = np.append(before, self._slices.num_rows)
        cuts: list[int] = []
        taken = 0
        for step in range(1, begins.size):
            if before[step + 1] - taken > MAX_ROWS and before[step] > taken:
                cuts.append(int(begins[step]))
                taken = int(before[step])
        return cuts

    def _between(self, begin: int, end: int) -> pa.Table:
        """What runs in between, and the next rows of each device."""
        if begin == _EARLIEST and end == _LATEST:
            return in_one_piece(self._slices)
        behind = {device: self._next_starts(device, end) for device in self.devices if device is not None}
        moments = [moment for found in behind.values() for moment in found]
        parts = [self._slices.empty()]
        for number, extent in enumerate(self._slices.extents):
            if not extent.meets(begin, end) and not any(extent.meets(moment, moment + 1) for moment in moments):
                continue
            events = self._slices.load(number)
            start = ints(events, "start_ns")
            chosen = (start < end) & ((start >= begin) | (start + ints(events, "dur_ns") > begin))
            for device, found in behind.items():
                chosen |= np.isin(start, found) & _of_device(events, device)
            parts.append(_chosen(events, chosen))
        return in_one_piece(parts)

    def _next_starts(self, device: int, time: int) -> list[int]:
        """When the next compute kernel of a device begins, and its next row that takes time: the last row if none does.

        Both are looked for from a time on; what there is not is left out.
        """
        kernel, solid = (self._next_start(device, time, kind) for kind in (_KERNEL, _SOLID))
        if solid == _LATEST:
            solid = max(starts[device].last[_ANY] for starts in self._starts if device in starts)
        return [moment for moment in (kernel, solid) if time <= moment < _LATEST]

    def _next_start(self, device: int, time: int, kind: int) -> int:
        """Start of the next row of a kind."""
        found = _LATEST
        for number, starts in enumerate(self._starts):
            mine = starts.get(device)
            if mine is None or mine.last[kind] < time or mine.first[kind] >= found:
                continue
            if mine.first[kind] >= time:
                found = mine.first[kind]
            else:
                events = self._slices.load(number, "category", "start_ns", "dur_ns", "device")
                start = ints(events, "start_ns")[_KINDS[kind](events) & _of_device(events, device)]
                found = min(found, int(start[start >= time].min()))
        return found


# Kinds of rows of a device, and which rows of a table are of each.
_KERNEL, _SOLID, _ANY = range(3)
_KINDS: tuple[Callable[[pa.Table], BoolArray], ...] = (
    lambda events: equals(events, "category", Category.COMPUTE.value),
    lambda events: np.asarray(ints(events, "dur_ns") > 0, dtype=bool),
    lambda events: np.ones(events.num_rows, dtype=bool),
)


class _Starts(Struct, frozen=True):
    """When the first and the last row of each kind begin in one slice, on one device."""

    first: tuple[int, ...]
    last: tuple[int, ...]

    @classmethod
    def of(cls, events: pa.Table, device: int) -> _Starts:
        start, mine = ints(events, "start_ns"), _of_device(events, device)
        found = [start[mine & kind(events)] for kind in _KINDS]
        return cls(
            tuple(int(one.min(initial=_LATEST)) for one in found),
            tuple(int(one.max(initial=_EARLIEST)) for one in found),
        )


def _of_device(events: pa.Table, device: int) -> BoolArray:
    return np.asarray(on_device(events) & (ints(events, "device") == device), dtype=bool)


def _chosen(events: pa.Table, chosen: BoolArray) -> pa.Table:
    return events if chosen.all() else take_rows(events, np.flatnonzero(chosen))
