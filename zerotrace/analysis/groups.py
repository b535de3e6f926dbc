"""Who takes part in a collective: process groups, and the two sides of a point-to-point transfer."""

from __future__ import annotations

import re

import numpy as np
from msgspec import Struct

from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.grouping import combined, numbered
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray

# torch writes at most 30 members: the first 29, an ellipsis, and the last.
_MEMBERS = re.compile(r"^\[([0-9,\s]*)\]")

# A number of more digits is no rank, and of thousands of them none that Python would read.
_MAX_DIGITS = 10


class Groups(Struct, frozen=True, eq=False):
    """The process groups of a run, and the ranks of the run that belong to each.

    A group is told by its member ranks, its name and its size; rows without any of these are one group, of all ranks.
    A point-to-point transfer is a group of its two sides within that.

    Attributes:
        of_row: shape ``(num_rows,)``; group of each row, from 0 on.
        ranks: for each group, those of the run that belong to it: its members as far as they are there, else every
            rank that has a row of it.
        size: for each group, how many members it has in all; absent where the trace does not say.
        crowded: for each group, whether more ranks have rows of it than it has members: several groups that the
            trace does not tell apart.
        foreign: shape ``(num_rows,)``; rows of a group of which their rank is no member.
        one_sided: shape ``(num_rows,)``; rows of point-to-point transfers that do not say with whom.
        counts_alike: shape ``(num_rows,)``; whether Seq is the same on all members: of transfers inside a larger group,
            each rank counts its own.
    """

    of_row: Int64Array
    ranks: tuple[frozenset[int], ...]
    size: Int64Array
    crowded: BoolArray
    foreign: BoolArray
    one_sided: BoolArray
    counts_alike: BoolArray

    @property
    def num_here(self) -> Int64Array:
        """For each group, how many of its members are in the run: of crowded ones, at most."""
        seen = np.array([len(ranks) for ranks in self.ranks], dtype=np.int64)
        return np.where(self.crowded, self.size, seen)


def find_groups(rows: CollectiveRows) -> Groups:
    """Tells the groups of rows of all ranks apart.

    Args:
        rows: rows of all ranks.
    """
    run = np.unique(rows.rank)
    stated = [_members(text) for text in rows.group.distinct]
    num_stated = np.array([*(ABSENT if m is None else len(m) for m in stated), ABSENT], dtype=np.int64)
    size = np.where(rows.size == ABSENT, num_stated[rows.group.codes], rows.size)
    is_send, is_recv = rows.name.where("send".__eq__), rows.name.where("recv".__eq__)
    point_to_point = is_send | is_recv
    src, dst = _sides(rows, stated, run, is_send, is_recv)
    of_row, count = numbered(combined(rows.group.codes, size, src, dst))
    first = np.zeros(count, dtype=np.int64)
    first[of_row] = np.arange(of_row.size)  # any row of the group will do
    pairs = np.unique(of_row * (int(run[-1]) + 1) + rows.rank)
    seen: list[set[int]] = [set() for _ in range(count)]
    for group, rank in (divmod(pair, int(run[-1]) + 1) for pair in pairs.tolist()):
        seen[group].add(rank)
    here = set(run.tolist())
    ranks, crowded, foreign = [], np.zeros(count, dtype=bool), np.zeros(len(rows), dtype=bool)
    group_size = np.where(point_to_point[first], 2, size[first])
    for group, row in enumerate(first.tolist()):
        code = int(rows.group.codes[row])
        members = None if code < 0 else stated[code]
        if point_to_point[row]:
            members = {int(src[row]), int(dst[row])} if members is None else members & {int(src[row]), int(dst[row])}
        ranks.append(frozenset(seen[group] if members is None else members & here))
        if members is not None and not seen[group] <= members:
            foreign |= (of_row == group) & ~np.isin(rows.rank, sorted(members))
        crowded[group] = members is None and ABSENT < group_size[group] < len(seen[group])
    return Groups(
        of_row=of_row,
        ranks=tuple(ranks),
        size=group_size,
        crowded=crowded,
        foreign=foreign,
        one_sided=point_to_point & ((src == ABSENT) | (dst == ABSENT)),
        counts_alike=~point_to_point | (size == 2),
    )


def _sides(
    rows: CollectiveRows, stated: list[set[int] | None], run: Int64Array, is_send: BoolArray, is_recv: BoolArray
) -> tuple[Int64Array, Int64Array]:
    """Sender and receiver of each row; absent for rows that are no transfer between two ranks.

    torch names the other side alone; the row's own rank is the one that it leaves out. Where it names neither, a
    group of two has one other member.
    """
    other = _other_of_two(rows, stated, run)
    src = np.where(is_send, np.where(rows.src == ABSENT, rows.rank, rows.src), ABSENT)
    src = np.where(is_recv, np.where(rows.src == ABSENT, other, rows.src), src)
    dst = np.where(is_recv, np.where(rows.dst == ABSENT, rows.rank, rows.dst), ABSENT)
    dst = np.where(is_send, np.where(rows.dst == ABSENT, other, rows.dst), dst)
    return src, dst


def _other_of_two(rows: CollectiveRows, stated: list[set[int] | None], run: Int64Array) -> Int64Array:
    """The one other member of each row's group; absent where there are more, or none is known."""
    other = np.full(len(rows), ABSENT, dtype=np.int64)
    for code, members in enumerate([*stated, set(run.tolist())]):
        if members is None or len(members) != 2:
            continue
        mine = rows.group.codes == (code if code < len(stated) else -1)
        low, high = sorted(members)
        other[mine & (rows.rank == low)], other[mine & (rows.rank == high)] = high, low
    return other


def _members(text: str) -> set[int] | None:
    """The ranks that a group lists; ``None`` where it lists none, or not all of them."""
    listed = _MEMBERS.match(text)
    numbers = [number for part in listed[1].split(",") if (number := part.strip())] if listed else []
    if not all(number.isdigit() and len(number) <= _MAX_DIGITS for number in numbers):
        return None
    return set(map(int, numbers)) or None
