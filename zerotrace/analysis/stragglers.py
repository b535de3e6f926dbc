"""Whether some rank is late more, and more often, than chance explains.

If all ranks are alike, each member of a collective is as likely as any other to be the last at an independent late
arrival, be its delay small or large. So these arrivals are ranked by their delay, 1 for the smallest, and the places of
those that are a rank's own are added up: a sum that no single long delay dominates, and in which small ones count for
little. Chance gives each arrival to each of its members alike; that makes the distribution of the sum (between two
ranks, that of Wilcoxon's signed-rank test). With R ranks the chance that any of them looks so bad is at most R times
the smallest tail (Bonferroni). A rank is a straggler if that is at most one in a hundred.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from zerotrace.analysis.across import Meeting
from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.lateness import LastArrivals, last_arrivals, rank_lateness, step_lateness
from zerotrace.analysis.own_time import OwnTimes
from zerotrace.ingest.steps import NO_STEP
from zerotrace.intervals import Int64Array
from zerotrace.model import Lateness, Place, StepLateness, Stragglers, StragglerVerdict
from zerotrace.tables import BoolArray
from zerotrace.units import format_count, format_ns, format_ratio

#: A rank is a straggler if chance makes any rank look as bad in at most this part of runs.
SIGNIFICANCE = 0.01

#: Arrivals up to which chances are worked out exactly.
MOST_EXACT = 200

#: A cause is named where it makes up at least this part of a rank's lateness.
_WORTH_NAMING = 0.1

#: A normal deviate's median absolute deviation is this part of its standard deviation.
_MAD_OF_NORMAL = 0.6745


def find_stragglers(meeting: Meeting, own: OwnTimes, num_steps: int) -> tuple[Stragglers, tuple[StepLateness, ...]]:
    """Judges whether a rank is a straggler.

    Args:
        meeting: matched collectives of all ranks.
        own: own times ahead of ``meeting.rows``.
        num_steps: steps that were analysed.

    Returns:
        The verdict with each rank's lateness, and its lateness in each step.
    """
    last = last_arrivals(meeting, own)
    ranks = rank_lateness(meeting, own, last)
    return _judge(meeting, own, last, ranks, num_steps), step_lateness(meeting, own, last)


def chance_of_sum(places: Int64Array, share: npt.NDArray[np.float64], own: BoolArray) -> float:
    """The chance that the places that fall to one rank add up to at least what its own do.

    Args:
        places: place of each arrival by size, shape ``(n,)``; any whole numbers that rise with size.
        share: chance that an arrival falls to the rank, shape ``(n,)``.
        own: which of them are its own, shape ``(n,)``.

    Returns:
        The exact chance up to :data:`MOST_EXACT` arrivals, that of a normal distribution of equal mean and variance
        beyond.
    """
    total = int(places[own].sum())
    if places.size > MOST_EXACT:
        mean, variance = float((share * places).sum()), float((share * (1 - share) * places**2).sum())
        return 0.5 * math.erfc((total - mean) / math.sqrt(2 * variance))
    chance = np.zeros(int(places.sum()) + 1)
    chance[0] = 1
    for place, one in zip(places.tolist(), share.tolist()):
        shifted = np.concatenate((np.zeros(place), chance[: chance.size - place]))
        chance = (1 - one) * chance + one * shifted
    return min(1.0, float(chance[total:].sum()))


def _judge(
    meeting: Meeting, own: OwnTimes, last: LastArrivals, ranks: Sequence[Lateness], num_steps: int
) -> Stragglers:
    counted = np.flatnonzero(last.is_independent)
    delay, size = last.delay[counted], meeting.arrivals.num_members
    needed = _num_needed(len(ranks), float(np.mean(1 / size))) if size.size else 0
    worst = max(ranks, key=lambda lateness: lateness.late_ns, default=None)
    largest = int(counted[np.argmax(delay)]) if counted.size else None
    chance, rank = _chance(meeting, last, ranks)
    if worst is None or not worst.num_late:
        verdict, rank = StragglerVerdict.TOGETHER, None
    elif counted.size < needed:
        verdict, rank = StragglerVerdict.TOO_FEW, worst.rank
    elif chance is not None and chance <= SIGNIFICANCE:
        verdict = StragglerVerdict.STRAGGLER
    else:
        verdict, rank = StragglerVerdict.WITHIN_NOISE, worst.rank
    found = Stragglers(
        verdict=verdict,
        rank=rank,
        sentence="",
        num_collectives=int(last.row.size),
        num_ties=int((~last.is_late).sum()),
        num_independent=int(counted.size),
        num_needed=needed,
        chance_ratio=chance,
        tie_ns=last.tie,
        largest_ns=None if largest is None else int(last.delay[largest]),
        largest_place=None if largest is None else _place(meeting, own, int(last.row[largest])),
        spread_ns=float(np.median(np.abs(delay - np.median(delay)))) / _MAD_OF_NORMAL if delay.size else None,
        ranks=tuple(ranks),
    )
    return replace(found, sentence=_sentence(found, num_steps))


def _chance(meeting: Meeting, last: LastArrivals, ranks: Sequence[Lateness]) -> tuple[float | None, int | None]:
    """How often chance makes any rank look as bad as the worst one, and which that is; ``None`` without arrivals."""
    counted = np.flatnonzero(last.is_independent)
    if not counted.size:
        return None, None
    places = np.zeros(last.row.size, dtype=np.int64)
    places[counted] = _places(last.delay[counted])
    last_rank = meeting.rows.rank[last.row]
    chance, worst = 1.0, None
    for rank in (lateness.rank for lateness in ranks if lateness.num_independent):
        there = _members(meeting, rank)
        there = there[last.is_independent[there]]
        share = 1 / meeting.arrivals.num_members[there]
        tail = len(ranks) * chance_of_sum(places[there], share, last_rank[there] == rank)
        if worst is None or tail < chance:
            chance, worst = min(1.0, tail), rank
    return chance, worst


def _members(meeting: Meeting, rank: int) -> Int64Array:
    """Numbers of the matched collectives of which a rank is a member."""
    collective = meeting.matches.collective[meeting.of_rank(rank)]
    return np.asarray(collective[collective != ABSENT], dtype=np.int64)


def _places(values: Int64Array) -> Int64Array:
    """Twice the place of each value by size, from 1 on; equal values share the mean of their places."""
    _, which, count = np.unique(values, return_inverse=True, return_counts=True)
    before = np.cumsum(count) - count
    return np.asarray((2 * before + count + 1)[which.ravel()], dtype=np.int64)


def _num_needed(num_ranks: int, share: float) -> int:
    """How many independent arrivals, all of one rank, chance gives rarely enough."""
    return math.ceil(math.log(SIGNIFICANCE / num_ranks) / math.log(share)) if share < 1 else 0


def _place(meeting: Meeting, own: OwnTimes, row: int) -> Place | None:
    """The own time ahead of a row."""
    rows, step = meeting.rows, int(meeting.rows.step[row])
    start = int(rows.start[row])
    if step == NO_STEP:
        return None
    return Place(rank=int(rows.rank[row]), step=step, start_ns=start - int(own.own[row]), end_ns=start)


def _sentence(found: Stragglers, num_steps: int) -> str:
    lateness = next((one for one in found.ranks if one.rank == found.rank), None)
    if lateness is None:
        return (
            f"No straggler: at all {format_count(found.num_collectives)} collectives the last two ranks arrive within "
            f"{format_ns(found.tie_ns)} of each other."
        )
    steps = max(num_steps, 1)
    fact = (
        f"late by {format_ns(lateness.late_ns / steps)} a step in sum ({_causes(lateness, steps)}), last at "
        f"{format_count(lateness.num_last)} of {format_count(found.num_collectives)} "
        f"collective{'' if found.num_collectives == 1 else 's'}"
    )
    own, others = lateness.num_independent, found.num_independent - lateness.num_independent
    delays = (
        f"That goes back to {format_count(own)} delay{'' if own == 1 else 's'} of its own, "
        f"{format_ns(lateness.delay_ns / steps)} a step; other ranks have {format_count(others) if others else 'none'}"
    )
    if found.verdict is StragglerVerdict.STRAGGLER:
        return f"Rank {found.rank} is a straggler: {fact}. {delays}; {_odds(found)}."
    if found.verdict is StragglerVerdict.WITHIN_NOISE:
        return f"No straggler: within noise. Rank {found.rank} was {fact}. {delays}; {_odds(found)}."
    return (
        f"Too few delays to tell a straggler from chance. In these steps rank {found.rank} was {fact}. {delays}; "
        f"{found.num_needed} of one rank are needed: profile more steps."
    )


def _odds(found: Stragglers) -> str:
    chance, least = found.chance_ratio or 0.0, SIGNIFICANCE / 10
    how_often = f"less than {format_ratio(least)}" if chance < least else format_ratio(chance)
    return f"by number and size, chance gives as much in {how_often} of runs"


def extra_times(lateness: Lateness) -> dict[str, int]:
    """What the rank had more of than the rank before it, ahead of the collectives at which it was late, nanoseconds.

    The parts add up to its lateness: ``compute``, ``copy``, ``comm`` (collectives of other groups), ``host_bound``,
    ``rest``, and ``began``: how much later its own time began.
    """
    own, before = lateness.own, lateness.before
    return {
        "compute": own.compute_ns - before.compute_ns,
        "copy": own.copy_ns - before.copy_ns,
        "comm": own.comm_ns - before.comm_ns,
        "host_bound": (own.host_bound_ns or 0) - (before.host_bound_ns or 0),
        "rest": own.rest_ns - before.rest_ns,
        "began": lateness.began_ns,
    }


def _causes(lateness: Lateness, steps: int) -> str:
    """What the rank had more of than the rank before it, most first."""
    idle = "held back after launch" if lateness.own.host_bound_ns is not None else "in no operator"
    words = {
        "compute": "more compute",
        "copy": "more copying",
        "comm": "more in collectives of other groups",
        "host_bound": "more waiting for its host",
        "rest": f"more {idle}",
        "began": "begun later",
    }
    extra = extra_times(lateness)
    listed = [(time, words[name]) for name, time in extra.items() if time >= _WORTH_NAMING * lateness.late_ns]
    return ", ".join(f"{format_ns(time / steps)} {text}" for time, text in sorted(listed, reverse=True))
