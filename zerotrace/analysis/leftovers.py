"""Partners for rows that neither Seq nor order could pair: records were lost, or windows begin and end differently."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.grouping import combined, extremes, is_first, numbered, ordinal
from zerotrace.analysis.groups import Groups
from zerotrace.analysis.pairing import Candidates, run_together
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray

#: Ends of one collective on several devices lie within this, or within a part of its duration.
END_TOLERANCE_NS = 100_000
_END_TOLERANCE_RATIO = 0.1

# Ends that lie nearer than this to each other are tried as one collective first; then half of it, and so on.
_WIDEST_NS = 1_600_000
_NARROWEST_NS = 500
_FAR = np.iinfo(np.int64).max // 4


class _Line(Struct, frozen=True, eq=False):
    """Rows that look alike, in the order of their ends, one line after the other.

    Attributes:
        row: the rows.
        before: how far each ends behind the one before it in its line.
        after: how far the one behind it ends behind it.
    """

    row: Int64Array
    before: Int64Array
    after: Int64Array

    def take(self, chosen: BoolArray) -> _Line:
        return _Line(self.row[chosen], self.before[chosen], self.after[chosen])


def match_by_ends(rows: Candidates, left: Int64Array, groups: Groups, slack_ns: int) -> Int64Array:
    """A key of rows that look alike and end together, clearly nearer to each other than to any other such row.

    A collective ends on all members at one moment. Rows of equal looks are put in the order of their ends and cut
    where the distance between two is large, then where it is half of that, and so on; a piece in which no rank
    occurs twice is one collective, if all its members ran at one moment.

    Args:
        rows: all rows, on a clock that all ranks share.
        left: those that look for partners, of devices alone: a host thread notices an end when it is woken.
        groups: the process groups.
        slack_ns: how far times of one moment may differ between ranks.

    Returns:
        One entry for each of ``left``; absent for those that remain alone.
    """
    line = combined(rows.group, rows.seq, rows.look)
    among = np.flatnonzero(np.isin(line, line[left]))  # paired ones too: they may be nearer
    among = among[np.lexsort((rows.end[among], line[among]))]
    before = np.diff(rows.end[among], prepend=rows.end[among[:1]])
    before[is_first(line[among])] = _FAR
    view = _Line(among, before, np.append(before[1:], _FAR))
    free = np.zeros(rows.rank.size, dtype=bool)
    free[left] = True
    key = np.full(rows.rank.size, ABSENT, dtype=np.int64)
    count, width = 0, _WIDEST_NS
    while width > _NARROWEST_NS and view.row.size:
        first = np.flatnonzero(view.before > width)
        size = np.diff(first, append=view.row.size)
        num_free = np.add.reduceat(free[view.row].astype(np.int64), first)
        good = _are_collectives(rows, view, first, size, groups, slack_ns) & (num_free == size)
        taken = view.row[np.repeat(good, size)]
        key[taken] = np.repeat(count + np.arange(int(good.sum())), size[good])
        free[taken] = False
        count += int(good.sum())
        view = view.take(np.repeat(~good & (num_free > 0), size))
        width //= 2
    return key[left]


def match_from_the_end(rows: Candidates, left: Int64Array, slack_ns: int) -> Int64Array:
    """A key of rows by their order from the end: what differs at the edge of a window is what came first.

    Goes backwards as long as the rows look alike and run at one moment.

    Args:
        rows: all rows, on a clock that all ranks share.
        left: those that look for partners; each rank's in the order of start.
        slack_ns: how far times of one moment may differ between ranks.

    Returns:
        One entry for each of ``left``; absent for those that remain alone.
    """
    which, num_blocks = numbered(rows.group[left])
    position = ordinal(combined(which, rows.rank[left])[::-1])[::-1]
    key = combined(which, position)
    number, count = numbered(key)
    block = np.zeros(count, dtype=np.int64)
    place = np.zeros(count, dtype=np.int64)
    block[number], place[number] = which, position
    members = np.bincount(number, minlength=count)
    ranks = np.bincount(_distinct(which, rows.rank[left]), minlength=num_blocks)
    low, high = extremes(number, rows.look[left], count)
    sound = (low == high) & (members == ranks[block]) & (members > 1)
    sound &= run_together(rows, left, number, count, slack_ns)
    failed = np.full(num_blocks, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(failed, block[~sound], place[~sound])
    return np.where((place < failed[block])[number], key, ABSENT)


def _are_collectives(
    rows: Candidates, view: _Line, first: Int64Array, size: Int64Array, groups: Groups, slack_ns: int
) -> BoolArray:
    """Which pieces of a line can be one collective.

    Args:
        rows: all rows.
        view: rows in lines.
        first: place of the first row of each piece.
        size: how many rows each has.
        groups: the process groups.
        slack_ns: how far times of one moment may differ between ranks.
    """
    last = first + size - 1
    end, group = rows.end[view.row], rows.group[view.row[first]]
    spread = end[last] - end[first]
    shortest = np.minimum.reduceat(end - rows.start[view.row], first)
    stated, crowded = groups.size[group], groups.crowded[group]
    good = (size > 1) & np.where(crowded, size == stated, (stated == ABSENT) | (size <= stated))
    good &= spread <= np.maximum(END_TOLERANCE_NS, _END_TOLERANCE_RATIO * shortest)
    good &= 2 * spread < np.minimum(view.before[first], view.after[last])
    # the few pieces that are left are looked at more closely
    number = np.flatnonzero(good)
    row, which = view.row[np.repeat(good, size)], np.repeat(np.arange(number.size), size[number])
    alone = np.bincount(_distinct(which, rows.rank[row]), minlength=number.size) == size[number]
    good[number] = alone & run_together(rows, row, which, number.size, slack_ns)
    return np.asarray(good, dtype=bool)


def _distinct(which: Int64Array, rank: Int64Array) -> Int64Array:
    """The group of each distinct pair of group and rank."""
    width = int(rank.max(initial=0)) + 1
    return np.unique(which * width + rank) // width
