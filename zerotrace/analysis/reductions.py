"""The reduction of gradients on one rank: how many buckets, how much of them is exposed, what they hold back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zerotrace.analysis.bandwidth import bytes_moved
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.kinds import kind_of
from zerotrace.analysis.partition import DeviceCauses, DeviceTime
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.labels import LabelEvent
from zerotrace.model import CollectiveKind, ReductionStep, StepWindow

_KINDS = {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER}

#: Without labels, smaller ones are taken for norms and flags.
LEAST_BYTES = 65_536


def reduction_steps(
    rank: int, rows: CollectiveRows, windows: Sequence[StepWindow], times: Sequence[DeviceTime],
    causes: Sequence[DeviceCauses | None],
) -> Iterator[ReductionStep]:  # fmt: skip
    """The reductions of each step in which there are some.

    Args:
        rank: global rank.
        rows: its rows of communication.
        windows: its step windows.
        times: time of each device.
        causes: why that of each device is lost.
    """
    size = bytes_moved(rows)
    chosen = _reductions(rows, size)
    if not chosen.size:
        return
    device = rows.device[chosen[0]]
    place = next((i for i, time in enumerate(times) if (ABSENT if time.device is None else time.device) == device), 0)
    exposed, why = times[place].exposed, causes[place]
    for window in windows:
        mine = chosen[rows.step[chosen] == window.step]
        if not mine.size:
            continue
        running = Intervals.union(rows.start[mine], rows.end[mine])
        known = size[mine][size[mine] != ABSENT]
        yield ReductionStep(
            rank=rank,
            step=window.step,
            num_reductions=int(mine.size),
            largest_bytes=int(known.max()) if known.size else None,
            reduce_ns=running.length,
            exposed_ns=(running & exposed).length,
            blocking_queued_ns=(running & why.held.queued).length if why is not None else None,
            blocking_sync_ns=(running & (why.held.sync - why.held.queued)).length if why is not None else None,
        )


def _reductions(rows: CollectiveRows, size: Int64Array) -> Int64Array:
    """Rows that reduce gradients: by their labels, else by kind and size."""
    labelled = rows.purpose.where(lambda purpose: purpose == LabelEvent.REDUCE.value)
    if labelled.any():
        return np.flatnonzero(labelled)
    kinds = rows.name.where(lambda name: kind_of(name) in _KINDS)
    return np.flatnonzero(kinds & ((size == ABSENT) | (size >= LEAST_BYTES)))
