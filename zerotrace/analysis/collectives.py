"""Collectives across ranks: which rows are one collective, who arrives last, who waits, how fast it is.

A collective is matched on (member ranks, group name, Seq, collective name). Where Seq is absent, by order within
(member ranks, group name) of a step, checked on name, dtype and element counts. What cannot be matched is listed,
never paired by force.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import pyarrow as pa

from zerotrace.analysis.launches import Launches
from zerotrace.ingest.steps import steps_at
from zerotrace.intervals import Int64Array
from zerotrace.model import Category, StepWindow
from zerotrace.tables import BoolArray, codes_and_names, equals, ints, optional_ints

#: Absent integers inside numpy columns.
ABSENT = -1

#: Ends of one collective on two ranks of one host agree within this; used only where counts differ.
END_TOLERANCE_NS = 50_000

_KIND_IN_KERNEL_NAME = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|reduce|gather|scatter)", re.IGNORECASE
)


@dataclass(frozen=True, eq=False)
class CollectiveRows:
    """Rows of communication, of one rank or of many. All columns have one entry a row.

    Attributes:
        rank: global rank.
        device: device index on the host; absent in host mode.
        event: position in the rank's trace.
        step: step in which the row was launched; :data:`zerotrace.ingest.steps.NO_STEP` outside of all.
        start: start on the rank's own clock, nanoseconds.
        end: end.
        name: collective, or what the kernel's name says of it.
        group: member ranks and group name, as one text; empty where the trace does not say.
        dtype: element type; empty where unknown.
        size: members of the group; absent where unknown.
        seq: sequence number in the group; absent where the trace has none.
        in_elements: elements put in.
        out_elements: elements got out.
        src: sender of a point-to-point transfer.
        dst: its receiver.
    """

    rank: Int64Array
    device: Int64Array
    event: Int64Array
    step: Int64Array
    start: Int64Array
    end: Int64Array
    name: np.ndarray[tuple[int], np.dtype[np.object_]]
    group: np.ndarray[tuple[int], np.dtype[np.object_]]
    dtype: np.ndarray[tuple[int], np.dtype[np.object_]]
    size: Int64Array
    seq: Int64Array
    in_elements: Int64Array
    out_elements: Int64Array
    src: Int64Array
    dst: Int64Array

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.rank.size)

    def take(self, rows: Int64Array | BoolArray) -> CollectiveRows:
        """The columns at ``rows``."""
        return CollectiveRows(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    @classmethod
    def concatenate(cls, parts: Sequence[CollectiveRows]) -> CollectiveRows:
        """The rows of several ranks as one."""
        return cls(**{f.name: np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(cls)})


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


def collective_rows(rank: int, events: pa.Table, windows: Sequence[StepWindow], launches: Launches) -> CollectiveRows:
    """The rows of communication of one rank, in the order of their start.

    Args:
        rank: global rank.
        events: rows of :data:`zerotrace.schema.EVENTS`.
        windows: the rank's step windows.
        launches: launches of ``events``.
    """
    rows = np.flatnonzero(equals(events, "category", Category.COMM.value))
    start = ints(events, "start_ns")
    rows = rows[np.argsort(start[rows], kind="stable")]
    collective, kernel = _texts(events, "collective", rows), _texts(events, "name", rows)
    name = np.where(collective == "", np.array([_kind_of(text) for text in kernel], dtype=object), collective)
    members, group = _texts(events, "group_ranks", rows), _texts(events, "group_name", rows)
    start = start[rows]
    return CollectiveRows(
        rank=np.full(rows.size, rank, dtype=np.int64),
        device=_or_absent(events, "device", rows),
        event=ints(events, "event")[rows],
        step=steps_at(tuple(windows), launches.start[rows]),
        start=start,
        end=start + ints(events, "dur_ns")[rows],
        name=name,
        group=np.array([f"{m} {g}".strip() for m, g in zip(members, group)], dtype=object),
        dtype=_texts(events, "dtype", rows),
        **{ours: _or_absent(events, theirs, rows) for ours, theirs in _INTEGERS.items()},
    )


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


@dataclass(frozen=True, eq=False)
class Arrivals:
    """When the members of each collective came and went. Columns have one entry a collective but ``wait``.

    Attributes:
        num_members: rows that were found.
        arrival: latest start over the members.
        skew: arrival minus earliest start.
        transfer: shortest duration over the members.
        last_rank: who arrived last; absent where several did.
        wait: one entry a row: arrival minus the row's own start; absent for unmatched rows.
    """

    num_members: Int64Array
    arrival: Int64Array
    skew: Int64Array
    transfer: Int64Array
    last_rank: Int64Array
    wait: Int64Array


def arrivals(rows: CollectiveRows, matches: Matches) -> Arrivals:
    """Waiting and transfer of every matched collective.

    Args:
        rows: rows of all ranks, on one clock.
        matches: which of them are one collective.
    """
    matched = np.flatnonzero(matches.collective != ABSENT)
    which = matches.collective[matched]
    start, duration = rows.start[matched], (rows.end - rows.start)[matched]
    huge = np.iinfo(np.int64).max
    arrival = np.full(matches.count, -huge, dtype=np.int64)
    earliest = np.full(matches.count, huge, dtype=np.int64)
    transfer = np.full(matches.count, huge, dtype=np.int64)
    np.maximum.at(arrival, which, start)
    np.minimum.at(earliest, which, start)
    np.minimum.at(transfer, which, duration)
    is_last = start == arrival[which]
    num_last = np.bincount(which[is_last], minlength=matches.count)
    last_rank = np.full(matches.count, ABSENT, dtype=np.int64)
    last_rank[which[is_last]] = rows.rank[matched][is_last]
    last_rank[num_last > 1] = ABSENT
    wait = np.full(len(rows), ABSENT, dtype=np.int64)
    wait[matched] = arrival[which] - start
    return Arrivals(
        num_members=np.bincount(which, minlength=matches.count),
        arrival=arrival,
        skew=arrival - earliest,
        transfer=transfer,
        last_rank=last_rank,
        wait=wait,
    )


def _match_by_seq(rows: CollectiveRows) -> Int64Array:
    key = _combined(_codes(rows.group), rows.seq, _codes(_without_direction(rows.name)), rows.src, rows.dst)
    # One row a rank: a second of the same key is no second collective, and is not paired.
    first = _first_of(_combined(key, rows.rank))
    return _numbered(np.where(first, key, ABSENT), rows.rank)


def _match_by_order(rows: CollectiveRows, num_ranks: int) -> Int64Array:
    block = _combined(_codes(rows.group), rows.step)
    signature = _combined(_codes(rows.name), _codes(rows.dtype), rows.in_elements, rows.out_elements)
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


def _combined(*columns: Int64Array) -> Int64Array:
    """One number for each distinct combination."""
    combined = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        _, codes = np.unique(column, return_inverse=True)
        codes = codes.ravel()
        _, combined = np.unique(combined * (codes.max(initial=0) + 1) + codes, return_inverse=True)
        combined = combined.ravel().astype(np.int64)
    return combined


def _codes(texts: np.ndarray[tuple[int], np.dtype[np.object_]]) -> Int64Array:
    distinct = {text: code for code, text in enumerate(dict.fromkeys(texts.tolist()))}
    return np.fromiter(map(distinct.__getitem__, texts.tolist()), np.int64, texts.size)


def _without_direction(
    names: np.ndarray[tuple[int], np.dtype[np.object_]],
) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    """A send and its receive are one transfer."""
    return np.where((names == "send") | (names == "recv"), "send_recv", names)


def _kind_of(text: str) -> str:
    """What the name of a row without metadata says: ``allgather`` of an NCCL kernel, ``all_gather`` of gloo's."""
    if text.startswith("gloo:"):
        return text.removeprefix("gloo:")
    kernel = text.partition("(")[0]
    found = _KIND_IN_KERNEL_NAME.search(kernel)
    return found[1].lower().replace("_", "") if found else kernel


def _texts(table: pa.Table, column: str, rows: Int64Array) -> np.ndarray[tuple[int], np.dtype[np.object_]]:
    codes, names = codes_and_names(table, column)
    return np.array([*names, ""], dtype=object)[codes[rows]]


def _or_absent(table: pa.Table, column: str, rows: Int64Array) -> Int64Array:
    values, present = optional_ints(table, column)
    return np.where(present[rows], values[rows], ABSENT)


_INTEGERS = {
    "size": "group_size",
    "seq": "seq",
    "in_elements": "in_elements",
    "out_elements": "out_elements",
    "src": "src_rank",
    "dst": "dst_rank",
}
