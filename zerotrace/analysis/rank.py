"""Everything that one rank's events tell without its peers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.bounds import DeviceDoubt, device_doubts, in_doubt, note_doubts
from zerotrace.analysis.collectives import CollectiveRows, collective_rows, exposed_part
from zerotrace.analysis.evidence import RankEvidence, find_waiting
from zerotrace.analysis.fsdp import FsdpSpans, fsdp_spans, with_fsdp
from zerotrace.analysis.gathers.coordinator import coordinator_time
from zerotrace.analysis.gathers.rank import RankGathers, RankView, Sought, find_gathers, seek_gathers
from zerotrace.analysis.kernels import top_kernels
from zerotrace.analysis.labelled import LabelSpans, LabelTotal, UnreadLabels, find_labels, label_totals, unread_labels
from zerotrace.analysis.landmarks import find_landmarks
from zerotrace.analysis.launched import launch_steps
from zerotrace.analysis.launches import Launches, find_launches
from zerotrace.analysis.overlap_tax import DeviceTax, device_tax
from zerotrace.analysis.own_time import OwnTimes, own_spans, own_times
from zerotrace.analysis.partition import DeviceSets
from zerotrace.analysis.rank_notes import (
    note_attribution_differs,
    note_unknown_steps,
    note_unlinked_rows,
    note_unread_labels,
)
from zerotrace.analysis.reductions import reduction_steps
from zerotrace.analysis.stretch_part import Asked, GatherPart, take_apart
from zerotrace.analysis.stretches import RankEvents
from zerotrace.analysis.trust import RankCounts, count_rank
from zerotrace.analysis.whole import WholeDevice, WholeRank
from zerotrace.analysis.wire import RankTraffic, rank_traffic, traffic_by_label
from zerotrace.freed import give_back_memory
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import (
    Attribution,
    Diagnostic,
    KernelTime,
    Mode,
    ReductionStep,
    StepPartition,
    StepWindow,
)


class RankAnalysis(Struct, frozen=True, kw_only=True):
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
    events: RankEvents,
    windows: Sequence[StepWindow],
    mode: Mode,
    attribution: Attribution,
    *,
    first_ns: int,
    world_size: int | None = None,
) -> RankAnalysis:
    """Takes one rank apart, stretch by stretch of its steps.

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
    give_back_memory(events.num_rows)
    told = _told(rank, events, windows, mode, attribution)
    marks, rows, asked = told.marks, told.asked.rows, told.asked
    # not a comprehension, which would keep each stretch until there is the next one
    whole = WholeRank(map(partial(take_apart, asked=asked), events.stretches(windows)))
    sets = [device.sets for device in whole.devices]
    gathers, taxes = _gathers(told, sets, whole.take_gathers(), attribution), _taxes(asked, whole.devices, sets)
    clipped = tuple(part for device in whole.devices for part in device.partition)
    launched = launch_steps(rank, [d.launched for d in whole.devices if d.launched is not None], windows)
    doubts = tuple(device_doubts(marks, sets, {d.device: d.sure for d in whole.devices}, windows, told.launches))
    spent = np.sum([device.spent for device in whole.devices], axis=0)
    diagnostics = [*note_unknown_steps(file, clipped), *note_doubts(file, doubts)]
    if mode is Mode.DEVICE:
        diagnostics += note_attribution_differs(file, clipped, launched, attribution)
        diagnostics += note_unlinked_rows(file, whole.counts)
    diagnostics += note_unread_labels(file, told.unread)
    return RankAnalysis(
        rank=rank,
        first_ns=first_ns,
        partition=launched if asked.by_launch else clipped,
        comm={time.device: time.comm for time in sets},
        exposed={time.device: time.exposed for time in sets},
        launched_exposed={
            (device.device, window.step): device.launched_exposed(window.step)
            for device in whole.devices
            for window in (windows if asked.by_launch else ())
        },
        outside_steps_ns={device.device: device.outside_steps_ns for device in whole.devices},
        collectives=rows,
        exposed_rows_ns=exposed_part(rows, {time.device: time.exposed for time in sets}),
        own=own_times(rows, marks, told.launches, asked.spans, spent, mode),
        taxes=taxes,
        evidence=_evidence(asked, whole.devices),
        traffic=_traffic(told, mode, world_size),
        labels=label_totals(told.labels, windows),
        num_unread_labels=told.unread.count if told.unread is not None else 0,
        reductions=tuple(reduction_steps(rank, rows, windows, sets)),
        gathers=gathers,
        top_kernels=tuple(top_kernels(rank, whole.kernels)),
        doubts=doubts,
        counts=count_rank(whole.counts) if mode is Mode.DEVICE else None,
        diagnostics=tuple(diagnostics),
    )


class _Told(Struct, frozen=True, kw_only=True):
    """What the landmarks of a rank tell ahead of all else."""

    marks: pa.Table
    launches: Launches
    labels: LabelSpans
    fsdp: FsdpSpans | None
    unread: UnreadLabels | None
    sought: Sought | None
    asked: Asked


def _told(rank: int, events: RankEvents, windows: Sequence[StepWindow], mode: Mode, attribution: Attribution) -> _Told:
    marks = find_landmarks(events)
    launches, fsdp = find_launches(marks), fsdp_spans(marks)
    labels = with_fsdp(find_labels(marks), fsdp)
    rows = collective_rows(rank, marks, windows, launches, labels)
    sought = seek_gathers(marks, launches, labels, rows, has_links=events.num_linked > 0)
    asked = Asked(
        rank=rank,
        devices=events.devices,
        windows=windows,
        rows=rows,
        spans=own_spans(rows, windows),
        waiting={device: find_waiting(marks, device, launches) for device in events.devices},
        has_doubts=bool(in_doubt(marks).any()),
        by_launch=mode is Mode.DEVICE and attribution is Attribution.LAUNCH,
        gathers_on=None if sought is None else sought.device,
        coordinator=coordinator_time(marks, labels),
    )
    return _Told(
        marks=marks,
        launches=launches,
        labels=labels,
        fsdp=fsdp,
        unread=unread_labels(marks),
        sought=sought,
        asked=asked,
    )


def _traffic(told: _Told, mode: Mode, world_size: int | None) -> RankTraffic:
    """By what the trace says of its collectives; where that is gloo's, which says no sizes, by labels if they can."""
    asked, found = told.asked, None
    if mode is Mode.HOST:
        found = traffic_by_label(asked.rank, told.marks, asked.windows, told.labels, world_size)
    return found if found is not None else rank_traffic(asked.rows)


def _gathers(
    told: _Told, sets: Sequence[DeviceSets], found: GatherPart | None, attribution: Attribution
) -> RankGathers | None:
    if told.sought is None or found is None:
        return None
    give_back_memory(found.compute.launched.size)
    view = RankView(
        events=told.marks,
        windows=told.asked.windows,
        labels=told.labels,
        fsdp=told.fsdp,
        rows=told.asked.rows,
        sets=sets,
        compute=found.compute,
        ends_beside=found.ends_beside,
        backward=found.backward,
        host_bound=found.host_bound,
    )
    return find_gathers(view, told.sought, attribution)


def _taxes(asked: Asked, devices: Sequence[WholeDevice], sets: Sequence[DeviceSets]) -> tuple[DeviceTax, ...]:
    return tuple(
        device_tax(asked.rank, kernels, time, asked.windows)
        for device, time in zip(devices, sets)
        if (kernels := device.take_kernels()) is not None and len(time.comm)
    )


def _evidence(asked: Asked, devices: Sequence[WholeDevice]) -> tuple[RankEvidence, ...]:
    return tuple(
        RankEvidence(
            num_waits=found.waits.num_waits, num_named_waits=found.waits.num_named, steps=tuple(device.evidence)
        )
        for device in devices
        if (found := asked.waiting[device.device]) is not None
    )
