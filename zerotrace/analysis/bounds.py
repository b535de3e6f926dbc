"""Kernels of unknown class: what a step's figures are if they compute, and if they communicate.

A kernel without collective metadata whose name no rule knows counts as compute. Where the name speaks of moving data
between devices, or there is none, that is a guess, and whatever hangs on it becomes a bound. All rows of one name are
of one class, so each way to decide on the names gives one set of figures; the bounds are the least and the most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.launches import Launches, on_device
from zerotrace.analysis.partition import DeviceSets
from zerotrace.ingest.classify import is_unclassified
from zerotrace.ingest.steps import steps_at
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import Bound, Category, Diagnostic, FigureBounds, Level, RankSummary, StepWindow
from zerotrace.tables import BoolArray, codes_and_names, equals, ints
from zerotrace.units import NS_PER_MS

# With more names than these the least and the most are taken for each figure by itself: wider, and still true.
_MAX_NAMES = 5
_NAMED = 3


class Reading(Struct, frozen=True):
    """One step, with each name taken for one class. Nanoseconds."""

    compute: int
    comm: int
    exposed: int


class DeviceDoubt(Struct, frozen=True, kw_only=True):
    """What one device's steps come to in each reading."""

    device: int | None
    names: tuple[str, ...]
    """Names of unknown class, most time first."""
    num_rows: int
    first_event: int
    unclassified_ns: Mapping[int, int]
    """Time of them by step, cut at its borders."""
    launched_ns: Mapping[int, int]
    """Time of them by the step in which they were launched, each row whole."""
    total_ns: int
    """Time of them in the whole trace."""
    readings: tuple[Mapping[int, Reading], ...]
    """By step; the first is that of all figures elsewhere. Empty where there are too many names to try each."""


def in_doubt(events: pa.Table) -> BoolArray:
    """Compute kernels of unknown class. Shape ``(num_rows,)``.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
    """
    rows = np.flatnonzero(equals(events, "category", Category.COMPUTE.value) & equals(events, "cat", "kernel"))
    codes, names = codes_and_names(events, "name")
    used, which = np.unique(codes[rows], return_inverse=True)
    odd = np.array([code >= 0 and is_unclassified("kernel", names[code]) for code in used.tolist()], dtype=bool)
    doubtful = np.zeros(events.num_rows, dtype=bool)
    doubtful[rows] = odd[which]
    return doubtful


def sure_compute(events: pa.Table, device: int | None) -> Intervals:
    """When kernels of a device run that compute beyond doubt."""
    rows = on_device(events) & (ints(events, "device") == device)
    rows &= equals(events, "category", Category.COMPUTE.value) & ~in_doubt(events)
    start = ints(events, "start_ns")
    return _union(start, start + ints(events, "dur_ns"), rows)


def device_doubts(
    events: pa.Table,
    sets: Sequence[DeviceSets],
    sure: Mapping[int | None, Intervals],
    windows: Sequence[StepWindow],
    launches: Launches,
) -> list[DeviceDoubt]:
    """The devices on which kernels of unknown class run.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`, those of :func:`in_doubt` at least.
        sets: time of each device.
        sure: what :func:`sure_compute` says of each device.
        windows: the rank's step windows.
        launches: launches of ``events``.
    """
    doubtful = in_doubt(events)
    if not doubtful.any():
        return []
    device, here = ints(events, "device"), on_device(events)
    launched = steps_at(tuple(windows), launches.start)
    found = (
        _doubt(
            events,
            time,
            sure[time.device],
            np.flatnonzero(here & doubtful & (device == time.device)),
            windows,
            launched,
        )
        for time in sets
        if time.device is not None
    )
    return [doubt for doubt in found if doubt is not None]


def _doubt(
    events: pa.Table, time: DeviceSets, sure: Intervals, rows: Int64Array, windows: Sequence[StepWindow],
    launched: Int64Array,
) -> DeviceDoubt | None:  # fmt: skip
    if not rows.size:
        return None
    codes, names = codes_and_names(events, "name")
    start = ints(events, "start_ns")
    end = start + ints(events, "dur_ns")
    distinct = np.unique(codes[rows])
    total = [int((end - start)[rows[codes[rows] == code]].sum()) for code in distinct.tolist()]
    distinct = distinct[np.argsort(-np.array(total), kind="stable")]
    of_name = [_union(start, end, rows[codes[rows] == code]) for code in distinct.tolist()]
    unknown = _union(start, end, rows)
    readings = tuple(_readings(sure, of_name, time.comm, windows)) if len(of_name) <= _MAX_NAMES else ()
    return DeviceDoubt(
        device=time.device,
        names=tuple(names[code] for code in distinct.tolist()),
        num_rows=rows.size,
        first_event=int(ints(events, "event")[rows].min()),
        unclassified_ns={window.step: unknown.clip(window.start_ns, window.end_ns).length for window in windows},
        launched_ns={window.step: _union(start, end, rows[launched[rows] == window.step]).length for window in windows},
        total_ns=unknown.length,
        readings=readings,
    )


def _readings(
    sure: Intervals, of_name: Sequence[Intervals], comm: Intervals, windows: Sequence[StepWindow]
) -> Iterator[Mapping[int, Reading]]:
    """Every way to decide; first the one in which all of them compute."""
    places = range(len(of_name))
    for chosen in (set(some) for size in range(len(of_name) + 1) for some in combinations(places, size)):
        compute, moving = sure, comm
        for place, time in enumerate(of_name):
            if place in chosen:
                moving = moving | time
            else:
                compute = compute | time
        exposed = moving - compute
        yield {
            window.step: Reading(
                *(part.clip(window.start_ns, window.end_ns).length for part in (compute, moving, exposed))
            )
            for window in windows
        }


def bound_summary(summary: RankSummary, doubt: DeviceDoubt, steps: Iterable[int], *, clipped: bool) -> FigureBounds:
    """Bounds of a rank's mean step.

    Args:
        summary: the mean step, with unclassified kernels as compute.
        doubt: those of its device.
        steps: steps that the mean is over.
        clipped: whether rows are given to steps by the clock; if not, readings by the clock say nothing.
    """
    chosen = list(steps)
    if not clipped:
        return _by_launch(summary, doubt, chosen)
    unknown = sum(doubt.unclassified_ns.get(step, 0) for step in chosen) / len(chosen)
    if not doubt.readings:
        return _outer(summary, unknown, unknown, unknown)
    sums = [
        [sum(figure(reading[step]) for step in chosen) for reading in doubt.readings]
        for figure in _FIGURES
    ]  # fmt: skip
    compute, comm, exposed = (Bound(low=min(sum_) / len(chosen), high=max(sum_) / len(chosen)) for sum_ in sums)
    ratios = [(whole - bare) / whole for whole, bare in zip(sums[1], sums[2]) if whole]
    known = len(ratios) == len(sums[1])
    return FigureBounds(
        unclassified_ns=unknown,
        compute_ns=compute,
        comm_ns=comm,
        exposed_ns=exposed,
        overlap_ratio=Bound(low=min(ratios), high=max(ratios)) if known else None,
    )


_FIGURES: tuple[Callable[[Reading], int], ...] = (
    lambda reading: reading.compute,
    lambda reading: reading.comm,
    lambda reading: reading.exposed,
)


def _by_launch(summary: RankSummary, doubt: DeviceDoubt, steps: Sequence[int]) -> FigureBounds:
    """By launch, a step's communication may be hidden by any step's compute, so that all of the doubt may matter."""
    launched = sum(doubt.launched_ns.get(step, 0) for step in steps) / len(steps)
    return _outer(summary, launched, launched, doubt.total_ns)


def _outer(summary: RankSummary, unknown: float, moved: float, bared: float) -> FigureBounds:
    """Bounds of each figure by itself.

    Args:
        summary: the mean step, with unclassified kernels as compute.
        unknown: their time in it.
        moved: how much of it may be communication.
        bared: how much communication they may hide now.
    """
    comm, hidden, exposed = summary.comm_ns, summary.overlapped_ns, summary.exposed_ns
    ratio = None
    if comm:
        ratio = Bound(low=max(0.0, hidden - bared) / (comm + moved), high=min(1.0, (hidden + moved) / comm))
    return FigureBounds(
        unclassified_ns=unknown,
        compute_ns=Bound(low=max(0.0, summary.compute_ns - unknown), high=summary.compute_ns),
        comm_ns=Bound(low=comm, high=comm + moved),
        exposed_ns=Bound(low=exposed, high=min(exposed + bared, comm) + moved),
        overlap_ratio=ratio,
    )


def note_doubts(file: str, doubts: Sequence[DeviceDoubt]) -> Iterator[Diagnostic]:
    """Says which kernels are of unknown class, and what that does to the figures.

    Args:
        file: name of the trace.
        doubts: those of the rank's devices.
    """
    doubts = [doubt for doubt in doubts if any(doubt.unclassified_ns.values()) or any(doubt.launched_ns.values())]
    if not doubts:
        return
    names = list(dict.fromkeys(name for doubt in doubts for name in doubt.names))
    count = sum(doubt.num_rows for doubt in doubts)
    total_ms = sum(sum(doubt.unclassified_ns.values()) for doubt in doubts) / NS_PER_MS
    named = ", ".join(name.strip() or "(no name)" for name in names[:_NAMED])
    named += f" and {len(names) - _NAMED} more names" if len(names) > _NAMED else ""
    yield Diagnostic(
        code="unclassified_kernels",
        level=Level.WARNING,
        file=file,
        count=count,
        event=min(doubt.first_event for doubt in doubts),
        message=f"{file}: {count} kernels of {total_ms:.3f} ms may be communication, and nothing tells ({named}): "
        "counted as compute, so that compute, communication, exposed and overlap are bounds",
        hint="collective metadata on these kernels, or on the operators that launch them, would tell",
    )


def _union(start: Int64Array, end: Int64Array, rows: Int64Array | BoolArray) -> Intervals:
    return Intervals.union(start[rows], end[rows])
