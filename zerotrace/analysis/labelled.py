"""Labels of a capture as spans of host time, and which of them a collective was launched in."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.launches import Launches
from zerotrace.ingest.classify import ANNOTATION_CATS
from zerotrace.ingest.columns import Texts
from zerotrace.ingest.steps import steps_at
from zerotrace.intervals import Int64Array
from zerotrace.labels import Label, LabelEvent, Phase, is_label, label_event, parse_label
from zerotrace.model import StepWindow
from zerotrace.tables import codes_and_names, ints

#: What tells the purpose and the phase of a collective, and how often a step does its work.
TELLING = frozenset(
    {LabelEvent.GATHER, LabelEvent.FETCH, LabelEvent.REDUCE, LabelEvent.POST_STEP_GATHER, LabelEvent.PHASE,
     LabelEvent.MICRO_STEP}
)  # fmt: skip


class LabelSpans(Struct, frozen=True, eq=False):
    """Labels of one rank, sorted by start. All columns have one entry a label.

    Attributes:
        labels: what they say.
        start: start on the host's clock, nanoseconds.
        end: end, exclusive.
        pid: process.
        tid: thread.
    """

    labels: Sequence[Label]
    start: Int64Array
    end: Int64Array
    pid: Int64Array
    tid: Int64Array

    def __len__(self) -> int:
        """Number of labels."""
        return len(self.labels)

    def of(self, *events: LabelEvent) -> LabelSpans:
        """The labels of these events."""
        rows = np.array([row for row, label in enumerate(self.labels) if label.event in events], dtype=np.int64)
        chosen = [self.labels[row] for row in rows.tolist()]
        return LabelSpans(chosen, self.start[rows], self.end[rows], self.pid[rows], self.tid[rows])

    def around(self, time: Int64Array, pid: Int64Array | None = None, tid: Int64Array | None = None) -> Int64Array:
        """The innermost label around each moment; -1 where there is none.

        Args:
            time: shape ``(n,)``, nanoseconds.
            pid: process of each moment; labels of every thread count where it is left out.
            tid: thread of each moment.
        """
        if pid is None or tid is None:
            return self._around(np.arange(len(self)), time)
        found = np.full(time.shape, -1, dtype=np.int64)
        for process, thread in {*zip(self.pid.tolist(), self.tid.tolist())}:
            here = np.flatnonzero((pid == process) & (tid == thread))
            if here.size:
                mine = np.flatnonzero((self.pid == process) & (self.tid == thread))
                found[here] = self._around(mine, time[here])
        return found

    def _around(self, spans: Int64Array, time: Int64Array) -> Int64Array:
        """The same among some labels, which are disjoint or nested."""
        if not spans.size:
            return np.full(time.shape, -1, dtype=np.int64)
        start, end = self.start[spans], self.end[spans]
        inside = np.searchsorted(start, time, side="right") - 1
        past = (inside >= 0) & (end[inside] <= time)
        if not (end[:-1] > start[1:]).any():  # none lies in another
            return np.where((inside >= 0) & ~past, spans[inside], -1)
        outer = _enclosing(start, end)
        while past.any():
            inside[past] = outer[inside[past]]
            past = (inside >= 0) & (end[inside] <= time)
        return np.where(inside >= 0, spans[inside], -1)


def find_labels(events: pa.Table, wanted: Collection[LabelEvent] = TELLING) -> LabelSpans:
    """The labels of one rank.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        wanted: what they may mark; parsing the others would only cost time.
    """
    codes, names = codes_and_names(events, "name")
    parsed = {code: label for code, name in enumerate(names) if (label := _parse(name, wanted)) is not None}
    cats, distinct = codes_and_names(events, "cat")
    chosen = np.zeros(len(names) + 1, dtype=bool)
    chosen[list(parsed)] = True
    on_host = np.array([*(cat in ANNOTATION_CATS for cat in distinct), False])
    rows = np.flatnonzero(chosen[codes] & on_host[cats])
    start = ints(events, "start_ns")[rows]
    order = np.argsort(start, kind="stable")
    rows, start = rows[order], start[order]
    return LabelSpans(
        labels=[parsed[code] for code in codes[rows].tolist()],
        start=start,
        end=start + ints(events, "dur_ns")[rows],
        pid=ints(events, "pid")[rows],
        tid=ints(events, "tid")[rows],
    )


class UnreadLabels(Struct, frozen=True, kw_only=True):
    """Annotations of one rank that claim to be labels and cannot be read: malformed, or of another version."""

    count: int
    num_labels: int
    """All that claim to be labels."""
    example: str
    """The name of the first."""


def unread_labels(events: pa.Table) -> UnreadLabels | None:
    """What could not be read of one rank's labels; ``None`` where all could.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
    """
    codes, names = codes_and_names(events, "name")
    claims = np.array([*map(is_label, names), False], dtype=bool)
    if not claims.any():
        return None
    unread = np.array([*(claim and parse_label(name) is None for claim, name in zip(claims, names)), False], dtype=bool)
    cats, distinct = codes_and_names(events, "cat")
    on_host = np.array([*(cat in ANNOTATION_CATS for cat in distinct), False])[cats]
    rows = np.flatnonzero(unread[codes] & on_host)
    if not rows.size:
        return None
    return UnreadLabels(count=rows.size, num_labels=int((claims[codes] & on_host).sum()), example=names[codes[rows[0]]])


class Told(Struct, frozen=True, eq=False):
    """What labels tell of rows of communication. All columns have one entry a row.

    Attributes:
        phase: ``forward``, ``backward`` or ``step``; none where no label says.
        purpose: ``demand``, ``prefetch`` or ``refresh`` of a gather, ``reduce``, ``post_step_gather``; none where the
            row was launched in no such label.
    """

    phase: Texts
    purpose: Texts


def tell(rows: Int64Array, launches: Launches, labels: LabelSpans) -> Told:
    """Phase and purpose of rows of communication.

    The purpose is that of the innermost label in which the row was launched, on the thread that launched it. The
    phase is the one that a gather or fetch names, else that of the engine's call in which the row was launched:
    ``engine.backward`` waits for the threads that run the backward pass. Rows without a launch, which is all of them in
    host mode, have no purpose, and their phase is taken at their own start.

    Args:
        rows: rows of an event table.
        launches: launches of the table.
        labels: of the same rank.
    """
    time = launches.start[rows]
    pid, tid = launches.thread_ids(rows)
    working = labels.of(LabelEvent.GATHER, LabelEvent.FETCH)
    buckets = labels.of(LabelEvent.GATHER, LabelEvent.REDUCE, LabelEvent.POST_STEP_GATHER)
    calls = labels.of(LabelEvent.PHASE)
    found = calls.around(time)
    phases: list[Phase | None] = [calls.labels[i].phase if i >= 0 else None for i in found.tolist()]
    for row, i in enumerate(working.around(time, pid, tid).tolist()):
        if i >= 0:
            phases[row] = working.labels[i].phase or phases[row]
    inside = [buckets.labels[i] if i >= 0 else None for i in buckets.around(time, pid, tid).tolist()]
    return Told(
        phase=Texts.of([phase and phase.value for phase in phases]),
        purpose=Texts.of([label and (label.kind or label.event).value for label in inside]),
    )


class LabelTotal(Struct, frozen=True, kw_only=True):
    """All labels of one kind in one step of one rank."""

    step: int
    event: LabelEvent
    purpose: str
    """The gather's kind, else the event."""
    phase: Phase | None
    count: int
    elements: int | None
    """Sum over the labels; ``None`` where one does not say."""


def label_totals(labels: LabelSpans, windows: Sequence[StepWindow]) -> tuple[LabelTotal, ...]:
    """Counts and elements of gathers, reductions and micro-steps, each in the step in which it starts.

    Args:
        labels: of one rank.
        windows: the rank's step windows.
    """
    counted = {LabelEvent.GATHER, LabelEvent.REDUCE, LabelEvent.POST_STEP_GATHER, LabelEvent.MICRO_STEP}
    found: dict[tuple[int, LabelEvent, str, Phase | None], list[Label]] = {}
    for step, label in zip(steps_at(tuple(windows), labels.start).tolist(), labels.labels):
        if label.event in counted:
            key = (step, label.event, (label.kind or label.event).value, label.phase)
            found.setdefault(key, []).append(label)
    known = {window.step for window in windows}
    return tuple(
        LabelTotal(
            step=step, event=event, purpose=purpose, phase=phase, count=len(members), elements=_sum_of_elements(members)
        )
        for (step, event, purpose, phase), members in found.items()
        if step in known
    )


def _sum_of_elements(labels: Sequence[Label]) -> int | None:
    elements = [label.elements for label in labels]
    return None if None in elements else sum(count or 0 for count in elements)


def _enclosing(start: Int64Array, end: Int64Array) -> Int64Array:
    """For each span, the one that began before it and is still open; -1 where there is none."""
    outer = np.full(start.size, -1, dtype=np.int64)
    open_: list[int] = []
    for row, begin in enumerate(start.tolist()):
        while open_ and end[open_[-1]] <= begin:
            open_.pop()
        outer[row] = open_[-1] if open_ else -1
        open_.append(row)
    return outer


def _parse(name: str, wanted: Collection[LabelEvent]) -> Label | None:
    return parse_label(name) if label_event(name) in wanted else None
