"""Which rows of communication are one collective.

A collective is matched on (member ranks, group name, Seq, collective name). Where Seq is absent, by order within
(member ranks, group name) of a step, checked on name, element type and element counts, and on time: all members run
at one moment. Where ranks have different numbers of rows, those that look alike and end together are one; then order
counts from the end. What cannot be matched is listed, never paired by force.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

import numpy as np
from msgspec import Struct

from zerotrace.analysis.clocks import HostClocks, end_differences, hosts_of, measure, slack, vote
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.grouping import combined, extremes, medians, numbered
from zerotrace.analysis.groups import Groups, find_groups
from zerotrace.analysis.leftovers import match_by_ends, match_from_the_end
from zerotrace.analysis.pairing import Candidates, by_seq, candidates, in_order, plausible
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray


class Reason(IntEnum):
    """Why a row has no partner."""

    MATCHED = 0
    NO_PARTNER = 1
    """No row of another member is of the same collective: records were lost, or windows differ."""
    APART = 2
    """The row that order pairs it with runs at another time."""
    NOT_A_MEMBER = 3
    """The row's rank is no member of its group: ranks were mixed up."""
    PEERS_MISSING = 4
    """The group's other members are not in the run."""
    UNTOLD = 5
    """The trace does not tell with whom: groups of equal name and size, or a transfer without its other side."""


class Matches(Struct, frozen=True, eq=False):
    """Which rows are one collective.

    Attributes:
        collective: shape ``(num_rows,)``; number of the collective of each row, in the order of their starts,
            :data:`ABSENT` for unmatched rows.
        by_order: shape ``(num_rows,)``; whether it was matched without Seq.
        reason: shape ``(num_rows,)``; a :class:`Reason`.
        apart_ns: rank -> how far its rows that are :attr:`Reason.APART` end from those of the lowest rank, the median.
        groups: process groups.
        clocks: the hosts' clocks.
    """

    collective: Int64Array
    by_order: BoolArray
    reason: Int64Array
    apart_ns: Mapping[int, float]
    groups: Groups
    clocks: HostClocks

    @property
    def count(self) -> int:
        """Number of matched collectives."""
        return int(self.collective.max(initial=ABSENT)) + 1


def match(rows: CollectiveRows, hosts: Mapping[int, str | None]) -> Matches:
    """Finds the rows that are one collective.

    Args:
        rows: rows of all ranks, each rank's in the order of start.
        hosts: name of each rank's host; ``None`` where it is not known.
    """
    groups = find_groups(rows)
    own = candidates(rows, groups)
    search = _Search(own, groups)
    search.pair_by_seq()
    first, tentative = search.by_order(own, per_step=True)
    certain = search.with_tentative(first, tentative)
    clocks = measure(hosts_of(hosts), own, certain)
    if not clocks.known.all():
        clocks = vote(clocks, own)
    shared, slack_ns = own.earlier_by(clocks.of_rows(own.rank)), slack(clocks, own, certain)
    search.pair(first, np.where(plausible(shared, first, tentative, slack_ns), tentative, ABSENT))
    search.reject(first, tentative, shared)
    rest, key = search.by_order(shared, per_step=False)
    search.pair(rest, np.where(plausible(shared, rest, key, slack_ns), key, ABSENT))
    left = search.left(~own.host)
    search.pair(left, match_by_ends(shared, left, groups, slack_ns) if left.size else left)
    left = search.left((own.seq == ABSENT) & ~groups.crowded[groups.of_row])
    search.pair(left, match_from_the_end(shared, left, slack_ns) if left.size else left)
    return search.result(shared, clocks)


class _Search:
    """Keys of collectives, found pass by pass: each looks at what those before it have left."""

    def __init__(self, rows: Candidates, groups: Groups) -> None:
        self.rows, self.groups = rows, groups
        self.num_here = groups.num_here[groups.of_row]
        self.reason = np.full(rows.rank.size, int(Reason.NO_PARTNER), dtype=np.int64)
        size = groups.size[groups.of_row]
        self.reason[(self.num_here < 2) & (size != 1)] = Reason.PEERS_MISSING
        self.reason[groups.one_sided | groups.crowded[groups.of_row]] = Reason.UNTOLD
        self.reason[groups.foreign] = Reason.NOT_A_MEMBER
        self.key: Int64Array = np.full(rows.rank.size, ABSENT, dtype=np.int64)
        self.apart_ns: dict[int, float] = {}
        self._count = 0
        alone = np.flatnonzero((size == 1) & ~groups.foreign)  # a group of one waits for nobody
        self.pair(alone, np.arange(alone.size), at_least=1)
        hopeless = (self.num_here < 2) | groups.one_sided | groups.foreign
        self._searching = np.flatnonzero(~hopeless & (self.key == ABSENT))

    def left(self, wanted: BoolArray) -> Int64Array:
        """Rows without a partner that may have one, among those that are wanted."""
        free = (self.key == ABSENT)[self._searching] & wanted[self._searching]
        left: Int64Array = self._searching[free]
        return left

    def pair_by_seq(self) -> None:
        """Pairs rows with Seq."""
        left = self.left((self.rows.seq != ABSENT) & ~self.groups.crowded[self.rows.group])
        self.pair(left, by_seq(self.rows, left))
        self.by_seq = self.key != ABSENT

    def by_order(self, rows: Candidates, *, per_step: bool) -> tuple[Int64Array, Int64Array]:
        """Rows without Seq that are left, and their keys by order."""
        left = self.left((rows.seq == ABSENT) & ~self.groups.crowded[rows.group])
        block = combined(rows.group[left], rows.step[left]) if per_step else rows.group[left]
        return left, in_order(rows, left, block, self.num_here[left])

    def with_tentative(self, left: Int64Array, key: Int64Array) -> Int64Array:
        """Keys that are certain, and those of ``left`` that are not yet."""
        both: Int64Array = self.key.copy()
        both[left] = np.where(key == ABSENT, ABSENT, key + self._count)
        return both

    def reject(self, left: Int64Array, key: Int64Array, shared: Candidates) -> None:
        """Says of rows that order would have paired by ``key``, and time did not, how far they are apart."""
        refused = np.where(self.key[left] == ABSENT, key, ABSENT)
        self.reason[left[refused != ABSENT]] = Reason.APART
        ends = end_differences(shared.rank[left], shared.end[left], refused)
        ranks, which = np.unique(shared.rank[left[ends.row]], return_inverse=True)
        apart = medians(which.reshape(-1), ends.difference, ranks.size)
        self.apart_ns = dict(zip(ranks.tolist(), apart.tolist()))

    def pair(self, left: Int64Array, key: Int64Array, at_least: int = 2) -> None:
        """Takes the keys of ``left`` that enough rows share."""
        paired = np.flatnonzero(key != ABSENT)
        which, count = numbered(key[paired])
        enough = np.bincount(which, minlength=count) >= at_least
        taken = paired[enough[which]]
        self.key[left[taken]] = which[enough[which]] + self._count
        self.reason[left[taken]] = Reason.MATCHED
        self._count += count

    def result(self, shared: Candidates, clocks: HostClocks) -> Matches:
        """The collectives in the order of their starts, on clocks measured with all of them."""
        matched = np.flatnonzero(self.key != ABSENT)
        which, count = numbered(self.key[matched])
        earliest, _ = extremes(which, shared.start[matched], count)
        rank, _ = extremes(which, shared.rank[matched], count)
        place = np.empty(count, dtype=np.int64)
        place[np.lexsort((rank, earliest))] = np.arange(count)
        collective = np.full(self.key.size, ABSENT, dtype=np.int64)
        collective[matched] = place[which]
        return Matches(
            collective=collective,
            by_order=(collective != ABSENT) & ~self.by_seq,
            reason=self.reason,
            apart_ns=self.apart_ns,
            groups=self.groups,
            clocks=measure(clocks, self.rows, collective),
        )
