"""Which rows of communication are one collective.

A collective is matched on (member ranks, group name, Seq, collective name). Where Seq is absent, by order within
(member ranks, group name) of a step, checked on name, dtype and element counts. What cannot be matched is listed,
never paired by force.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.ingest.columns import Texts
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray

#: Ends of one collective on two ranks of one host agree within this; used only where counts differ.
END_TOLERANCE_NS = 50_000


@dataclass(frozen=True, eq=False)
class Matches:
    """Which rows are one collective.

    Attributes:
        collective: shape ``(num_rows,)``; number of the collective of each row, :data:`ABSENT` for unmatched rows.
        by_order: whether any was matched by order, for want of Seq.
    """

    collective: Int64Array
    by_order: bool

    @property
    def count(self) -> int:
        """Number of matched collectives."""
        return int(self.collective.max(initial=ABSENT)) + 1


def match(rows: CollectiveRows, num_ranks: int) -> Matches:
    """Finds the rows that are one collective.

    Args:
        rows: rows of all ranks, each rank's in the order of start.
        num_ranks: ranks whose traces are there.
    """
    collective = np.full(len(rows), ABSENT, dtype=np.int64)
    has_seq = rows.seq != ABSENT
    if has_seq.any():
        found = _match_by_seq(rows.take(has_seq))
        collective[has_seq] = found
    count = int(collective.max(initial=ABSENT)) + 1
    without = np.flatnonzero(~has_seq)
    if without.size and num_ranks > 1:
        found = _match_by_order(rows.take(without), num_ranks)
        collective[without] = np.where(found == ABSENT, ABSENT, found + count)
    return Matches(collective, by_order=bool(without.size and (collective[without] != ABSENT).any()))


def _match_by_seq(rows: CollectiveRows) -> Int64Array:
    key = _combined(rows.group.codes, rows.seq, _without_direction(rows.name).codes, rows.src, rows.dst)
    # One row a rank: a second of the same key is no second collective, and is not paired.
    first = _first_of(_combined(key, rows.rank))
    return _numbered(np.where(first, key, ABSENT), rows.rank)


def _match_by_order(rows: CollectiveRows, num_ranks: int) -> Int64Array:
    block = _combined(rows.group.codes, rows.step)
    signature = _combined(rows.name.codes, rows.dtype.codes, rows.in_elements, rows.out_elements)
    ordinal = _ordinal(_combined(block, rows.rank))
    even = _counts_agree(block, rows.rank, num_ranks)
    key = np.where(even, _combined(block, ordinal), ABSENT)
    # The n-th of each rank must also look the same on all of them.
    low, high = _extremes(key, signature)
    key = np.where(low == high, key, ABSENT)
    for uneven in np.unique(block[~even]).tolist():
        inside = np.flatnonzero(block == uneven)
        key[inside] = _match_by_ends(
            rows.rank[inside], rows.end[inside], signature[inside], key.max(initial=ABSENT) + 1
        )
    return _numbered(key, rows.rank)


def _match_by_ends(rank: Int64Array, end: Int64Array, signature: Int64Array, first_key: int) -> Int64Array:
    """Pairs rows of a step in which ranks have different numbers of them, where records were lost or cut off.

    A collective ends on all its members at one moment, so each row looks for the row of equal looks that ends when
    it does. What finds none on every other rank stays unmatched.
    """
    ranks = np.unique(rank)
    reference = np.flatnonzero(rank == ranks[0])
    reference = reference[np.argsort(end[reference], kind="stable")]
    partners = np.full((reference.size, ranks.size), ABSENT, dtype=np.int64)
    partners[:, 0] = reference
    for column, other in enumerate(ranks[1:].tolist(), start=1):
        theirs = np.flatnonzero(rank == other)
        theirs = theirs[np.argsort(end[theirs], kind="stable")]
        for row, mine in enumerate(reference.tolist()):
            near = theirs[np.abs(end[theirs] - end[mine]) <= END_TOLERANCE_NS]
            near = near[signature[near] == signature[mine]]
            if near.size == 1:
                partners[row, column] = near[0]
    key = np.full(rank.size, ABSENT, dtype=np.int64)
    whole = partners[(partners != ABSENT).all(axis=1)]
    taken, times = np.unique(whole, return_counts=True)
    ambiguous = set(taken[times > 1].tolist())
    for number, members in enumerate(whole.tolist()):
        if not ambiguous.intersection(members):
            key[members] = first_key + number
    return key


def _numbered(key: Int64Array, rank: Int64Array) -> Int64Array:
    """Numbers the keys that several ranks share from 0 on; the others are unmatched."""
    used = np.flatnonzero(key != ABSENT)
    distinct, which = np.unique(key[used], return_inverse=True)
    low, high = np.full(distinct.size, np.iinfo(np.int64).max), np.full(distinct.size, ABSENT, dtype=np.int64)
    np.minimum.at(low, which, rank[used])
    np.maximum.at(high, which, rank[used])
    shared = low != high
    number = np.where(shared, np.cumsum(shared) - 1, ABSENT)
    result = np.full(key.size, ABSENT, dtype=np.int64)
    result[used] = number[which]
    return result


def _counts_agree(block: Int64Array, rank: Int64Array, num_ranks: int) -> BoolArray:
    """Rows whose block has equally many rows on every rank that has the block's group at all."""
    pairs, which, counts = np.unique(np.stack((block, rank), axis=1), axis=0, return_inverse=True, return_counts=True)
    low, high = _extremes(pairs[:, 0], counts)
    members = np.bincount(np.unique(pairs[:, 0], return_inverse=True)[1].ravel())
    full = members[np.unique(pairs[:, 0], return_inverse=True)[1].ravel()] == num_ranks
    return np.asarray(((low == high) & full)[which.ravel()], dtype=bool)


def _extremes(key: Int64Array, values: Int64Array) -> tuple[Int64Array, Int64Array]:
    """For each entry, the smallest and largest value among the entries of its key."""
    _, which = np.unique(key, return_inverse=True)
    which = which.ravel()
    low = np.full(which.max(initial=0) + 1, np.iinfo(np.int64).max, dtype=np.int64)
    high = np.full(low.size, np.iinfo(np.int64).min, dtype=np.int64)
    np.minimum.at(low, which, values)
    np.maximum.at(high, which, values)
    return low[which], high[which]


def _ordinal(key: Int64Array) -> Int64Array:
    """Position of each entry among the entries of its key, in their order."""
    order = np.argsort(key, kind="stable")
    fresh = np.concatenate(([True], key[order][1:] != key[order][:-1])) if key.size else np.empty(0, dtype=bool)
    begin = np.maximum.accumulate(np.where(fresh, np.arange(key.size), 0))
    ordinal = np.empty(key.size, dtype=np.int64)
    ordinal[order] = np.arange(key.size) - begin
    return ordinal


def _first_of(key: Int64Array) -> BoolArray:
    first = np.zeros(key.size, dtype=bool)
    first[np.unique(key, return_index=True)[1]] = True
    return first


def _combined(*columns: npt.NDArray[np.integer[Any]]) -> Int64Array:
    """One number for each distinct combination."""
    combined = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        _, codes = np.unique(column, return_inverse=True)
        codes = codes.ravel()
        _, combined = np.unique(combined * (codes.max(initial=0) + 1) + codes, return_inverse=True)
        combined = combined.ravel().astype(np.int64)
    return combined


def _without_direction(names: Texts) -> Texts:
    """A send and its receive are one transfer."""
    return names.map(lambda name: "send_recv" if name in ("send", "recv") else name)
