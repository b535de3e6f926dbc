"""Who arrives last at each collective, by how much, and which late arrivals are independent of each other.

A collective's last arrival is late by what it starts after the next to last. Two things keep a count of late arrivals
from being read naively.

*Ties.* Ends of one collective, which should be one moment, differ a little over its members: by clocks, and by how a
ring finishes. Arrivals that differ by no more than nine of ten collectives' ends do are no late arrivals; nor are those
that differ by no more than that once the ends of the two ranks' previous collective are taken off. Nor is a rank late
for whose profiler the others waited.

*One delay, many arrivals.* Collectives make devices wait for each other, not hosts. A rank whose host falls behind
once stays behind, and is last at every collective until the hosts meet again, which they do where both wait for their
devices. So a late arrival counts as *independent* only if more than half of its lateness is new: the old delay is what
the rank's host was behind the other's when they launched the previous collective, and still was when both last came
back from waiting for the device, as far as waiting for the host is what the rank was late by. The rest is the arrival's
*delay*. And of arrivals of one rank whose own times overlap, as those in two groups may, one counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from zerotrace.analysis.across import Meeting
from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.own_time import OwnTimes
from zerotrace.ingest.steps import NO_STEP
from zerotrace.intervals import Int64Array
from zerotrace.model import Lateness, OwnTime, StepLateness
from zerotrace.schema import STRAGGLERS
from zerotrace.tables import BoolArray, column_array, number_pairs

#: Part of collectives whose ends lie within what counts as a tie.
TIE_QUANTILE = 0.9

_PARTS = ("compute", "copy", "comm", "host_bound", "rest")


@dataclass(frozen=True, eq=False)
class LastArrivals:
    """The last arrival of every matched collective. Columns have one entry a collective.

    Attributes:
        row: row of the last member.
        before: row of the member before it.
        late: start of the last less start of the one before.
        began: begin of the own time of the last less that of the one before.
        delay: the part of its lateness that is new, and not an old delay of its host.
        is_late: whether it is late by more than a tie, the difference of the previous collective's ends taken off.
        is_independent: whether it is late by a delay that was not there before.
        tie: lateness up to which two arrivals are a tie, nanoseconds.
    """

    row: Int64Array
    before: Int64Array
    late: Int64Array
    began: Int64Array
    delay: Int64Array
    is_late: BoolArray
    is_independent: BoolArray
    tie: int


def last_arrivals(meeting: Meeting, own: OwnTimes) -> LastArrivals:
    """Finds the last arrival of every matched collective, and which of them are late independently of each other.

    Args:
        meeting: matched collectives of all ranks.
        own: own times ahead of ``meeting.rows``.
    """
    start, collective = _shared(meeting, meeting.rows.start), meeting.matches.collective
    matched = np.flatnonzero(collective != ABSENT)
    matched = matched[np.lexsort((start[matched], collective[matched]))]
    final = np.flatnonzero(np.append(np.diff(collective[matched]) != 0, True)[: matched.size])
    row, before = matched[final], matched[final - 1]
    late = start[row] - start[before]
    tie = _tie(_shared(meeting, meeting.rows.end), matched, final)
    began = late - (own.own[row] - own.own[before])
    have_met = (own.previous[row] != ABSENT) & (own.previous[before] != ABSENT)
    is_late = late - np.where(have_met, np.maximum(began, 0), 0) > tie
    is_late[collective[meeting.profiler_start.waits]] = False
    delay = late - _carried(meeting, own, row, before, late)
    is_new = is_late & (2 * delay > late)
    return LastArrivals(row, before, late, began, delay, is_late, _apart(meeting, own, row, is_new), tie)


def rank_lateness(meeting: Meeting, own: OwnTimes, last: LastArrivals) -> tuple[Lateness, ...]:
    """How each rank arrives, over all steps.

    Args:
        meeting: matched collectives of all ranks.
        own: own times ahead of ``meeting.rows``.
        last: last arrivals of ``meeting``.
    """
    rank = meeting.rows.rank
    return tuple(lateness for lateness, _ in _grouped(meeting, own, last, *number_pairs(rank, rank)))


def step_lateness(meeting: Meeting, own: OwnTimes, last: LastArrivals) -> tuple[StepLateness, ...]:
    """How each rank arrives in each step. Arguments as in :func:`rank_lateness`."""
    rank, step = meeting.rows.rank, meeting.rows.step
    found = _grouped(meeting, own, last, *number_pairs(rank, step))
    numbers = ((lateness, int(step[row])) for lateness, row in found)
    return tuple(
        StepLateness(**vars(lateness), step=None if number == NO_STEP else number) for lateness, number in numbers
    )


def lateness_table(steps: Sequence[StepLateness]) -> pa.Table:
    """The table of :data:`zerotrace.schema.STRAGGLERS`.

    Args:
        steps: each rank's lateness in each step, sorted by rank and step.
    """
    arrays = [column_array([_figure(one, c.name) for one in steps], c.type) for c in STRAGGLERS.columns]
    return pa.Table.from_arrays(arrays, schema=STRAGGLERS.arrow())


def _figure(lateness: StepLateness, column: str) -> object:
    whose, _, part = column.partition("_")
    if whose not in ("own", "before"):
        return getattr(lateness, column)
    return getattr(getattr(lateness, whose), "total_ns" if part == "ns" else part)


def _shared(meeting: Meeting, times: Int64Array) -> Int64Array:
    """Times of the meeting's rows on one clock for all ranks."""
    return times - meeting.matches.clocks.of_rows(meeting.rows.rank)


def _tie(end: Int64Array, matched: Int64Array, final: Int64Array) -> int:
    """How far the ends of one collective lie apart on its members, for nine of ten collectives."""
    if not final.size:
        return 0
    first = np.concatenate(([0], final[:-1] + 1))
    spread = np.maximum.reduceat(end[matched], first) - np.minimum.reduceat(end[matched], first)
    return int(np.sort(spread)[math.ceil(TIE_QUANTILE * spread.size) - 1])


def _carried(meeting: Meeting, own: OwnTimes, row: Int64Array, before: Int64Array, late: Int64Array) -> Int64Array:
    """The part of each lateness that is an old delay of the rank's host, as the module's words define it."""
    earlier, other = own.previous[row], own.previous[before]
    collective, start = meeting.matches.collective, _shared(meeting, meeting.rows.start)
    launched, came_back = start - own.lead, start - own.resumed
    known = (earlier != ABSENT) & (other != ABSENT)
    known &= (collective[earlier] == collective[other]) & (collective[earlier] != ABSENT)
    known &= (own.lead[earlier] != ABSENT) & (own.lead[other] != ABSENT)
    behind = np.where(known, launched[earlier] - launched[other], 0)
    met = (own.resumed[row] != ABSENT) & (own.resumed[before] != ABSENT)
    behind = np.where(met, np.minimum(behind, came_back[row] - came_back[before]), behind)
    waited = own.host_bound[row] - own.host_bound[before]
    return np.asarray(np.minimum(np.maximum(behind, 0), np.clip(waited, 0, late)), dtype=np.int64)


def _apart(meeting: Meeting, own: OwnTimes, row: Int64Array, is_new: BoolArray) -> BoolArray:
    """Of the new late arrivals, those whose own time begins after the rank's new late arrival before it."""
    new = np.flatnonzero(is_new)
    order = np.lexsort((meeting.rows.start[row[new]], meeting.rows.rank[row[new]]))
    new = new[order]
    rank, start = meeting.rows.rank[row[new]], meeting.rows.start[row[new]]  # each on its own clock
    begin = start - own.own[row[new]]
    apart = np.ones(new.size, dtype=bool)
    apart[1:] = (rank[1:] != rank[:-1]) | (begin[1:] >= start[:-1])
    found = np.zeros(row.size, dtype=bool)
    found[new[apart]] = True
    return found


def _grouped(
    meeting: Meeting, own: OwnTimes, last: LastArrivals, count: int, group: Int64Array
) -> Iterator[tuple[Lateness, int]]:
    """The figures of each group of rows, all of one rank, and one of the rows.

    Args:
        meeting: matched collectives.
        own: own times ahead of its rows.
        last: its last arrivals.
        count: number of groups.
        group: the group of each row of the meeting.
    """
    matched = np.flatnonzero(meeting.matches.collective != ABSENT)
    late = np.flatnonzero(last.is_late)
    of = group[last.row[late]]
    num_members = np.bincount(group[matched], minlength=count).tolist()
    num_last = np.bincount(group[last.row[last.late > 0]], minlength=count).tolist()
    num_late = np.bincount(of, minlength=count).tolist()
    independent = np.flatnonzero(last.is_independent)
    num_independent = np.bincount(group[last.row[independent]], minlength=count).tolist()
    delay_ns = _sums(group[last.row[independent]], last.delay[independent], count)
    late_ns, began_ns = (_sums(of, values[late], count) for values in (last.late, last.began))
    median = _medians(of, last.late[late], count)
    mine, before = (_own_times(own, rows[late], of, count) for rows in (last.row, last.before))
    example = np.zeros(count, dtype=np.int64)
    example[group[matched]] = matched
    for i in (i for i in range(count) if num_members[i]):
        lateness = Lateness(
            rank=int(meeting.rows.rank[example[i]]),
            num_collectives=num_members[i],
            num_last=num_last[i],
            num_late=num_late[i],
            num_independent=num_independent[i],
            delay_ns=delay_ns[i],
            late_ns=late_ns[i],
            median_late_ns=median[i],
            own=mine[i],
            before=before[i],
            began_ns=began_ns[i],
        )
        _assert_closes(lateness)
        yield lateness, int(example[i])


def _own_times(own: OwnTimes, rows: Int64Array, group: Int64Array, count: int) -> list[OwnTime]:
    """The own time ahead of these rows, summed by group."""
    parts = {part: _sums(group, np.maximum(getattr(own, part)[rows], 0), count) for part in ("own", *_PARTS)}
    has_launches = bool((own.host_bound != ABSENT).any())
    return [
        OwnTime(
            total_ns=parts["own"][i],
            compute_ns=parts["compute"][i],
            copy_ns=parts["copy"][i],
            comm_ns=parts["comm"][i],
            host_bound_ns=parts["host_bound"][i] if has_launches else None,
            rest_ns=parts["rest"][i],
        )
        for i in range(count)
    ]


def _assert_closes(lateness: Lateness) -> None:
    # not assert statements: they must hold under python -O too
    for own in (lateness.own, lateness.before):
        parts = own.compute_ns + own.copy_ns + own.comm_ns + (own.host_bound_ns or 0) + own.rest_ns
        if parts != own.total_ns or own.rest_ns < 0:
            raise AssertionError(f"the parts are not the own time: {own}")
    if lateness.late_ns != lateness.own.total_ns - lateness.before.total_ns + lateness.began_ns:
        raise AssertionError(f"lateness is not the difference of own times: {lateness}")


def _sums(group: Int64Array, values: Int64Array, count: int) -> list[int]:
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, group, values)
    return [int(value) for value in total.tolist()]


def _medians(group: Int64Array, values: Int64Array, count: int) -> Sequence[float | None]:
    """The median value of each group; ``None`` for groups without any."""
    values = values[np.lexsort((values, group))]
    size = np.bincount(group, minlength=count)
    first = np.cumsum(size) - size
    found: list[float | None] = [None] * count
    for i in np.flatnonzero(size).tolist():
        found[i] = float(values[first[i] + (size[i] - 1) // 2] + values[first[i] + size[i] // 2]) / 2
    return found
