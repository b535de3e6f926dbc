"""Ranks that are late together: a slow node, which no count of last arrivals shows, since its ranks take turns.

At each collective the widest gap between two arrivals splits the members into early and late ones. Two questions are
asked of a set of k ranks that is late more than once, both with :func:`zerotrace.analysis.chance.chance_of_sum` over
the splits whose gap is new, ranked by the gap's delay.

*Is it by chance that it is just this set?* If ranks are alike, each order of arrival is as likely as any other, however
wide the gaps: a split that puts k of n members behind its gap has a given set there with chance 1/C(n, k). That is
multiplied by C(n, k) sets, and by the n − 2 sizes that a set may have (Bonferroni).

*Does each of them belong to it?* Beside a rank that is slow by itself, any other is behind the gap now and then. If one
of the set was like those outside, it would be behind the gap as often as they are: where j of it and them are, with
chance j of all their number. That is multiplied by their number, since any of them might have been in its place; the
member for which chance explains most decides.

The larger of both is the chance of the group.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from zerotrace.analysis.across import Meeting
from zerotrace.analysis.chance import SIGNIFICANCE, chance_of_sum, largest, log_num_sets, places_of
from zerotrace.analysis.gaps import Gaps, gaps, on_one_clock
from zerotrace.analysis.lateness import own_time_sums
from zerotrace.analysis.own_time import OwnTimes
from zerotrace.analysis.splits import Splits
from zerotrace.analysis.straggler_words import group_words
from zerotrace.ingest.steps import NO_STEP
from zerotrace.intervals import Int64Array
from zerotrace.model import LateGroup, Place
from zerotrace.tables import BoolArray

#: Sets that are looked at, those with the most delay first.
_MOST_SETS = 16

#: Members of a set for which chance is worked out, those that are least in it.
_MOST_MEMBERS = 8

#: Others that are fewer than this part of all are early; the group is not late.
_FEW = 1 / 3


class GroupArrivals(Struct, frozen=True, eq=False):
    """A group that is late together, and where. Columns have one entry a collective.

    Attributes:
        group: its figures.
        gaps: what lies between the first of the group and the last of the others.
        is_late: where all of the group start after all others, by more than a tie.
        is_independent: where the delay is new as well.
    """

    group: LateGroup
    gaps: Gaps
    is_late: BoolArray
    is_independent: BoolArray


class _Presence(Struct, frozen=True, eq=False):
    """How the ranks of a set take part. Columns have one entry a collective.

    Attributes:
        is_member: rows of the order that are theirs, shape ``(num_rows,)``.
        whole: whether all of them take part, and others too.
        behind: how many of them are behind the gap.
    """

    is_member: BoolArray
    whole: BoolArray
    behind: Int64Array


def find_late_groups(
    meeting: Meeting, own: OwnTimes, splits: Splits, tie: int, hosts: Mapping[int, str | None]
) -> tuple[GroupArrivals, ...]:
    """The groups that are late together beyond chance, the one with the most delay first.

    Args:
        meeting: matched collectives of all ranks.
        own: own times ahead of ``meeting.rows``.
        splits: those of ``meeting``.
        tie: how far arrivals may be apart and come together, nanoseconds.
        hosts: name of each rank's host; ``None`` where it is not known.
    """
    found = []
    for ranks in _candidates(meeting, splits):
        there = _presence(meeting, splits, ranks)
        chance = _chance(meeting, own, splits, there, ranks.size)
        if chance <= SIGNIFICANCE:
            found.append(_arrivals(meeting, own, splits, tie, there, ranks, hosts, chance))
    return tuple(sorted(found, key=lambda one: (-one.group.delay_ns, one.group.ranks)))


def _candidates(meeting: Meeting, splits: Splits) -> list[Int64Array]:
    """Sets of several ranks that are behind the gap more than once, and are not all members."""
    usable = np.flatnonzero(splits.counts & (splits.num_late > 1))
    _, first, which, count = np.unique(splits.key[usable], return_index=True, return_inverse=True, return_counts=True)
    delay = np.bincount(which.ravel(), weights=splits.gaps.delay[usable], minlength=count.size)
    again = np.flatnonzero(count > 1)
    most = again[np.lexsort((first[again], -delay[again]))][:_MOST_SETS]
    return [splits.ranks_behind(one, meeting.rows.rank) for one in usable[first[most]].tolist()]


def _presence(meeting: Meeting, splits: Splits, ranks: Int64Array) -> _Presence:
    order = splits.order
    is_member = np.isin(meeting.rows.rank[order.rows], ranks)
    inside = np.add.reduceat(is_member.astype(np.int64), order.first)
    behind = np.add.reduceat((is_member & splits.is_behind).astype(np.int64), order.first)
    return _Presence(is_member, (inside == ranks.size) & (order.size > ranks.size), behind)


def _chance(meeting: Meeting, own: OwnTimes, splits: Splits, there: _Presence, num_ranks: int) -> float:
    """How often chance alone makes some set of ranks look as bad, as the module's words define it."""
    seen = np.flatnonzero(_apart(meeting, own, splits.gaps, there.whole & splits.counts))
    return max(_chance_of_set(splits, there, seen, num_ranks), _chance_of_members(meeting, splits, there, seen))


def _chance_of_set(splits: Splits, there: _Presence, seen: Int64Array, num_ranks: int) -> float:
    sized = seen[splits.num_late[seen] == num_ranks]
    if not sized.size:
        return 1.0
    sized = sized[largest(splits.gaps.delay[sized])]
    members = splits.order.size[sized]
    share = np.exp([-log_num_sets(size, num_ranks) for size in members.tolist()])
    tail = chance_of_sum(places_of(splits.gaps.delay[sized]), share, there.behind[sized] == num_ranks)
    most = int(members.max())
    tests = log_num_sets(most, num_ranks) + math.log(max(most - 2, 1))
    return math.exp(min(0.0, math.log(tail) + tests)) if tail > 0 else 0.0


def _chance_of_members(meeting: Meeting, splits: Splits, there: _Presence, seen: Int64Array) -> float:
    """The same for the one of them that is least in it, beside those outside."""
    order, delay = splits.order, splits.gaps.delay[seen]
    collective = np.repeat(np.arange(order.size.size), order.size)
    is_seen = np.zeros(order.size.size, dtype=bool)
    is_seen[seen] = True
    mine = np.flatnonzero(there.is_member & is_seen[collective])
    mine = mine[np.lexsort((meeting.rows.rank[order.rows[mine]], collective[mine]))]
    behind = splits.is_behind[mine].reshape(seen.size, -1)  # a line a collective, a column a rank of the set
    alike = order.size[seen] - behind.shape[1] + 1  # those outside, and the one
    late_outside = splits.num_late[seen] - there.behind[seen]
    share = (late_outside[:, None] + behind) / alike[:, None]
    places = places_of(delay)[:, None]
    spread = np.sqrt((places**2 * share * (1 - share)).sum(axis=0))
    surplus = (places * (behind - share)).sum(axis=0) / np.where(spread > 0, spread, np.inf)
    _, weakest = np.unique(surplus, return_index=True)
    worst = 0.0
    for column in weakest[:_MOST_MEMBERS].tolist():
        telling = np.flatnonzero((share[:, column] > 0) & (share[:, column] < 1))
        telling = telling[largest(delay[telling])]
        tail = chance_of_sum(places_of(delay[telling]), share[telling, column], behind[telling, column])
        worst = max(worst, tail)
    return min(1.0, float(alike.max()) * worst)


def _apart(meeting: Meeting, own: OwnTimes, found: Gaps, wanted: BoolArray) -> BoolArray:
    """Of the collectives that are wanted, those whose own time begins after the one before it."""
    here = np.flatnonzero(wanted)
    start = on_one_clock(meeting, meeting.rows.start)[found.row[here]]
    by_time = np.argsort(start, kind="stable")
    here, start = here[by_time], start[by_time]
    apart = np.ones(here.size, dtype=bool)
    apart[1:] = (start - own.own[found.row[here]])[1:] >= start[:-1]
    kept = np.zeros(wanted.size, dtype=bool)
    kept[here[apart]] = True
    return kept


def _arrivals(
    meeting: Meeting,
    own: OwnTimes,
    splits: Splits,
    tie: int,
    there: _Presence,
    ranks: Int64Array,
    hosts: Mapping[int, str | None],
    chance: float,
) -> GroupArrivals:
    """The figures of a group, over all collectives at which all of it come last, wherever their widest gap is."""
    order = splits.order
    at = order.first + order.size - np.where(there.whole, ranks.size, 1)
    is_last = np.arange(order.rows.size) >= np.repeat(at, order.size)
    together = there.whole & (np.add.reduceat((there.is_member & is_last).astype(np.int64), order.first) == ranks.size)
    found = gaps(meeting, own, order, at, tie)
    is_late = together & found.is_late
    independent = _apart(meeting, own, found, together & found.is_new)
    late, own_rank = np.flatnonzero(is_late), meeting.rows.rank
    nothing = np.zeros(late.size, dtype=np.int64)
    (mine,), (before,) = (own_time_sums(own, rows[late], nothing, 1) for rows in (found.row, found.before))
    others = np.setdiff1d(own_rank[order.rows[np.repeat(is_late, order.size)]], ranks)
    new = np.flatnonzero(independent)
    on_hosts = _whole_hosts(ranks, hosts)
    group = LateGroup(
        name=group_words(ranks.tolist(), on_hosts),
        ranks=tuple(ranks.tolist()),
        others=tuple(others.tolist()),
        hosts=on_hosts,
        is_early=bool(others.size < _FEW * (ranks.size + others.size)),
        num_collectives=int(there.whole.sum()),
        num_late=int(late.size),
        num_independent=int(new.size),
        delay_ns=int(found.delay[new].sum()),
        late_ns=int(found.late[late].sum()),
        median_late_ns=float(np.median(found.late[late])),
        own=mine,
        before=before,
        began_ns=int(found.began[late].sum()),
        chance_ratio=chance,
        largest_place=_largest_place(meeting, own, found, new),
    )
    return GroupArrivals(group, found, is_late, independent)


def _whole_hosts(ranks: Int64Array, hosts: Mapping[int, str | None]) -> tuple[str, ...]:
    """The hosts whose ranks these are; none where there are other ranks on them, or a host is not known."""
    names = [hosts.get(rank) for rank in ranks.tolist()]
    known = tuple(dict.fromkeys(name for name in names if name is not None))
    on_them = sum(name in known for name in hosts.values())
    return known if None not in names and on_them == ranks.size else ()


def _largest_place(meeting: Meeting, own: OwnTimes, found: Gaps, new: Int64Array) -> Place | None:
    if not new.size:
        return None
    row = int(found.row[new[np.argmax(found.delay[new])]])
    return place_of(meeting, own, row)


def place_of(meeting: Meeting, own: OwnTimes, row: int) -> Place | None:
    """The own time ahead of a row; ``None`` where it is in no step."""
    rows, step, start = meeting.rows, int(meeting.rows.step[row]), int(meeting.rows.start[row])
    if step == NO_STEP:
        return None
    return Place(rank=int(rows.rank[row]), step=step, start_ns=start - int(own.own[row]), end_ns=start)
