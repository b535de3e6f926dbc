"""What a rank does by itself between two collectives of one group: the time in which it becomes late, or does not.

The members of a collective leave it together. Until they meet again each has its *own time*, from the end of the
group's previous collective on that rank to the start of the next: computing, copying, in collectives of other groups,
or idle because the host had not launched the next row. Whoever has more of it arrives later.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.causes import host_bound
from zerotrace.analysis.collectives import ABSENT, CollectiveRows, comm_rows
from zerotrace.analysis.launches import Launches
from zerotrace.analysis.partition import DeviceCauses, DeviceTime
from zerotrace.intervals import Int64Array
from zerotrace.model import Mode, StepWindow
from zerotrace.tables import ints


class OwnTimes(Struct, frozen=True, eq=False):
    """The own time of ranks ahead of each row of communication, nanoseconds. Columns have one entry a row.

    Attributes:
        previous: the group's previous row of the same rank; absent for the first, whose own time begins with the
            rank's first step window.
        own: length of the own time.
        compute: of it, time in which compute runs.
        copy: of it, copies under neither compute nor communication.
        comm: of it, other communication with no compute beside it.
        host_bound: of it, idle time until the launch call of the next row had returned; absent where rows have no
            launches, as in host mode.
        lead: how long before its start the row was launched; absent where that is not in the trace.
        resumed: how long before its start the host last came back from waiting for the device, after it had launched
            the previous row and before it launched this one; absent where it did not wait in between.
    """

    previous: Int64Array
    own: Int64Array
    compute: Int64Array
    copy: Int64Array
    comm: Int64Array
    host_bound: Int64Array
    lead: Int64Array
    resumed: Int64Array

    @property
    def rest(self) -> Int64Array:
        """What is left of the own time: launched but held back, without a launch in the trace, idle in host mode."""
        return self.own - self.compute - self.copy - self.comm - np.maximum(self.host_bound, 0)

    @classmethod
    def concatenate(cls, parts: Sequence[OwnTimes]) -> OwnTimes:
        """The own times of several ranks as one; ``previous`` counts rows of all of them."""
        before = np.cumsum([0, *(part.own.size for part in parts)])
        columns = {name: np.concatenate([getattr(part, name) for part in parts]) for name in cls.__struct_fields__}
        shift = np.repeat(before[:-1], np.diff(before))
        columns["previous"] = np.where(columns["previous"] == ABSENT, ABSENT, columns["previous"] + shift)
        return cls(**columns)


class OwnSpans(Struct, frozen=True, eq=False):
    """When the own time ahead of each row of communication begins. Columns have one entry a row.

    Attributes:
        begin: nanoseconds; it ends with the start of the row.
        previous: as in :class:`OwnTimes`.
    """

    begin: Int64Array
    previous: Int64Array


def own_spans(rows: CollectiveRows, windows: Sequence[StepWindow]) -> OwnSpans:
    """The own time of one rank ahead of each of its rows of communication, as a span.

    A row that starts while another of its group runs has no own time.

    Args:
        rows: the rank's rows of communication.
        windows: the rank's step windows.
    """
    begin = np.minimum(min(window.start_ns for window in windows), rows.start)
    previous = np.full(len(rows), ABSENT, dtype=np.int64)
    lanes = np.stack((rows.device, rows.group.codes.astype(np.int64)), axis=1)
    for lane in np.unique(lanes, axis=0) if len(rows) else ():
        mine = np.flatnonzero((lanes == lane).all(axis=1))
        free = np.maximum.accumulate(rows.end[mine])[:-1]
        begin[mine[1:]] = np.minimum(free, rows.start[mine[1:]])
        previous[mine[1:]] = mine[:-1]
    return OwnSpans(begin, previous)


def spent(
    spans: OwnSpans, rows: CollectiveRows, time: DeviceTime, why: DeviceCauses | None, begin: int, end: int
) -> Int64Array:
    """What one device does in the own time ahead of each row, as far as it lies in ``[begin, end)``.

    Args:
        spans: own times of the rank.
        rows: the rank's rows of communication.
        time: time of the device.
        why: why it is lost.
        begin: nanoseconds.
        end: nanoseconds.

    Returns:
        Shape ``(4, num_rows)``: compute, copies under neither compute nor communication, exposed communication, and
        time that the host has it wait.
    """
    found = np.zeros((4, len(rows)), dtype=np.int64)
    here = np.flatnonzero(rows.device == (ABSENT if time.device is None else time.device))
    low, high = np.clip(spans.begin[here], begin, end), np.clip(rows.start[here], begin, end)
    if not here.size:
        return found
    exposed = time.exposed if why is None else why.exposed
    sets = [time.compute, time.copy - (time.compute | time.comm), exposed]
    if why is not None and why.rows.start.size:
        sets.append(host_bound(why.busy, why.rows, int(low.min())))
    for column, points in zip(found, sets):
        column[here] = points.within(low, high)
    return found


def own_times(
    rows: CollectiveRows, events: pa.Table, launches: Launches, spans: OwnSpans, doing: Int64Array, mode: Mode
) -> OwnTimes:
    """The own time of one rank ahead of each of its rows of communication.

    Args:
        rows: the rank's rows of communication.
        events: rows of :data:`zerotrace.schema.EVENTS` that they were taken from.
        launches: launches of ``events``.
        spans: the own times.
        doing: what :func:`spent` says, over all devices and all of the time.
        mode: device or host time.
    """
    compute, copy, comm, bound = doing
    if mode is Mode.HOST:
        bound = np.full(len(rows), ABSENT, dtype=np.int64)
    table_rows = comm_rows(events)
    linked = launches.linked[table_rows]
    lead = np.where(linked, rows.start - launches.start[table_rows], ABSENT)
    came_back = _came_back(events, launches, table_rows, spans.previous)
    resumed = np.where(came_back == ABSENT, ABSENT, rows.start - came_back)
    return OwnTimes(spans.previous, rows.start - spans.begin, compute, copy, comm, bound, lead, resumed)


def _came_back(events: pa.Table, launches: Launches, rows: Int64Array, previous: Int64Array) -> Int64Array:
    """When the launching thread last came back from waiting between the launches of the previous row and of each row.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        launches: launches of ``events``.
        rows: rows of communication among ``events``.
        previous: for each of them the previous one of its group, as a position in ``rows``.
    """
    found = np.full(rows.size, ABSENT, dtype=np.int64)
    calls = launches.calls
    start, dur = ints(events, "start_ns"), ints(events, "dur_ns")
    for thread in np.unique(calls.thread[calls.holds]).tolist():
        call = calls.row[calls.holds & (calls.thread == thread)]
        call = call[np.argsort(start[call], kind="stable")]
        begin, end = start[call], start[call] + dur[call]
        here = np.flatnonzero((launches.thread[rows] == thread) & (previous != ABSENT))
        last = np.searchsorted(end, launches.start[rows[here]], side="right") - 1
        after = (last >= 0) & (begin[last] >= launches.start[rows[previous[here]]])
        found[here[after]] = end[last[after]]
    return found
