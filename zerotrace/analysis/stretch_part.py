"""What one stretch of a rank tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from zerotrace.analysis.bounds import sure_compute
from zerotrace.analysis.causes import Blocking
from zerotrace.analysis.collectives import CollectiveRows
from zerotrace.analysis.evidence import Waiting, blocking_evidence
from zerotrace.analysis.gathers.calls import ComputeLaunches, compute_launches
from zerotrace.analysis.gathers.coordinator import coordinator_bound
from zerotrace.analysis.gathers.phases import BackwardOperators, backward_operators
from zerotrace.analysis.kernels import KernelTotals, kernel_totals
from zerotrace.analysis.launched import LaunchedTime, launched_exposed, launched_time
from zerotrace.analysis.launches import Launches, find_launches
from zerotrace.analysis.overlap_tax import Kernels, find_kernels
from zerotrace.analysis.own_time import OwnSpans, spent
from zerotrace.analysis.partition import (
    DeviceCauses,
    DeviceSets,
    DeviceTime,
    clip_steps,
    device_causes,
    device_times,
    outside_steps_ns,
)
from zerotrace.analysis.stretches import Stretch
from zerotrace.analysis.trust import RowCounts, count_rows
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import BlockingEvidence, StepPartition, StepWindow
from zerotrace.tables import BoolArray


class Asked(Struct, frozen=True, kw_only=True):
    """What is asked of each stretch of a rank."""

    rank: int
    devices: Sequence[int | None]
    windows: Sequence[StepWindow]
    """All of the rank."""
    rows: CollectiveRows
    spans: OwnSpans
    """Own times ahead of the rows."""
    waiting: Mapping[int | None, Waiting | None]
    """Of each device; ``None`` where it has no ``cuda_sync`` rows."""
    has_doubts: bool
    """Whether there are kernels of unknown class."""
    by_launch: bool
    """Whether steps are made of what they launched."""
    gathers_on: int | None
    """The device on which gathers run, absent in host mode; ``None`` where nothing looks like gathers."""
    coordinator: Intervals
    """When the coordinator is at work."""


class DevicePart(Struct, frozen=True, kw_only=True):
    """One device during a stretch. Sets of instants lie between its borders, figures of steps are whole."""

    sets: DeviceSets
    partition: tuple[StepPartition, ...]
    outside_steps_ns: int
    spent: Int64Array
    launched: LaunchedTime | None
    """``None`` for the host's own time, as in what follows."""
    launched_exposed: Mapping[int, Intervals]
    evidence: tuple[BlockingEvidence, ...]
    kernels: Kernels | None
    """``None`` where no row communicates."""
    sure: Intervals | None
    """``None`` where all kernels are of known class."""


class GatherPart(Struct, frozen=True, kw_only=True):
    """What gathers need to know of a stretch."""

    compute: ComputeLaunches
    ends_beside: BoolArray
    host_bound: Int64Array | None
    backward: BackwardOperators


class StretchPart(Struct, frozen=True, kw_only=True):
    """A stretch, taken apart."""

    devices: tuple[DevicePart, ...]
    counts: RowCounts
    kernels: KernelTotals
    gathers: GatherPart | None


def take_apart(stretch: Stretch, asked: Asked) -> StretchPart:
    """Takes a stretch apart.

    Args:
        stretch: events and borders.
        asked: what the whole rank has told already.
    """
    events, launches, counted = stretch.events, find_launches(stretch.events), stretch.begins_here()
    times = device_times(events, asked.devices)
    causes = [device_causes(events, time, launches) for time in times]
    partition = clip_steps(asked.rank, times, causes, stretch.windows)
    gathers = None
    if asked.gathers_on is not None:
        place = asked.devices.index(asked.gathers_on) if asked.gathers_on in asked.devices else 0
        gathers = _gather_part(stretch, asked, launches, counted, times[place], causes[place])
    return StretchPart(
        devices=tuple(
            _device_part(
                stretch, asked, launches, counted, time, why, [p for p in partition if p.device == time.device]
            )
            for time, why in zip(times, causes)
        ),
        counts=count_rows(events, launches, asked.windows, counted),
        kernels=kernel_totals(events, counted),
        gathers=gathers,
    )


def _device_part(
    stretch: Stretch,
    asked: Asked,
    launches: Launches,
    counted: BoolArray,
    time: DeviceTime,
    why: DeviceCauses | None,
    partition: Sequence[StepPartition],
) -> DevicePart:
    events, begin, end = stretch.events, stretch.begin, stretch.end
    exposed = time.exposed if why is None else why.exposed
    waiting = asked.waiting[time.device]
    communicates = time.device is not None and bool((asked.rows.device == time.device).any())
    by_launch = why is not None and asked.by_launch
    return DevicePart(
        sets=DeviceSets(
            device=time.device,
            comm=time.comm.clip(begin, end),
            exposed=exposed.clip(begin, end),
            held=None if why is None else Blocking(why.held.queued.clip(begin, end), why.held.sync.clip(begin, end)),
        ),
        partition=tuple(partition),
        outside_steps_ns=outside_steps_ns(time, asked.windows, begin, end),
        spent=spent(asked.spans, asked.rows, time, why, begin, end),
        launched=None if why is None else launched_time(events, time, asked.windows, launches, begin, end),
        launched_exposed=launched_exposed(events, time, asked.windows, launches, begin, end) if by_launch else {},
        evidence=() if why is None or waiting is None else tuple(blocking_evidence(why, waiting, launches, partition)),
        kernels=find_kernels(events, time.device, counted) if time.device is not None and communicates else None,
        sure=sure_compute(events, time.device).clip(begin, end) if asked.has_doubts else None,
    )


def _gather_part(
    stretch: Stretch,
    asked: Asked,
    launches: Launches,
    counted: BoolArray,
    time: DeviceTime,
    why: DeviceCauses | None,
) -> GatherPart:
    assert asked.gathers_on is not None
    last = asked.rows.end - 1
    return GatherPart(
        compute=compute_launches(stretch.events, asked.gathers_on, launches, counted),
        ends_beside=(last >= stretch.begin) & (last < stretch.end) & time.compute.holds(last),
        host_bound=None if why is None else coordinator_bound(asked.coordinator, why, stretch.windows),
        backward=backward_operators(stretch.events, counted),
    )
