"""Everything that one rank's events tell without its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from zerotrace.analysis.bounds import DeviceDoubt, device_doubts, note_doubts
from zerotrace.analysis.collectives import CollectiveRows, collective_rows, exposed_part
from zerotrace.analysis.evidence import RankEvidence, blocking_evidence
from zerotrace.analysis.fsdp import fsdp_spans, with_fsdp
from zerotrace.analysis.gathers.rank import RankGathers, RankView, find_gathers
from zerotrace.analysis.labelled import LabelSpans, LabelTotal, UnreadLabels, find_labels, label_totals, unread_labels
from zerotrace.analysis.launches import find_launches, on_device
from zerotrace.analysis.overlap_tax import DeviceTax, device_taxes
from zerotrace.analysis.own_time import OwnTimes, own_times
from zerotrace.analysis.partition import (
    clip_steps,
    device_causes,
    device_times,
    launch_steps,
    launched_exposed,
    outside_steps_ns,
)
from zerotrace.analysis.reductions import reduction_steps
from zerotrace.analysis.trust import RankCounts, count_rank
from zerotrace.analysis.wire import RankTraffic, rank_traffic, traffic_by_label
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import (
    STEP_ALL,
    Attribution,
    Category,
    Diagnostic,
    KernelTime,
    Level,
    Mode,
    ReductionStep,
    StepPartition,
    StepWindow,
)
from zerotrace.tables import codes_and_names, equals, ints

#: Two ways of giving rows to steps that differ by more than this part of the span deserve a word.
ATTRIBUTION_TOLERANCE = 0.01

_TOP_KERNELS = 12

_MAX_NAME = 60


@dataclass(frozen=True, kw_only=True)
class RankAnalysis:
    """The figures of one rank, as far as they need no other."""

    rank: int
    first_ns: int
    """Start of the first event of the trace: from when on the profiler recorded."""
    partition: tuple[StepPartition, ...]
    comm: Mapping[int | None, Intervals]
    """Communication of each device, over all steps."""
    exposed: Mapping[int | None, Intervals]
    """The part of it that is exposed: what is split once the peers are known."""
    launched_exposed: Mapping[tuple[int | None, int], Intervals]
    """By launch: that which each step launched, by device and step. Empty where steps are windows."""
    outside_steps_ns: Mapping[int | None, int]
    """Busy time of each device that lies in no step window."""
    collectives: CollectiveRows
    exposed_rows_ns: Int64Array
    """Of each of these rows, how long no compute runs beside it."""
    own: OwnTimes
    """What the rank did by itself ahead of each row of ``collectives``."""
    taxes: tuple[DeviceTax, ...]
    """Compute kernels alone and beside communication, one entry a device; none in host mode."""
    evidence: tuple[RankEvidence, ...]
    """What the waits of streams and calls say of blocking time, one entry a device; none without them."""
    traffic: RankTraffic
    labels: tuple[LabelTotal, ...]
    """What the rank's labels count up to in each step."""
    num_unread_labels: int
    """Labels that could not be read."""
    reductions: tuple[ReductionStep, ...]
    """The reduction of gradients in each step that has some."""
    gathers: RankGathers | None
    """Stage 3's parameter gathers; ``None`` where nothing looks like them."""
    top_kernels: tuple[KernelTime, ...]
    doubts: tuple[DeviceDoubt, ...]
    """Devices on which kernels of unknown class run."""
    counts: RankCounts | None
    """What lacks a launch or a kernel; ``None`` in host mode."""
    diagnostics: tuple[Diagnostic, ...]


def analyse_rank(
    rank: int,
    file: str,
    events: pa.Table,
    windows: Sequence[StepWindow],
    mode: Mode,
    attribution: Attribution,
    *,
    first_ns: int,
    world_size: int | None = None,
) -> RankAnalysis:
    """Takes one rank apart.

    Args:
        rank: global rank.
        file: name of its trace, for diagnostics.
        events: rows of :data:`zerotrace.schema.EVENTS`, those of :func:`~zerotrace.analysis.needed.needed_rows` at
            least.
        windows: the rank's step windows.
        mode: device or host time.
        attribution: how rows are given to steps.
        first_ns: start of the first event of the trace.
        world_size: ranks of the job; ``None`` where the trace does not say.
    """
    times, launches, fsdp = device_times(events), find_launches(events), fsdp_spans(events)
    labels = with_fsdp(find_labels(events), fsdp)
    causes = [device_causes(events, time, launches) for time in times]
    partition = clipped = clip_steps(rank, times, causes, windows)
    by_launch: dict[tuple[int | None, int], Intervals] = {}
    doubts = tuple(device_doubts(events, times, windows, launches))
    diagnostics = [*_unknown_steps(file, clipped), *note_doubts(file, doubts)]
    if mode is Mode.DEVICE:
        launched = launch_steps(rank, events, times, windows, launches)
        if attribution is Attribution.LAUNCH:
            partition, by_launch = launched, launched_exposed(events, times, windows, launches)
        diagnostics += _attribution_differs(file, clipped, launched, attribution)
        diagnostics += _unlinked_rows(file, ints(events, "event")[on_device(events) & ~launches.linked])
    exposed = {time.device: time.exposed for time in times}
    unread = unread_labels(events)
    diagnostics += _unread_labels(file, unread)
    rows = collective_rows(rank, events, windows, launches, labels)
    view = RankView(
        events=events,
        windows=windows,
        launches=launches,
        labels=labels,
        fsdp=fsdp,
        rows=rows,
        times=times,
        causes=causes,
    )
    return RankAnalysis(
        rank=rank,
        first_ns=first_ns,
        partition=partition,
        comm={time.device: time.comm for time in times},
        exposed=exposed,
        launched_exposed=by_launch,
        outside_steps_ns={time.device: outside_steps_ns(time, windows) for time in times},
        collectives=rows,
        exposed_rows_ns=exposed_part(rows, exposed),
        own=own_times(rows, events, times, causes, windows, launches),
        taxes=device_taxes(rank, events, times, windows),
        evidence=tuple(
            found
            for why in causes
            if why is not None and (found := blocking_evidence(events, why, launches, clipped)) is not None
        ),
        traffic=_traffic(rank, events, windows, mode, labels, rows, world_size),
        labels=label_totals(labels, windows),
        num_unread_labels=unread.count if unread is not None else 0,
        reductions=tuple(reduction_steps(rank, rows, windows, times, causes)),
        gathers=find_gathers(view, attribution),
        top_kernels=tuple(_top_kernels(rank, events)),
        doubts=doubts,
        counts=count_rank(events, launches, windows) if mode is Mode.DEVICE else None,
        diagnostics=tuple(diagnostics),
    )


def _traffic(
    rank: int,
    events: pa.Table,
    windows: Sequence[StepWindow],
    mode: Mode,
    labels: LabelSpans,
    rows: CollectiveRows,
    world_size: int | None,
) -> RankTraffic:
    """By what the trace says of its collectives; where that is gloo's, which says no sizes, by labels if they can."""
    told = traffic_by_label(rank, events, windows, labels, world_size) if mode is Mode.HOST else None
    return told if told is not None else rank_traffic(rows)


def _unknown_steps(file: str, partition: Sequence[StepPartition]) -> list[Diagnostic]:
    steps = sorted({part.step for part in partition if not part.known})
    if not steps:
        return []
    named = ", ".join(map(str, steps))
    return [
        Diagnostic(
            code="steps_without_device_events",
            level=Level.WARNING,
            file=file,
            count=len(steps),
            message=f"{file}: no device rows in step {named}: unknown there, and left out of every mean",
            hint="the records of these steps were lost or not taken; capture fewer steps at a time",
        )
    ]


def _attribution_differs(
    file: str, clipped: Sequence[StepPartition], launched: Sequence[StepPartition], used: Attribution
) -> list[Diagnostic]:
    """Says when a step's own work and the work inside its window are not the same."""
    by_step = {(part.device, part.step): part for part in launched}
    worst, where = 0.0, 0
    for part in clipped:
        other = by_step[part.device, part.step]
        if part.step == STEP_ALL or not (part.known and other.known):
            continue
        for mine, theirs in (
            (part.compute_ns, other.compute_ns),
            (part.comm_ns, other.comm_ns),
            (part.exposed_ns, other.exposed_ns),
        ):
            share = abs((mine or 0) - (theirs or 0)) / part.span_ns
            if share > worst:
                worst, where = share, part.step
    if worst <= ATTRIBUTION_TOLERANCE:
        return []
    other_name = "launch" if used is Attribution.CLIP else "clip"
    return [
        Diagnostic(
            code="attribution_differs",
            level=Level.INFO,
            file=file,
            message=f"{file}: the device runs behind the host: clipped to step windows and attributed by launch differ "
            f"by up to {100 * worst:.1f} % of the span (step {where}); figures here are by {used.value}",
            hint=f"--attribute {other_name} gives the other view",
        )
    ]


def _unlinked_rows(file: str, event: Int64Array) -> list[Diagnostic]:
    if not event.size:
        return []
    return [
        Diagnostic(
            code="kernels_without_launch",
            level=Level.INFO,
            file=file,
            count=event.size,
            event=int(event.min()),
            message=f"{file}: {event.size} device rows whose launch is not in the trace",
            hint="expected at the start of a window, and in traces taken without CPU activities",
        )
    ]


def _unread_labels(file: str, unread: UnreadLabels | None) -> list[Diagnostic]:
    if unread is None:
        return []
    return [
        Diagnostic(
            code="labels_unread",
            level=Level.WARNING,
            file=file,
            count=unread.count,
            message=f"{file}: {unread.count} of {unread.num_labels} labels are malformed or of another version, and "
            f"were not read: {_shortened(unread.example)!r}; what they would tell is inferred, or unknown",
            hint="capture again, or analyze with the zerotrace that captured",
        )
    ]


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"


def _top_kernels(rank: int, events: pa.Table) -> list[KernelTime]:
    dur = ints(events, "dur_ns")
    codes, names = codes_and_names(events, "name")
    found = []
    for category in Category:
        rows = equals(events, "category", category.value)
        count = np.bincount(codes[rows], minlength=len(names))
        total = np.zeros(len(names), dtype=np.int64)
        np.add.at(total, codes[rows], dur[rows])
        found += [
            KernelTime(rank=rank, name=names[i], category=category, count=int(count[i]), total_ns=int(total[i]))
            for i in np.argsort(-total, kind="stable")[:_TOP_KERNELS].tolist()
            if count[i]
        ]
    return sorted(found, key=lambda kernel: -kernel.total_ns)[:_TOP_KERNELS]
