"""The reduction of gradients on one rank: how many buckets, how much of them is exposed, what they hold back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import numpy as np

from zerotrace.analysis.bandwidth import bytes_moved
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.kinds import kind_of
from zerotrace.analysis.partition import DeviceSets
from zerotrace.intervals import Int64Array, unions_of_groups
from zerotrace.labels import LabelEvent
from zerotrace.model import CollectiveKind, ReductionStep, StepWindow

_KINDS = {CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER}

#: Without labels, smaller ones are taken for norms and flags.
LEAST_BYTES = 65_536


def reduction_steps(
    rank: int, rows: CollectiveRows, windows: Sequence[StepWindow], sets: Sequence[DeviceSets]
) -> Iterator[ReductionStep]:
    """The reductions of each step in which there are some.

    Args:
        rank: global rank.
        rows: its rows of communication.
        windows: its step windows.
        sets: time of each device.
    """
    size = bytes_moved(rows)
    chosen = _reductions(rows, size)
    if not chosen.size:
        return
    device = rows.device[chosen[0]]
    mine = (time for time in sets if (ABSENT if time.device is None else time.device) == device)
    time = next(mine, sets[0])
    held = time.held
    number_of = {window.step: number for number, window in enumerate(windows)}
    chosen = chosen[np.isin(rows.step[chosen], [*number_of])]
    group = np.array([number_of[step] for step in rows.step[chosen].tolist()], dtype=np.int64)
    starts, ends, of = unions_of_groups(rows.start[chosen], rows.end[chosen], group)

    def in_windows(lengths: Int64Array) -> list[int]:
        found = np.zeros(len(windows), dtype=np.int64)
        np.add.at(found, of, lengths)
        return cast("list[int]", found.tolist())

    reduce, exposed = in_windows(ends - starts), in_windows(time.exposed.within(starts, ends))
    queued = None if held is None else in_windows(held.queued.within(starts, ends))
    sync = None if held is None else in_windows((held.sync - held.queued).within(starts, ends))
    for number in np.unique(group).tolist():
        sizes = size[chosen[group == number]]
        known = sizes[sizes != ABSENT]
        yield ReductionStep(
            rank=rank,
            step=windows[number].step,
            num_reductions=int(sizes.size),
            largest_bytes=int(known.max()) if known.size else None,
            reduce_ns=reduce[number],
            exposed_ns=exposed[number],
            blocking_queued_ns=queued[number] if queued is not None else None,
            blocking_sync_ns=sync[number] if sync is not None else None,
        )


def _reductions(rows: CollectiveRows, size: Int64Array) -> Int64Array:
    """Rows that reduce gradients: by their labels, else by kind and size."""
    labelled = rows.purpose.where(lambda purpose: purpose == LabelEvent.REDUCE.value)
    if labelled.any():
        return np.flatnonzero(labelled)
    kinds = rows.name.where(lambda name: kind_of(name) in _KINDS)
    return np.flatnonzero(kinds & ((size == ABSENT) | (size >= LEAST_BYTES)))
