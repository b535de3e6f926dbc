"""How long gathers take and how much of that compute hides, to the nanosecond."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.partition import DeviceSets
from zerotrace.intervals import Int64Array, Intervals


class Pieces(Struct, frozen=True, eq=False):
    """The time of gathers as stretches; those of one gather share no instant.

    Attributes:
        gather: number of the gather.
        start: nanoseconds.
        end: nanoseconds.
    """

    gather: Int64Array
    start: Int64Array
    end: Int64Array

    @classmethod
    def of_rows(cls, gather: Int64Array, start: Int64Array, end: Int64Array) -> Pieces:
        """The rows of each gather, with what two rows of one gather share counted once.

        Args:
            gather: number of the gather of each row, from 0 on.
            start: start of each row.
            end: end of each row, not before its start.
        """
        order = np.lexsort((start, gather))
        gather, start, end = gather[order], start[order], end[order]
        if not gather.size:
            return cls(gather, start, end)
        # Times by rank, so that one running maximum over all gathers stays within int64.
        moments = np.unique(np.concatenate((start, end)))
        offset = gather * (moments.size + 1)
        reach = np.maximum.accumulate(np.searchsorted(moments, end) + offset)
        before = np.concatenate(([-1], reach[:-1])) - offset
        covered = np.where(before >= 0, moments[np.maximum(before, 0)], start)
        return cls(gather, np.minimum(np.maximum(start, covered), end), end)

    def sums(self, count: int, within: Intervals) -> Int64Array:
        """The time of each gather within a set; shape ``(count,)``."""
        lengths = within.length_before(self.end) - within.length_before(self.start)
        total = np.zeros(count, dtype=np.int64)
        np.add.at(total, self.gather, lengths)
        return total


class GatherTimes(Struct, frozen=True, eq=False):
    """Columns have one entry a gather, absent where it has no collective in the trace.

    Attributes:
        device: device of its collectives; absent in host mode too.
        num_collectives: how many there are.
        start: start of the first of them.
        end: end of the last of them.
        gather: time during which any of them runs.
        hidden: the part of it with compute beside it on the same device.
        exposed: the rest of it; ``hidden + exposed = gather``, asserted.
        blocking: the exposed part that holds compute back; absent in host mode.
    """

    device: Int64Array
    num_collectives: Int64Array
    start: Int64Array
    end: Int64Array
    gather: Int64Array
    hidden: Int64Array
    exposed: Int64Array
    blocking: Int64Array


def gather_times(count: int, of_row: Int64Array, rows: CollectiveRows, sets: Sequence[DeviceSets]) -> GatherTimes:
    """The times of ``count`` gathers.

    Args:
        count: number of gathers.
        of_row: number of the gather of each row; absent for rows of none.
        rows: the rank's rows of communication.
        sets: time of each device.
    """
    mine = np.flatnonzero(of_row != ABSENT)
    which = of_row[mine]
    huge = np.iinfo(np.int64).max
    start = np.full(count, huge, dtype=np.int64)
    end, device = (np.full(count, ABSENT, dtype=np.int64) for _ in range(2))
    np.minimum.at(start, which, rows.start[mine])
    np.maximum.at(end, which, rows.end[mine])
    device[which] = rows.device[mine]
    gather, hidden, exposed, blocking = (np.zeros(count, dtype=np.int64) for _ in range(4))
    for time in sets:
        here = mine[rows.device[mine] == (ABSENT if time.device is None else time.device)]
        pieces = Pieces.of_rows(of_row[here], rows.start[here], rows.end[here])
        # A row may have holes: one that stands for several copies of one operator.
        gather += pieces.sums(count, time.comm)
        hidden += pieces.sums(count, time.overlapped)
        exposed += pieces.sums(count, time.exposed)
        if time.held is not None:
            blocking += pieces.sums(count, time.held.queued | time.held.sync)
    if (hidden + exposed != gather).any():
        raise AssertionError("hidden and exposed time of a gather do not add up to its time")
    num_collectives = np.bincount(which, minlength=count)
    there = num_collectives > 0

    def known(values: Int64Array) -> Int64Array:
        return np.where(there, values, ABSENT)

    return GatherTimes(
        device=device,
        num_collectives=num_collectives,
        start=known(start),
        end=end,
        gather=known(gather),
        hidden=known(hidden),
        exposed=known(exposed),
        blocking=known(blocking) if any(time.held for time in sets) else np.full(count, ABSENT, dtype=np.int64),
    )
