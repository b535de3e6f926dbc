"""How much later one member of a collective starts than another, and what of it counts.

Two things keep late arrivals from being counted naively.

*Ties.* Ends of one collective, which should be one moment, differ a little over its members: by clocks, and by how a
ring finishes. Arrivals that differ by no more than nine of ten collectives' ends do are no late arrivals; nor are those
that differ by no more than that once the ends of the two ranks' previous collective are taken off. Nor is a rank late
for whose profiler the others waited, nor one that is the only member.

*One delay, many arrivals.* Collectives make devices wait for each other, not hosts. A rank whose host falls behind
once stays behind, and is late at every collective until the hosts meet again, which they do where both wait for their
devices. So a gap is *new* only if more than half of it is: the old delay is what the rank's host was behind the other's
when they launched the previous collective, and still was when both last came back from waiting for the device, as far
as waiting for the host is what the rank was late by. The rest is the gap's *delay*.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from zerotrace.analysis.across import Meeting
from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.own_time import OwnTimes
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray

#: Part of collectives whose ends lie within what counts as a tie.
TIE_QUANTILE = 0.9


class ByArrival(Struct, frozen=True, eq=False):
    """The rows of matched collectives: one collective after the other, and of each the members as they arrive.

    Attributes:
        rows: rows of the meeting, shape ``(num_rows,)``.
        first: where each collective begins in ``rows``, shape ``(num_collectives,)``.
        size: members of each collective.
    """

    rows: Int64Array
    first: Int64Array
    size: Int64Array

    @property
    def final(self) -> Int64Array:
        """Where the last arrival of each collective stands in ``rows``."""
        return self.first + self.size - 1


class Gaps(Struct, frozen=True, eq=False):
    """What lies between two arrivals of each matched collective. Columns have one entry a collective.

    Attributes:
        row: row of the later member.
        before: row of the earlier one; the same row where the collective has one member.
        late: start of the later less start of the earlier.
        began: begin of the own time of the later less that of the earlier.
        delay: the part of ``late`` that is new, and not an old delay of its host.
        is_late: whether it is more than a tie, the difference of the previous collective's ends taken off.
        is_new: whether it is, and more than half of it is new.
    """

    row: Int64Array
    before: Int64Array
    late: Int64Array
    began: Int64Array
    delay: Int64Array
    is_late: BoolArray
    is_new: BoolArray


def by_arrival(meeting: Meeting) -> ByArrival:
    """The members of each matched collective as they arrive."""
    start, collective = on_one_clock(meeting, meeting.rows.start), meeting.matches.collective
    matched = np.flatnonzero(collective != ABSENT)
    rows = matched[np.lexsort((start[matched], collective[matched]))]
    size = np.bincount(collective[rows], minlength=meeting.matches.count)
    return ByArrival(rows, np.cumsum(size) - size, size)


def on_one_clock(meeting: Meeting, times: Int64Array) -> Int64Array:
    """Times of the meeting's rows on one clock for all ranks."""
    return times - meeting.matches.clocks.of_rows(meeting.rows.rank)


def tie_ns(meeting: Meeting, order: ByArrival) -> int:
    """How far the ends of one collective lie apart on its members, for nine of ten collectives."""
    if not order.size.size:
        return 0
    end = on_one_clock(meeting, meeting.rows.end)[order.rows]
    spread = np.maximum.reduceat(end, order.first) - np.minimum.reduceat(end, order.first)
    return int(np.sort(spread)[math.ceil(TIE_QUANTILE * spread.size) - 1])


def gaps(meeting: Meeting, own: OwnTimes, order: ByArrival, at: Int64Array, tie: int) -> Gaps:
    """The gap ahead of one arrival of each collective.

    Args:
        meeting: matched collectives of all ranks.
        own: own times ahead of ``meeting.rows``.
        order: the arrivals of ``meeting``.
        at: where that arrival stands in ``order.rows``, shape ``(num_collectives,)``; not the first of several.
        tie: what :func:`tie_ns` gives.
    """
    start, collective = on_one_clock(meeting, meeting.rows.start), meeting.matches.collective
    row, before = order.rows[at], order.rows[np.where(order.size > 1, at - 1, at)]
    late = start[row] - start[before]
    began = late - (own.own[row] - own.own[before])
    have_met = (own.previous[row] != ABSENT) & (own.previous[before] != ABSENT)
    is_late = (order.size > 1) & (late - np.where(have_met, np.maximum(began, 0), 0) > tie)
    is_late[collective[meeting.profiler_start.waits]] = False
    delay = late - _carried(meeting, own, row, before, late)
    return Gaps(row, before, late, began, delay, is_late, is_late & (2 * delay > late))


def _carried(meeting: Meeting, own: OwnTimes, row: Int64Array, before: Int64Array, late: Int64Array) -> Int64Array:
    """The part of each gap that is an old delay of the rank's host, as the module's words define it."""
    earlier, other = own.previous[row], own.previous[before]
    collective, start = meeting.matches.collective, on_one_clock(meeting, meeting.rows.start)
    launched, came_back = start - own.lead, start - own.resumed
    known = (earlier != ABSENT) & (other != ABSENT)
    known &= (collective[earlier] == collective[other]) & (collective[earlier] != ABSENT)
    known &= (own.lead[earlier] != ABSENT) & (own.lead[other] != ABSENT)
    behind = np.where(known, launched[earlier] - launched[other], 0)
    met = (own.resumed[row] != ABSENT) & (own.resumed[before] != ABSENT)
    behind = np.where(met, np.minimum(behind, came_back[row] - came_back[before]), behind)
    waited = own.host_bound[row] - own.host_bound[before]
    return np.asarray(np.minimum(np.maximum(behind, 0), np.clip(waited, 0, late)), dtype=np.int64)
