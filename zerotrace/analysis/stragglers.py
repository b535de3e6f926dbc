"""Whether some rank, or a group of ranks, is late more, and more often, than chance explains.

If all ranks are alike, each member of a collective is as likely as any other to be the last at an independent late
arrival, be its delay small or large. So these arrivals are ranked by their delay, 1 for the smallest, and the places of
those that are a rank's own are added up: a sum that no single long delay dominates, and in which small ones count for
little. Chance gives each arrival to each of its members alike. With R ranks the chance that any of them looks so bad is
at most R times the smallest tail (Bonferroni). A rank is a straggler if that is at most one in a hundred.

Ranks that are late together are judged first (:mod:`zerotrace.analysis.late_groups`). Where a group is, its ranks take
turns in being last, and that makes none of them a straggler of its own: given that the last one is of the group, each
of it is as likely to be that one as any other, and so are those outside. Nor is a rank a straggler because others, when
they are late, come at one moment, so that none of them is last: it must be one where such arrivals are counted too, as
those of all who are late. Of a rank and a group that both are late beyond chance, the one with the longer delays in sum
is the straggler.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec.structs import replace

from zerotrace.analysis.across import Meeting
from zerotrace.analysis.chance import SIGNIFICANCE, FloatArray, chance_of_sum, places_of
from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.gaps import by_arrival, tie_ns
from zerotrace.analysis.late_groups import GroupArrivals, find_late_groups, place_of
from zerotrace.analysis.lateness import LastArrivals, Together, last_arrivals, rank_lateness, step_lateness
from zerotrace.analysis.own_time import OwnTimes
from zerotrace.analysis.splits import Splits, split
from zerotrace.analysis.straggler_words import sentence
from zerotrace.intervals import Int64Array
from zerotrace.model import LateGroup, Lateness, StepLateness, Stragglers, StragglerVerdict

#: Lateness that is less than this part of the step is of no consequence.
IMMATERIAL_RATIO = 0.001

#: A normal deviate's median absolute deviation is this part of its standard deviation.
_MAD_OF_NORMAL = 0.6745


def find_stragglers(
    meeting: Meeting, own: OwnTimes, num_steps: int, step_ns: float | None, hosts: Mapping[int, str | None]
) -> tuple[Stragglers, tuple[StepLateness, ...]] | None:
    """Judges whether a rank, or a group of ranks, is a straggler.

    Args:
        meeting: matched collectives of all ranks.
        own: own times ahead of ``meeting.rows``.
        num_steps: steps that were analysed.
        step_ns: the median step; ``None`` where it is unknown.
        hosts: name of each rank's host; ``None`` where it is not known.

    Returns:
        The verdict with each rank's lateness, and its lateness in each step; ``None`` where no collective has several
        members.
    """
    order = by_arrival(meeting)
    if not (order.size > 1).any():
        return None
    tie = tie_ns(meeting, order)
    last = last_arrivals(meeting, own, order, tie)
    splits = split(meeting, own, order, tie)
    group = next(iter(find_late_groups(meeting, own, splits, tie, hosts)), None)
    whole_ns = (step_ns or 0.0) * max(num_steps, 1)
    ranks = rank_lateness(meeting, own, last)
    found = _measured(meeting, own, last, ranks, tie)
    found = _judged(
        found, _chance(meeting, last, splits, ranks, group), group.group if group is not None else None, whole_ns
    )
    together = None
    if group is not None and found.group is not None:
        together = Together(frozenset(group.group.ranks), group.is_late, group.gaps.late)
    return replace(found, sentence=sentence(found, num_steps)), step_lateness(meeting, own, last, together)


def _measured(meeting: Meeting, own: OwnTimes, last: LastArrivals, ranks: Sequence[Lateness], tie: int) -> Stragglers:
    """What the verdict is judged by, without it."""
    counted = np.flatnonzero(last.is_independent)
    delay, size = last.delay[counted], meeting.arrivals.num_members
    size = size[size > 1]
    largest = int(counted[np.argmax(delay)]) if counted.size else None
    worst = max(ranks, key=lambda lateness: lateness.late_ns, default=None)
    return Stragglers(
        verdict=StragglerVerdict.WITHIN_NOISE,
        rank=worst.rank if worst is not None and worst.num_late else None,
        sentence="",
        num_collectives=int(size.size),
        num_ties=int(size.size - last.is_late.sum()),
        num_independent=int(counted.size),
        num_needed=_num_needed(len(ranks), float(np.mean(1 / size))),
        chance_ratio=None,
        tie_ns=tie,
        largest_ns=None if largest is None else int(last.delay[largest]),
        largest_place=None if largest is None else place_of(meeting, own, int(last.row[largest])),
        spread_ns=float(np.median(np.abs(delay - np.median(delay)))) / _MAD_OF_NORMAL if delay.size else None,
        ranks=tuple(ranks),
    )


def _judged(
    found: Stragglers, chance: tuple[float | None, int | None], group: LateGroup | None, whole_ns: float
) -> Stragglers:
    """The verdict.

    Args:
        found: what it is judged by.
        chance: how often chance makes a rank look as bad as the worst one, and which that is.
        group: the ranks that are late together, if some are.
        whole_ns: all steps together; 0 where that is unknown.
    """
    ratio, rank = chance
    worst = next((one for one in found.ranks if one.rank == rank), None)
    if found.rank is None or found.num_independent < found.num_needed or ratio is None or ratio > SIGNIFICANCE:
        worst = None
    if group is not None and not group.is_early and group.delay_ns > (worst.delay_ns if worst else 0):
        return _weighed(replace(found, rank=None, chance_ratio=group.chance_ratio, group=group), group, whole_ns)
    if group is not None and group.is_early and group.late_ns < IMMATERIAL_RATIO * whole_ns:
        group = None
    found = replace(found, chance_ratio=ratio, group=group)
    if worst is not None:
        return _weighed(replace(found, rank=rank), worst, whole_ns)
    if group is not None:
        return found
    if found.rank is None:
        return replace(found, verdict=StragglerVerdict.TOGETHER)
    if found.num_independent < found.num_needed:
        return replace(found, verdict=StragglerVerdict.TOO_FEW)
    return found


def _weighed(found: Stragglers, late: Lateness | LateGroup, whole_ns: float) -> Stragglers:
    """A straggler, with how much of the steps its lateness is."""
    ratio = late.late_ns / whole_ns if whole_ns else None
    return replace(
        found,
        verdict=StragglerVerdict.STRAGGLER,
        late_ratio=ratio,
        is_immaterial=ratio is not None and ratio < IMMATERIAL_RATIO,
    )


def _chance(
    meeting: Meeting,
    last: LastArrivals,
    splits: Splits,
    ranks: Sequence[Lateness],
    group: GroupArrivals | None,
) -> tuple[float | None, int | None]:
    """How often chance makes any rank look as bad as the worst one, and which that is; ``None`` without arrivals."""
    counted = np.flatnonzero(last.is_independent)
    if not counted.size:
        return None, None
    places = np.zeros(last.row.size, dtype=np.int64)
    places[counted] = places_of(last.delay[counted])
    last_rank = meeting.rows.rank[last.row]
    chance, worst = 1.0, None
    for rank in (lateness.rank for lateness in ranks if lateness.num_independent):
        there = _members(meeting, rank)
        there = there[last.is_independent[there]]
        share = 1 / meeting.arrivals.num_members[there]
        if group is not None:
            share = _share_of_side(group.group, rank, last_rank[there])
        tail = len(ranks) * chance_of_sum(places[there], share, last_rank[there] == rank)
        if tail <= SIGNIFICANCE:
            among_ties = len(ranks) * _chance_among_ties(meeting, last, splits, rank, group)
            tail = among_ties if among_ties > SIGNIFICANCE else tail
        if worst is None or tail < chance:
            chance, worst = min(1.0, tail), rank
    return chance, worst


def _share_of_side(group: LateGroup, rank: int, last_rank: Int64Array) -> FloatArray:
    """How likely a rank is the last one, given whether that is one of a group or one of the others."""
    side = group.ranks if rank in group.ranks else group.others
    return np.where(np.isin(last_rank, side), 1 / max(len(side), 1), 0.0)


def _chance_among_ties(
    meeting: Meeting, last: LastArrivals, splits: Splits, rank: int, group: GroupArrivals | None
) -> float:
    """The tail of a rank where late arrivals of several at one moment count too, which have no last one.

    What a group is late at that the rank is not of, the group explains.
    """
    order = splits.order
    several = splits.counts & ~last.is_late & (splits.num_late > 1)
    mine = np.flatnonzero(meeting.rows.rank[order.rows] == rank)
    there = np.repeat(np.arange(order.size.size), order.size)[mine]
    kept = several[there] | last.is_independent[there]
    if group is not None and rank not in group.group.ranks:
        kept &= ~group.is_late[there]
    mine, there = mine[kept], there[kept]
    num_late = np.where(several[there], splits.num_late[there], 1)
    is_own = np.where(several[there], splits.is_behind[mine], meeting.rows.rank[last.row[there]] == rank)
    delay = np.where(several[there], splits.gaps.delay[there], last.delay[there])
    return chance_of_sum(places_of(delay), num_late / order.size[there], is_own)


def _members(meeting: Meeting, rank: int) -> Int64Array:
    """Numbers of the matched collectives of which a rank is a member."""
    collective = meeting.matches.collective[meeting.of_rank(rank)]
    return np.asarray(collective[collective != ABSENT], dtype=np.int64)


def _num_needed(num_ranks: int, share: float) -> int:
    """How many independent arrivals, all of one rank, chance gives rarely enough."""
    return math.ceil(math.log(SIGNIFICANCE / num_ranks) / math.log(share)) if share < 1 else 0
