"""The events of a trace that count, with exact times: what is dropped is counted and said."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

import numpy as np

from zerotrace.ingest.classify import DEVICE_CATS, canonical_cat
from zerotrace.ingest.columns import Texts, as_int
from zerotrace.ingest.duplicates import find_duplicates
from zerotrace.ingest.files import name_of
from zerotrace.ingest.kineto import NO_ARGS, Args, Document, Event, decode_times_as_text
from zerotrace.ingest.times import (
    FLOAT_EXACT_BELOW_US,
    MAX_BASE_NS,
    MAX_DURATION_US,
    floats_to_ns,
    text_to_ns,
    to_microseconds,
)
from zerotrace.intervals import Int64Array
from zerotrace.model import Diagnostic, Level
from zerotrace.tables import BoolArray

# Python frames and the profiler's own span carry no time that any figure counts.
_LEFT_OUT_CATS = frozenset({"python_function", "trace"})


@dataclass(frozen=True, eq=False)
class EventRows:
    """The X events that count, in file order, on the absolute clock. All columns have one entry a row."""

    events: Sequence[Event]
    args: Sequence[Args]
    position: Int64Array
    cats: Texts
    names: Texts
    start_ns: Int64Array
    dur_ns: Int64Array
    is_device: BoolArray
    base_ns: int
    """What the times of the trace are relative to."""

    @property
    def end_ns(self) -> Int64Array:
        """End of each row, exclusive."""
        return self.start_ns + self.dur_ns

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.events)

    def take(self, rows: Int64Array) -> EventRows:
        """The columns at ``rows``."""
        return EventRows(
            events=[self.events[row] for row in rows.tolist()],
            args=[self.args[row] for row in rows.tolist()],
            position=self.position[rows],
            cats=self.cats.take(rows),
            names=self.names.take(rows),
            start_ns=self.start_ns[rows],
            dur_ns=self.dur_ns[rows],
            is_device=self.is_device[rows],
            base_ns=self.base_ns,
        )


def pick_rows(document: Document, text: bytes, path: Path, diagnostics: list[Diagnostic]) -> EventRows:
    """Picks the complete events with a usable time.

    Args:
        document: the decoded trace.
        text: the JSON it was decoded from, read again only for times that a float cannot hold.
        path: for messages.
        diagnostics: what is dropped is added here.
    """
    listed = document.traceEvents or []
    is_complete = [type(event) is Event for event in listed]
    events: list[Event] = list(compress(listed, is_complete))
    position = np.flatnonzero(np.frombuffer(bytes(is_complete), dtype=np.bool_))
    cats = Texts.of([event.cat for event in events]).map(canonical_cat)
    start_ns, dur_ns, sound = _exact_times(events, position, text)
    is_device = cats.where(lambda cat: cat in DEVICE_CATS)
    relevant = ~cats.where(lambda cat: cat in _LEFT_OUT_CATS)
    nowhere = is_device & (start_ns == 0) & (dur_ns == 0)
    faults = (
        ("a negative duration", relevant & sound & (dur_ns < 0)),
        ("no usable time", relevant & ~sound),
        ("neither start nor duration (both 0)", relevant & sound & nowhere),
    )
    for fault, bad in faults:
        _report_dropped(fault, bad, is_device, position, path, diagnostics)
    kept = np.flatnonzero(relevant & ~np.logical_or.reduce([bad for _, bad in faults]))
    base_ns = _base_time(document, path, diagnostics)
    chosen = events if kept.size == len(events) else [events[i] for i in kept.tolist()]
    rows = EventRows(
        events=chosen,
        args=[event.args or NO_ARGS for event in chosen],
        position=position[kept],
        cats=cats.take(kept),
        names=Texts.of([event.name for event in chosen]).filled(""),
        start_ns=start_ns[kept] + base_ns,
        dur_ns=dur_ns[kept],
        is_device=is_device[kept],
        base_ns=base_ns,
    )
    return _without_duplicates(rows, path, diagnostics)


def _without_duplicates(rows: EventRows, path: Path, diagnostics: list[Diagnostic]) -> EventRows:
    repeated = find_duplicates(rows.events, rows.args, rows.names, rows.start_ns, rows.dur_ns, rows.is_device)
    count = int(repeated.sum())
    if not count:
        return rows
    noun = ("device row" if rows.is_device.any() else "host event") + ("" if count == 1 else "s")
    diagnostics.append(
        Diagnostic(
            code="duplicate_events",
            level=Level.WARNING,
            file=name_of(path),
            count=count,
            event=int(rows.position[repeated][0]),
            message=f"{name_of(path)}: {count} {noun} removed that repeat another one in name, time, place and ids",
            hint="the profiler delivered a buffer twice; each record is counted once",
        )
    )
    return rows.take(np.flatnonzero(~repeated))


def _base_time(document: Document, path: Path, diagnostics: list[Diagnostic]) -> int:
    base = as_int(document.base_time_ns)
    if base is not None and abs(base) <= MAX_BASE_NS:
        return base
    if document.base_time_ns is not None:
        message = f"{name_of(path)}: baseTimeNanoseconds is no time ({str(document.base_time_ns)[:40]}); taken as 0"
        hint = "the ranks' clocks cannot be told apart from it; nothing within this rank changes"
        diagnostics.append(
            Diagnostic(code="base_time_invalid", level=Level.WARNING, file=name_of(path), message=message, hint=hint)
        )
    return 0


def _exact_times(
    events: Sequence[Event], position: Int64Array, text: bytes
) -> tuple[Int64Array, Int64Array, BoolArray]:
    """Start and duration in nanoseconds, relative to the base, and which of them are numbers at all."""
    ts = to_microseconds([event.ts for event in events])
    dur = to_microseconds([event.dur for event in events])
    sound = ~(np.isnan(ts) | np.isnan(dur) | (dur > MAX_DURATION_US))
    ts[~sound] = dur[~sound] = 0.0
    if ts.size and max(np.abs(ts).max(), np.abs(dur).max()) >= FLOAT_EXACT_BELOW_US:
        texts = decode_times_as_text(text)
        exact = np.zeros((2, ts.size), dtype=np.int64)
        for row in np.flatnonzero(sound).tolist():
            try:
                exact[:, row] = [text_to_ns(number) for number in texts[int(position[row])]]
            except ValueError:
                sound[row] = False
        return exact[0], exact[1], sound
    return floats_to_ns(ts), floats_to_ns(dur), sound


def _report_dropped(
    fault: str, bad: BoolArray, is_device: BoolArray, position: Int64Array, path: Path, diagnostics: list[Diagnostic]
) -> None:
    num_device, num_host = int((bad & is_device).sum()), int((bad & ~is_device).sum())
    if not num_device + num_host:
        return
    diagnostics.append(
        Diagnostic(
            code="events_dropped",
            level=Level.WARNING,
            file=name_of(path),
            count=num_device + num_host,
            event=int(position[bad][0]),
            message=f"{name_of(path)}: {num_device} device rows and {num_host} host events with {fault} dropped",
        )
    )
