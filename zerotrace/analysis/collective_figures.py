"""The collectives of a run's steps in figures: sums and medians by kind, arrivals by rank and step, and a sample."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zerotrace.analysis.across import Meeting
from zerotrace.analysis.bandwidth import bandwidths, bytes_moved
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.kinds import kind_of
from zerotrace.intervals import Int64Array
from zerotrace.model import CollectiveFigures, Collectives, CollectiveSample, StepArrivals
from zerotrace.tables import BoolArray, number_pairs

#: Collectives in the sample; every one of them is a mark in a picture.
MAX_SAMPLE = 1200

#: Of these, the slowest ones, which are taken whatever the rest looks like.
NUM_SLOWEST = 50


class _Columns(Struct, frozen=True, eq=False):
    """What each row of communication has, or belongs to. All columns have one entry a row.

    Attributes:
        rows: the rows, of all ranks.
        collective: number of the matched collective; absent where there is none.
        size: S, bytes; absent where unknown.
        duration: end minus start.
        exposed: of it, with no compute running.
        wait: until the last member arrives; absent for unmatched rows.
        blameless: rows whose waiting is for another rank's profiler to start.
        transfer: of its collective; absent for unmatched rows.
        skew: of its collective; absent for unmatched rows.
        algbw: GB/s; NaN where unknown.
        busbw: GB/s; NaN where unknown.
        is_first: rows that stand for their collective.
    """

    rows: CollectiveRows
    collective: Int64Array
    size: Int64Array
    duration: Int64Array
    exposed: Int64Array
    wait: Int64Array
    blameless: BoolArray
    transfer: Int64Array
    skew: Int64Array
    algbw: npt.NDArray[np.float64]
    busbw: npt.NDArray[np.float64]
    is_first: BoolArray


def collective_figures(
    parts: Sequence[tuple[CollectiveRows, Int64Array]],
    meeting: Meeting | None,
    steps: Collection[tuple[int, int]],
) -> Collectives | None:
    """Sums, medians, arrivals and a sample of the collectives in steps.

    Args:
        parts: rows of communication of each rank in rising order, and the exposed part of each row.
        meeting: the same rows matched over the ranks; ``None`` where they are not.
        steps: rank and step of all that was seen whole; means are over these.

    Returns:
        The figures; ``None`` where no step has a collective.
    """
    rows = CollectiveRows.concatenate([rows for rows, _ in parts])
    exposed = np.concatenate([exposed for _, exposed in parts])
    seen = np.flatnonzero(_in_steps(rows, steps))
    if not seen.size:
        return None
    columns = _columns(rows, exposed, meeting, seen)
    order, kinds = _by_kind(columns, len(steps))
    used = columns.collective[columns.collective != ABSENT]
    return Collectives(
        num_steps=len({step for _, step in steps}),
        num_matched=int(np.unique(used).size),
        num_unmatched=0 if meeting is None else int(seen.size - used.size),
        kinds=kinds,
        arrivals=() if meeting is None else tuple(_arrivals(columns, meeting)),
        sample=_sample(columns, order),
    )


def _columns(rows: CollectiveRows, exposed: Int64Array, meeting: Meeting | None, seen: Int64Array) -> _Columns:
    nothing = np.full(len(rows), ABSENT, dtype=np.int64)
    collective = nothing if meeting is None else meeting.matches.collective
    wait = nothing if meeting is None else meeting.arrivals.wait
    of_collective = nothing[:0] if meeting is None else meeting.arrivals.transfer
    transfer = np.append(of_collective, ABSENT)[collective]
    skew = np.append(of_collective if meeting is None else meeting.arrivals.skew, ABSENT)[collective]
    rows, collective = rows.take(seen), collective[seen]
    size = bytes_moved(rows)
    algbw, busbw = bandwidths(rows, size, transfer[seen], collective != ABSENT)
    is_first = np.zeros(len(rows), dtype=bool)
    is_first[np.unique(collective, return_index=True)[1]] = True
    return _Columns(
        rows=rows,
        collective=collective,
        size=size,
        duration=rows.end - rows.start,
        exposed=exposed[seen],
        wait=wait[seen],
        blameless=np.zeros(seen.size, dtype=bool) if meeting is None else meeting.profiler_start.waits[seen],
        transfer=transfer[seen],
        skew=skew[seen],
        algbw=algbw,
        busbw=busbw,
        is_first=is_first & (collective != ABSENT),
    )


def _in_steps(rows: CollectiveRows, steps: Collection[tuple[int, int]]) -> BoolArray:
    count, which = number_pairs(rows.rank, rows.step)
    first = np.zeros(count, dtype=np.int64)
    first[which] = np.arange(len(rows))
    known = [pair in steps for pair in zip(rows.rank[first].tolist(), rows.step[first].tolist())]
    return np.array(known, dtype=bool)[which]


def _by_kind(columns: _Columns, num_pairs: int) -> tuple[Int64Array, tuple[CollectiveFigures, ...]]:
    """For each row the index of its kind, and the figures of the kinds, most exposed time first."""
    rows = columns.rows
    _, looks = number_pairs(rows.name.codes.astype(np.int64), rows.phase.codes.astype(np.int64))
    _, sizes = number_pairs(rows.dtype.codes.astype(np.int64), rows.size)
    count, which = number_pairs(looks, sizes)
    total = int(columns.exposed.sum())
    found = [_figures(columns, np.flatnonzero(which == number), num_pairs, total) for number in range(count)]
    ranking = sorted(range(count), key=lambda number: (-found[number].exposed_ns, -found[number].num_calls))
    place = np.empty(count, dtype=np.int64)
    place[ranking] = np.arange(count)
    return place[which], tuple(found[number] for number in ranking)


def _figures(columns: _Columns, members: Int64Array, num_pairs: int, total_exposed_ns: int) -> CollectiveFigures:
    rows = columns.rows.take(members)
    groups = rows.group.compact()
    num_groups = len(groups.distinct) + bool((groups.codes < 0).any())
    matched = members[columns.collective[members] != ABSENT]
    once = members[columns.is_first[members]]
    size, exposed = columns.size[members], int(columns.exposed[members].sum())
    name = rows.name.distinct[rows.name.codes[0]]
    any_matched = bool((columns.collective != ABSENT).any())
    return CollectiveFigures(
        name=name,
        kind=kind_of(name),
        phase=_text(rows.phase.distinct, rows.phase.codes[0]),
        dtype=_text(rows.dtype.distinct, rows.dtype.codes[0]),
        group=groups.distinct[0] if num_groups == 1 and groups.distinct else None,
        group_size=None if rows.size[0] == ABSENT else int(rows.size[0]),
        num_groups=num_groups,
        num_calls=members.size / num_pairs,
        num_unmatched=int(members.size - matched.size) if any_matched else 0,
        size_bytes=None if (size == ABSENT).any() else int(size.sum()) / num_pairs,
        duration_ns=int(columns.duration[members].sum()) / num_pairs,
        transfer_ns=int(columns.transfer[matched].sum()) / num_pairs if matched.size else None,
        wait_ns=int(columns.wait[matched].sum()) / num_pairs if matched.size else None,
        exposed_ns=exposed / num_pairs,
        exposed_ratio=exposed / total_exposed_ns if total_exposed_ns else None,
        median_size_bytes=_median(columns.size[once][columns.size[once] != ABSENT]),
        median_transfer_ns=_median(columns.transfer[once]),
        median_skew_ns=_median(columns.skew[once]),
        median_algbw_gbps=_median(columns.algbw[once]),
        median_busbw_gbps=_median(columns.busbw[once]),
    )


def _arrivals(columns: _Columns, meeting: Meeting) -> Iterator[StepArrivals]:
    rows, which = columns.rows, columns.collective
    last_rank = np.append(meeting.arrivals.last_rank, ABSENT)[which]
    matched = which != ABSENT
    is_last = matched & (last_rank == rows.rank)
    # the waits of the others, given to the row of the one they waited for
    caused = np.zeros(int(which.max(initial=0)) + 1, dtype=np.int64)
    np.add.at(caused, which[matched], np.where(columns.blameless, 0, np.maximum(columns.wait, 0))[matched])
    count, pair = number_pairs(rows.rank, rows.step)
    first = np.zeros(count, dtype=np.int64)
    first[pair] = np.arange(len(rows))
    took_part = np.bincount(pair[matched], minlength=count)
    came_last = np.bincount(pair[is_last], minlength=count)
    waited = np.zeros(count, dtype=np.int64)
    np.add.at(waited, pair[is_last], caused[which[is_last]])
    for number in range(count):
        yield StepArrivals(
            rank=int(rows.rank[first[number]]),
            step=int(rows.step[first[number]]),
            num_collectives=int(took_part[number]),
            num_last=int(came_last[number]),
            caused_wait_ns=int(waited[number]),
        )


def _sample(columns: _Columns, kind: Int64Array) -> CollectiveSample:
    drawn = np.flatnonzero(columns.is_first & (columns.size > 0) & (columns.transfer > 0))
    chosen = drawn
    if drawn.size > MAX_SAMPLE:
        slowest = drawn[np.argsort(-columns.transfer[drawn], kind="stable")[:NUM_SLOWEST]]
        alike = drawn[np.lexsort((columns.transfer[drawn], columns.size[drawn], kind[drawn]))]
        evenly = alike[np.linspace(0, alike.size - 1, MAX_SAMPLE - NUM_SLOWEST).round().astype(np.int64)]
        chosen = np.unique(np.concatenate((slowest, evenly)))
    return CollectiveSample(
        num_all=int(drawn.size),
        figures=tuple(kind[chosen].tolist()),
        size_bytes=tuple(columns.size[chosen].tolist()),
        transfer_ns=tuple(columns.transfer[chosen].tolist()),
        skew_ns=tuple(columns.skew[chosen].tolist()),
        step=tuple(columns.rows.step[chosen].tolist()),
        rank=tuple(columns.rows.rank[chosen].tolist()),
        start_ns=tuple(columns.rows.start[chosen].tolist()),
        end_ns=tuple(columns.rows.end[chosen].tolist()),
    )


def _median(values: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> float | None:
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else None


def _text(distinct: Sequence[str], code: int) -> str | None:
    return distinct[code] if code >= 0 else None
