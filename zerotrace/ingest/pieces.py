"""A trace in pieces: its text is cut between events, and each piece decoded alone, so that memory stays flat.

A cut goes between ``}`` and ``{`` where a key follows. No text of a JSON string looks like that, since its quotation
marks are escaped. Objects in a list inside of an event do; but a piece that was cut there is no list of whole events,
and the decoder refuses it: then another place is tried.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.errors import TraceError
from zerotrace.ingest.blocks import TraceText
from zerotrace.ingest.files import name_of
from zerotrace.ingest.kineto import Document, decode_document, decode_events, decode_times, repaired
from zerotrace.ingest.repair import Repair, repair_json
from zerotrace.model import Diagnostic, Level

# Bytes of text that are decoded at once: larger pieces are no faster, and cost memory.
_PIECE = 1 << 21

# No event, and nothing around the events, is as long as this in a trace that is cut.
_LONGEST = 1 << 26

_LIST_KEY = re.compile(rb'"traceEvents"\s*:')
_LIST_OPENS = re.compile(rb'"traceEvents"\s*:\s*\[')
# Both begin with a byte that is looked for at the speed of memory.
_BORDER = re.compile(rb'\}\s*,\s*(?=\{\s*"[^"\\]*"\s*:)')
_LIST_CLOSES = re.compile(rb"\}\s*\]")
_EMPTY_LIST = re.compile(rb"\s*\]")

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

# What msgspec says of a text that ends inside of a value.
_TRUNCATED = "truncated"

# Places that are tried before a text is given up, the last ones first.
_TRIES = 8
_WINDOW = 1 << 14


class UncutError(Exception):
    """The text has no place to cut it, or is damaged: it has to be read as a whole."""


class Piece(Struct, frozen=True):
    """Events that follow one another in the file."""

    events: list[Any]
    first: int
    """Position in ``traceEvents`` of the first of them."""
    times: Callable[[], list[tuple[str, str]]]
    """Their ``(ts, dur)`` as the decimal text of the file, for times that float64 cannot hold."""


class TracePieces:
    """The events of one trace file, and what stands around them.

    Args:
        text: the file.
    """

    def __init__(self, text: TraceText) -> None:
        self._text = text
        self._forget()

    def _forget(self) -> None:
        self.num_events = 0
        """Entries of ``traceEvents``, of every phase."""
        self.document = Document()
        """What stands beside the events; known after the last of them."""
        self.diagnostics: list[Diagnostic] = []
        """What was repaired, and that a large trace had to be read as a whole."""

    def cut(self) -> Iterator[Piece]:
        """Reads the trace piece by piece.

        Raises:
            UncutError: at some piece; those before it mean nothing then.
            TraceError: as :meth:`zerotrace.ingest.blocks.TraceText.blocks` does.
        """
        self._forget()
        repairs: dict[tuple[str, str], Repair] = {}
        text = _Buffer(self._text.blocks())
        head = text.take_until(_LIST_OPENS)
        tail: bytes | None = None
        while tail is None:
            text.fill(_PIECE)
            front = _decode_front(text, repairs)
            yield Piece(front.events, self.num_events, partial(decode_times, front.text))
            self.num_events += len(front.events)
            text.drop(front.end)
            if front.closes:
                tail = text.take_all()
            del front  # its memory is the next one's
        if _LIST_KEY.search(tail):  # which of several lists is the trace's own takes a look at the whole
            raise UncutError
        try:
            self.document, _, notes = decode_document(head + b"]" + tail, self._text.path)
        except TraceError as error:
            raise UncutError from error
        # Either that list was one inside of something else, or what is around it has to be repaired in its place.
        if self.document.traceEvents != [] or notes:
            raise UncutError
        self.diagnostics += [repaired(repair, self._text.path) for repair in repairs.values()]

    def whole(self) -> Piece:
        """Reads the trace at once: for what cannot be cut, and to say what is wrong with it.

        Raises:
            TraceError: as :func:`zerotrace.ingest.kineto.decode_document` and :meth:`cut` do.
        """
        self._forget()
        data = self._text.whole()
        self.document, text, self.diagnostics = decode_document(data, self._text.path)
        events = self.document.traceEvents or []
        self.num_events = len(events)
        if len(text) > _LONGEST:
            name = name_of(self._text.path)
            self.diagnostics.append(
                Diagnostic(
                    code="read_as_a_whole",
                    level=Level.INFO,
                    file=name,
                    message=f"{name}: its text could not be cut between events, so that all of it was held in memory",
                    hint="nothing is lost; other traces are read in pieces of a few MiB",
                )
            )
        return Piece(events, 0, partial(decode_times, text))


class _Buffer:
    """The text that was read and not used yet."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self.data = b""
        self.offset = 0
        """Position in the text of what the buffer begins with."""
        self.ended = False
        """Whether the file has nothing more."""

    def fill(self, size: int) -> None:
        """Reads on until there are ``size`` bytes, or the file ends."""
        if self.ended or len(self.data) >= size:
            return
        parts, have = [self.data], len(self.data)
        while have < size:
            block = next(self._blocks, None)
            if block is None:
                self.ended = True
                break
            parts.append(block)
            have += len(block)
        self.data = b"".join(parts)

    def drop(self, size: int) -> None:
        """Leaves the first bytes behind."""
        self.data = self.data[size:]
        self.offset += size

    def take_until(self, pattern: re.Pattern[bytes]) -> bytes:
        """All up to the end of the first match."""
        size = _PIECE
        while True:
            self.fill(size)
            if found := pattern.search(self.data):
                head = self.data[: found.end()]
                self.drop(found.end())
                if head.startswith(_BYTE_ORDER_MARK):
                    head = head[len(_BYTE_ORDER_MARK) :]
                    self.offset -= len(_BYTE_ORDER_MARK)  # places are told without it
                return head
            if self.ended or size >= _LONGEST:
                raise UncutError
            size *= 4

    def take_all(self) -> bytes:
        """All that is left of the file."""
        self.fill(_LONGEST)
        if not self.ended:
            raise UncutError
        return self.data


class _Front(Struct, frozen=True):
    """What a buffer begins with, decoded."""

    events: list[Any]
    text: bytes
    """What they were decoded from: a list."""
    end: int
    """Where the next event begins, or what stands behind the list."""
    closes: bool
    """Whether the list of events ends here."""


def _decode_front(text: _Buffer, repairs: dict[tuple[str, str], Repair]) -> _Front:
    while True:
        if empty := _EMPTY_LIST.match(text.data):
            return _Front([], b"[]", empty.end(), closes=True)
        damaged = False
        for cut in _ways_to_cut(text):
            listed = b"[" + text.data[: cut.size] + b"]"
            try:
                return _Front(decode_events(listed), listed, cut.end, cut.closes)
            except (msgspec.DecodeError, RecursionError) as error:
                damaged = damaged or _TRUNCATED not in str(error)  # that is a cut inside of an event
        for cut in _ways_to_cut(text, tries=1) if damaged else ():
            listed, found = repair_json(b"[" + text.data[: cut.size] + b"]")
            with suppress(msgspec.DecodeError, RecursionError):
                front = _Front(decode_events(listed), listed, cut.end, cut.closes)
                _note(found, text.offset - 1, repairs)
                return front
        if text.ended or len(text.data) >= _LONGEST:
            raise UncutError
        text.fill(4 * len(text.data))  # an event may be longer than a piece


class _Cut(Struct, frozen=True):
    size: int
    """Bytes of the events."""
    end: int
    closes: bool


def _ways_to_cut(text: _Buffer, tries: int = _TRIES) -> Iterator[_Cut]:
    """Where the front of the buffer may be cut, the likeliest first."""
    if not text.ended:
        borders = _last_matches(_BORDER, text.data, tries)
        yield from borders[:2]
        yield from (replace(close, closes=True) for close in _last_matches(_LIST_CLOSES, text.data, tries))
        yield from borders[2:]
    else:
        yield from (replace(close, closes=True) for close in _last_matches(_LIST_CLOSES, text.data, tries))
        yield from _last_matches(_BORDER, text.data, tries)


def _last_matches(pattern: re.Pattern[bytes], data: bytes, tries: int) -> list[_Cut]:
    """The last places where a pattern is found, the last one first."""
    window = _WINDOW
    while True:
        start = max(0, len(data) - window)
        found = [_Cut(match.start() + 1, match.end(), closes=False) for match in pattern.finditer(data, start)]
        if len(found) >= tries or start == 0:
            return found[: -tries - 1 : -1]
        window *= 8


def _note(found: list[Repair], offset: int, repairs: dict[tuple[str, str], Repair]) -> None:
    """Adds the repairs of a piece to those before it."""
    for repair in found:
        key = (repair.code, repair.what)
        before = repairs.get(key)
        repairs[key] = (
            replace(repair, offset=repair.offset + offset)
            if before is None
            else replace(before, count=before.count + repair.count)
        )
