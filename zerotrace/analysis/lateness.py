"""Who arrives last at each collective, by how much, and which late arrivals are independent of each other.

A collective's last arrival is late by what it starts after the next to last; :mod:`zerotrace.analysis.gaps` says which
of these gaps are no tie, and which are new. Late arrivals count as *independent* if they are new; but of arrivals of
one rank whose own times overlap, as those in two groups may, one counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict

from zerotrace.analysis.across import Meeting
from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.gaps import ByArrival, Gaps, gaps
from zerotrace.analysis.own_time import OwnTimes
from zerotrace.ingest.steps import NO_STEP
from zerotrace.intervals import Int64Array
from zerotrace.model import Lateness, OwnTime, StepLateness
from zerotrace.schema import STRAGGLERS
from zerotrace.tables import BoolArray, column_array, number_pairs

_PARTS = ("compute", "copy", "comm", "host_bound", "rest")


class LastArrivals(Gaps, frozen=True, eq=False):
    """The last arrival of every matched collective, and the gap ahead of it. Columns have one entry a collective.

    Attributes:
        is_independent: whether it is late by a delay that was not there before.
    """

    is_independent: BoolArray


class Together(Struct, frozen=True, eq=False):
    """Ranks that are late together. Columns have one entry a collective.

    Attributes:
        ranks: which.
        is_late: where they are.
        late: by how much.
    """

    ranks: frozenset[int]
    is_late: BoolArray
    late: Int64Array


def last_arrivals(meeting: Meeting, own: OwnTimes, order: ByArrival, tie: int) -> LastArrivals:
    """Finds the last arrival of every matched collective, and which of them are late independently of each other.

    Args:
        meeting: matched collectives of all ranks.
        own: own times ahead of ``meeting.rows``.
        order: the arrivals of ``meeting``.
        tie: lateness up to which two arrivals are a tie, nanoseconds.
    """
    found = gaps(meeting, own, order, order.final, tie)
    return LastArrivals(**asdict(found), is_independent=_apart(meeting, own, found.row, found.is_new))


def rank_lateness(meeting: Meeting, own: OwnTimes, last: LastArrivals) -> tuple[Lateness, ...]:
    """How each rank arrives, over all steps.

    Args:
        meeting: matched collectives of all ranks.
        own: own times ahead of ``meeting.rows``.
        last: last arrivals of ``meeting``.
    """
    rank = meeting.rows.rank
    return tuple(lateness for lateness, _ in _grouped(meeting, own, last, *number_pairs(rank, rank)))


def step_lateness(
    meeting: Meeting, own: OwnTimes, last: LastArrivals, together: Together | None = None
) -> tuple[StepLateness, ...]:
    """How each rank arrives in each step. Arguments as in :func:`rank_lateness`, and who is late together, if any."""
    rank, step = meeting.rows.rank, meeting.rows.step
    count, pair = number_pairs(rank, step)
    times, sums = _with_group(meeting, together, count, pair)
    found = []
    for lateness, row in _grouped(meeting, own, last, count, pair):
        number, is_in = int(step[row]), together is not None and lateness.rank in together.ranks
        found.append(
            StepLateness(
                **asdict(lateness),
                step=None if number == NO_STEP else number,
                num_together=times[pair[row]] if is_in else None,
                together_ns=sums[pair[row]] if is_in else None,
            )
        )
    return tuple(found)


def _with_group(
    meeting: Meeting, together: Together | None, count: int, pair: Int64Array
) -> tuple[list[int], list[int]]:
    """How often each group of rows is late with those that are late together, and by how much in sum."""
    rows = np.zeros(0, dtype=np.int64)
    late = rows
    if together is not None:
        collective = meeting.matches.collective
        rows = np.flatnonzero((collective != ABSENT) & np.isin(meeting.rows.rank, list(together.ranks)))
        rows = rows[together.is_late[collective[rows]]]
        late = together.late[collective[rows]]
    return np.bincount(pair[rows], minlength=count).tolist(), _sums(pair[rows], late, count)


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
    matched = matched[meeting.arrivals.num_members[meeting.matches.collective[matched]] > 1]
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
    mine, before = (own_time_sums(own, rows[late], of, count) for rows in (last.row, last.before))
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


def own_time_sums(own: OwnTimes, rows: Int64Array, group: Int64Array, count: int) -> list[OwnTime]:
    """The own time ahead of these rows, summed by group.

    Args:
        own: own times of all rows.
        rows: which of them.
        group: group of each of these, from 0 on.
        count: number of groups.
    """
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
