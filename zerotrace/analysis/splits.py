"""Where the arrivals at each collective fall apart into members that come early and members that come late.

That is at the widest gap between two arrivals that follow each other. Whoever is behind it holds up all before it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zerotrace.analysis.across import Meeting
from zerotrace.analysis.gaps import ByArrival, Gaps, gaps, on_one_clock
from zerotrace.analysis.own_time import OwnTimes
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray

_HASH_SEED = 20_260_101


class Splits(Struct, frozen=True, eq=False):
    """The widest gap of every matched collective. Columns have one entry a collective.

    Attributes:
        order: the arrivals.
        is_behind: which of ``order.rows`` are behind the gap of their collective, shape ``(num_rows,)``.
        gaps: the gap.
        num_late: members behind it.
        counts: whether the gap is new, and each member a rank of its own.
        key: a number that stands for the set of ranks behind the gap.
    """

    order: ByArrival
    is_behind: BoolArray
    gaps: Gaps
    num_late: Int64Array
    counts: BoolArray
    key: npt.NDArray[np.uint64]

    def ranks_behind(self, collective: int, rank: Int64Array) -> Int64Array:
        """The ranks behind the gap of a collective, in rising order; ``rank`` is that of each row of the meeting."""
        first, size = int(self.order.first[collective]), int(self.order.size[collective])
        here = slice(first + size - int(self.num_late[collective]), first + size)
        return np.sort(rank[self.order.rows[here]])


def split(meeting: Meeting, own: OwnTimes, order: ByArrival, tie: int) -> Splits:
    """Splits the members of every matched collective; there is at least one.

    Args:
        meeting: matched collectives of all ranks.
        own: own times ahead of ``meeting.rows``.
        order: the arrivals of ``meeting``.
        tie: how far arrivals may be apart and come together, nanoseconds.
    """
    start = on_one_clock(meeting, meeting.rows.start)[order.rows]
    ahead = np.diff(start, prepend=start[0])
    ahead[order.first] = -1
    collective = np.repeat(np.arange(order.size.size), order.size)
    widest = np.flatnonzero(ahead == np.maximum.reduceat(ahead, order.first)[collective])
    at = order.first.copy()
    at[collective[widest]] = widest  # of gaps that are equal the last one stays: the fewest ranks are late
    is_behind = np.arange(order.rows.size) >= at[collective]
    found = gaps(meeting, own, order, at, tie)
    rank = meeting.rows.rank[order.rows]
    _, which = np.unique(rank, return_inverse=True)
    code = np.random.default_rng(_HASH_SEED).integers(0, 1 << 64, int(which.max()) + 1, dtype=np.uint64, endpoint=False)
    key = np.add.reduceat(np.where(is_behind, code[which.ravel()], np.uint64(0)), order.first)
    counts = found.is_new & ~_has_rank_twice(collective, rank, order)
    return Splits(order, is_behind, found, order.first + order.size - at, counts, key)


def _has_rank_twice(collective: Int64Array, rank: Int64Array, order: ByArrival) -> BoolArray:
    """Collectives in which a rank takes part with several devices."""
    by_rank = np.lexsort((rank, collective))
    again = np.flatnonzero((np.diff(collective[by_rank]) == 0) & (np.diff(rank[by_rank]) == 0))
    twice = np.zeros(order.size.size, dtype=bool)
    twice[collective[by_rank[again]]] = True
    return twice
