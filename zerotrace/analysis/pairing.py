"""Pairs by Seq and by order, and the test whether rows that order pairs can be one collective at all."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.grouping import combined, extremes, is_first, numbered, ordinal
from zerotrace.analysis.groups import Groups
from zerotrace.ingest.columns import Texts
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray

#: How far times of one moment may differ on the devices of one host.
JITTER_NS = 5_000

#: And when threads of the host notice it.
HOST_JITTER_NS = 100_000

# A row of equal looks so much nearer to the end of another shows that order has paired the wrong ones.
_NEARER = 4

# Members put in, or get out, as many elements as they like; or only the root does.
_UNEVEN = re.compile(r"all_?to_?all|^_?(gather|scatter)")
# The root, or the sender, may be done before the others have come.
_ROOTED = re.compile(r"^_?(broadcast|reduce|gather|scatter|send|recv|recvAnySource|coalesced)$", re.IGNORECASE)


class Candidates(Struct, frozen=True, eq=False):
    """What matching looks at, one entry a row of communication.

    Attributes:
        rank: global rank.
        group: process group.
        step: step in which it was launched.
        seq: sequence number; absent where unknown, or where it is not the same on all members.
        kind: collective, a send and its receive being one.
        look: kind, element type and, where all members must have the same, element counts.
        start: start on a clock that all ranks share.
        end: end on that clock.
        ends_together: whether no member can be done before all have come.
        host: whether the row is host time, whose ends tell when a thread was woken.
    """

    rank: Int64Array
    group: Int64Array
    step: Int64Array
    seq: Int64Array
    kind: Int64Array
    look: Int64Array
    start: Int64Array
    end: Int64Array
    ends_together: BoolArray
    host: BoolArray

    def earlier_by(self, offset: Int64Array) -> Candidates:
        """The same rows with ``offset``, one entry a row, taken from their times."""
        return replace(self, start=self.start - offset, end=self.end - offset)


def candidates(rows: CollectiveRows, groups: Groups) -> Candidates:
    """Looks at rows on their ranks' own clocks."""
    kind = rows.name.map(lambda name: "send_recv" if name in ("send", "recv") else name)
    even = ~kind.where(lambda name: bool(_UNEVEN.search(name)))
    look = combined(
        kind.codes,
        rows.dtype.codes,
        np.where(even, rows.in_elements, ABSENT),
        np.where(even, rows.out_elements, ABSENT),
    )
    return Candidates(
        rank=rows.rank,
        group=groups.of_row,
        step=rows.step,
        seq=np.where(groups.counts_alike, rows.seq, ABSENT),
        kind=kind.codes.astype(np.int64),
        look=look,
        start=rows.start,
        end=rows.end,
        ends_together=ends_together(rows.name),
        host=np.asarray(rows.device == ABSENT, dtype=bool),
    )


def ends_together(names: Texts) -> BoolArray:
    """Whether no member can be done before all have come; false where a root or a sender may. Shape ``(n,)``."""
    return ~names.where(lambda name: bool(_ROOTED.search(name)))


def by_seq(rows: Candidates, left: Int64Array) -> Int64Array:
    """A key of rows with Seq: equal for those of one collective, absent for those that it does not tell apart.

    Args:
        rows: all rows.
        left: those that look for partners, all with a Seq; each rank's in the order of start.

    Returns:
        One entry for each of ``left``.
    """
    key = combined(rows.group[left], rows.seq[left], rows.kind[left])
    position = ordinal(combined(key, rows.rank[left]))
    if not position.any():
        return key
    # Several of one Seq, coalesced ones say: the n-th with the n-th, where all ranks have as many that look alike.
    which, count = numbered(key)
    low, high = extremes(*_counts(which, rows.rank[left]), count)
    key = combined(key, position)
    sound = (low == high)[which] & _alike(key, rows.look[left])
    return np.where(sound | (high == 1)[which], key, ABSENT)


def in_order(rows: Candidates, left: Int64Array, block: Int64Array, num_members: Int64Array) -> Int64Array:
    """A key of rows by their order: the n-th of each rank in a block, where all members have equally many.

    Args:
        rows: all rows.
        left: those that look for partners; each rank's in the order of start.
        block: group and stretch of time of each of ``left``.
        num_members: for each of ``left``, how many ranks its group has.

    Returns:
        One entry for each of ``left``; absent where ranks have different numbers of rows, or the n-th look different.
    """
    which, count = numbered(block)
    pair_block, pair_count = _counts(which, rows.rank[left])
    low, high = extremes(pair_block, pair_count, count)
    even = (low == high)[which] & (np.bincount(pair_block, minlength=count)[which] == num_members)
    key = combined(which, ordinal(combined(which, rows.rank[left])))
    key[~even] = ABSENT
    alike = np.zeros(left.size, dtype=bool)
    alike[even] = _alike(key[even], rows.look[left[even]])
    return np.where(alike, key, ABSENT)


def plausible(rows: Candidates, left: Int64Array, key: Int64Array, slack_ns: int) -> BoolArray:
    """Which keys of order can be one collective by their times, on a clock that all ranks share.

    All members run at one moment, for half of the shortest duration at least (host threads: for any time); and no
    row of another key looks the same and ends clearly nearer.

    Args:
        rows: all rows.
        left: those that ``key`` pairs or might have paired.
        key: as :func:`in_order` gives it.
        slack_ns: how far times of one moment may differ between ranks.

    Returns:
        One entry for each of ``left``; false for those without a key.
    """
    paired = np.flatnonzero(key != ABSENT)
    which, count = numbered(key[paired])
    row = left[paired]
    some = row[_any_of(which, count)]
    wrong = ~run_together(rows, row, which, count, slack_ns) & rows.ends_together[some]
    wrong |= _contradicted(rows, left, paired, which, count, slack_ns)
    sound = np.zeros(left.size, dtype=bool)
    sound[paired] = ~wrong[which]
    return sound


def run_together(rows: Candidates, row: Int64Array, which: Int64Array, count: int, slack_ns: int) -> BoolArray:
    """Groups of rows all of which run at one moment, for half of the shortest duration at least; one entry a group.

    Args:
        rows: all rows, on a clock that all ranks share.
        row: those that are grouped.
        which: group of each, from 0 on.
        count: number of groups.
        slack_ns: as in :func:`plausible`.
    """
    _, arrival = extremes(which, rows.start[row], count)
    first_end, _ = extremes(which, rows.end[row], count)
    shortest, _ = extremes(which, (rows.end - rows.start)[row], count)
    host = np.zeros(count, dtype=bool)
    host[which] = rows.host[row]
    needed = np.where(host, -HOST_JITTER_NS, shortest // 2 - slack_ns)
    return np.asarray(first_end - arrival >= needed, dtype=bool)


def _contradicted(
    rows: Candidates, left: Int64Array, paired: Int64Array, which: Int64Array, count: int, slack_ns: int
) -> BoolArray:
    """Keys of which a row and that of the lowest rank end far apart, and one of them beside the other's neighbour."""
    before, behind = _neighbours(rows, left)
    row = left[paired]
    order = np.lexsort((rows.rank[row], which))
    lowest = order[is_first(which[order])][which]  # of each row's key, the row of the lowest rank
    end, reference = rows.end[row], rows.end[row[lowest]]
    distance = np.abs(end - reference)
    other = np.full(row.size, np.iinfo(np.int64).max)
    for neighbour in (before[paired], behind[paired]):
        np.minimum(other, np.abs(neighbour - reference), out=other)
        np.minimum(other, np.abs(neighbour[lowest] - end), out=other)
    bad = (distance > slack_ns) & (other < distance // _NEARER) & ~rows.host[row] & rows.ends_together[row]
    wrong = np.zeros(count, dtype=bool)
    wrong[which[bad]] = True
    return wrong


def _neighbours(rows: Candidates, left: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Ends of the rows before and behind each one, among those of its rank and group that look the same."""
    line = combined(rows.group[left], rows.look[left], rows.rank[left])
    order = np.lexsort((rows.end[left], line))
    fresh = is_first(line[order])
    ends = rows.end[left[order]]
    far = np.iinfo(np.int64).max // 4
    before, behind = np.full(left.size, -far), np.full(left.size, far)
    before[order[1:]] = np.where(fresh[1:], -far, ends[:-1])
    behind[order[:-1]] = np.where(fresh[1:], far, ends[1:])
    return before, behind


def _counts(which: Int64Array, rank: Int64Array) -> tuple[Int64Array, Int64Array]:
    """For each pair of block and rank that occurs: the block, and how many rows it has."""
    pair, num_pairs = numbered(combined(which, rank))
    block = np.zeros(num_pairs, dtype=np.int64)
    block[pair] = which
    return block, np.bincount(pair, minlength=num_pairs)


def _alike(key: Int64Array, look: Int64Array) -> BoolArray:
    """Whether all rows of a row's key look the same."""
    which, count = numbered(key)
    low, high = extremes(which, look, count)
    return np.asarray((low == high)[which], dtype=bool)


def _any_of(which: Int64Array, count: int) -> Int64Array:
    """The position of some entry of each group."""
    found = np.zeros(count, dtype=np.int64)
    found[which] = np.arange(which.size)
    return found
