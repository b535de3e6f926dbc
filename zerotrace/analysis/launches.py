"""From a device row back to the host call that launched it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from zerotrace.ingest.classify import RUNTIME_CATS
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.tables import BoolArray, codes_and_names, int_array, ints, number_pairs, optional_ints

#: Runtime and driver calls during which the host waits for the device; parts of their names.
SYNCHRONISING = ("Synchronize", "Memcpy", "Malloc", "Free")

#: What :class:`LaunchLinks` adds to a device row of its launch: when the call began, when it returned, and on which
#: thread it was made. Null where it is not in the trace.
LAUNCH_COLUMNS = ("launch_start", "launch_end", "launch_pid", "launch_tid")


class Calls(Struct, frozen=True, eq=False):
    """The runtime and driver calls of a rank. All columns have one entry a call, in the order of the event table.

    Attributes:
        row: row of the event table.
        thread: which thread makes it, as an index into :attr:`Launches.sync_calls`.
        waits: whether it is a synchronising call.
        holds: whether it is one that never returns before the device has done what it waits for. Asynchronous copies
            are not: they hold the host only at times.
    """

    row: Int64Array
    thread: Int64Array
    waits: BoolArray
    holds: BoolArray


class Launches(Struct, frozen=True, eq=False):
    """The launch of each row of an event table. All columns but the last three have one entry a row.

    A device row and the runtime or driver call that launched it carry one correlation id. Where a runtime call
    makes a driver call of the same id, the earlier one counts.

    Attributes:
        start: when the call began; the row's own start where there is none.
        end: when the call returned; the row's own start where there is none.
        thread: which thread made the call, as an index into ``threads``; -1 where there is none.
        linked: rows whose launch is in the trace.
        calls: every runtime and driver call of the table.
        sync_calls: for each thread, when it is inside a synchronising one of these.
        threads: process and thread id of each thread that makes calls, shape ``(num_threads, 2)``.
    """

    start: Int64Array
    end: Int64Array
    thread: Int64Array
    linked: BoolArray
    calls: Calls
    sync_calls: tuple[Intervals, ...]
    threads: Int64Array

    def thread_ids(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Process and thread id of the launch of each of these rows; -1 where there is none."""
        known = np.append(self.threads, [[-1, -1]], axis=0)[self.thread[rows]]
        return known[:, 0], known[:, 1]


class LaunchLinks:
    """Links device rows to their launches, while an event table goes by slice by slice: calls come ahead of rows."""

    def __init__(self) -> None:
        self.num_linked = 0
        """Rows that have a launch so far."""
        # Id, start, end and thread of calls, as they came; once they are looked at, the earliest of each id, by ids.
        self._calls: list[list[npt.NDArray[np.integer[Any]]]] = [[], [], [], []]
        self._is_sorted = False
        self._threads: dict[tuple[int, int], int] = {}

    def link(self, events: pa.Table) -> pa.Table:
        """The next rows, with :data:`LAUNCH_COLUMNS`.

        Args:
            events: rows of :data:`zerotrace.schema.EVENTS`, behind those that were given before.
        """
        correlation, correlated = optional_ints(events, "correlation")
        rows = np.flatnonzero(is_call(events) & correlated)
        if rows.size:
            start = ints(events, "start_ns")[rows]
            end = start + ints(events, "dur_ns")[rows]
            thread = self._numbered(ints(events, "pid")[rows], ints(events, "tid")[rows])
            found: list[npt.NDArray[np.integer[Any]]] = [correlation[rows], start, end, thread]
            for column, values in zip(self._calls, found):
                column.append(values)
            self._is_sorted = False
        launched = np.flatnonzero(on_device(events) & correlated)
        linked = np.zeros(events.num_rows, dtype=bool)
        columns = np.zeros((len(LAUNCH_COLUMNS), events.num_rows), dtype=np.int64)
        if launched.size and self._calls[0]:
            ids, began, returned, threads = self._earliest()
            pid, tid = np.array([*self._threads], dtype=np.int64).T
            place = np.minimum(np.searchsorted(ids, correlation[launched]), ids.size - 1)
            has_call = ids[place] == correlation[launched]
            launched, place = launched[has_call], place[has_call]
            linked[launched] = True
            thread = threads[place]
            columns[:, launched] = began[place], returned[place], pid[thread], tid[thread]
        self.num_linked += int(linked.sum())
        for name, column in zip(LAUNCH_COLUMNS, columns):
            events = events.append_column(name, int_array(column, linked, pa.int64()))
        return events

    def _numbered(self, pid: Int64Array, tid: Int64Array) -> npt.NDArray[np.int32]:
        """The thread of each call, by a number: there are millions of calls and a few threads."""
        count, which = number_pairs(pid, tid)
        example = np.zeros(count, dtype=np.int64)
        example[which] = np.arange(which.size)
        pairs = zip(pid[example].tolist(), tid[example].tolist())
        numbers = [self._threads.setdefault(pair, len(self._threads)) for pair in pairs]
        return np.array(numbers, dtype=np.int32)[which]

    def _earliest(self) -> list[npt.NDArray[np.integer[Any]]]:
        """The columns of the earliest call of each id, by rising ids."""
        if not self._is_sorted:
            ids, start = (np.concatenate(column) for column in self._calls[:2])
            order = np.lexsort((start, ids))
            first = order[np.unique(ids[order], return_index=True)[1]]
            del ids, start, order
            for number, column in enumerate(self._calls):
                self._calls[number] = [np.concatenate(column)[first]]
            self._is_sorted = True
        return [column for (column,) in self._calls]


def find_launches(events: pa.Table) -> Launches:
    """Links device rows to their launches.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`: all that there are, or some with :data:`LAUNCH_COLUMNS`.
    """
    if LAUNCH_COLUMNS[0] not in events.column_names:
        events = LaunchLinks().link(events)
    row_start = ints(events, "start_ns")
    launch_start, linked = optional_ints(events, "launch_start")
    start = np.where(linked, launch_start, row_start)
    end = np.where(linked, ints(events, "launch_end"), row_start)
    rows = np.flatnonzero(is_call(events))
    launched = np.flatnonzero(linked)
    pid, tid = (
        np.concatenate((ints(events, ours)[rows], ints(events, theirs)[launched]))
        for ours, theirs in (("pid", "launch_pid"), ("tid", "launch_tid"))
    )
    num_threads, which = number_pairs(pid, tid)
    threads = np.zeros((num_threads, 2), dtype=np.int64)
    threads[which, 0], threads[which, 1] = pid, tid
    thread: Int64Array = np.full(events.num_rows, -1, dtype=np.int64)
    thread[launched] = which[rows.size :]
    calls = Calls(rows, which[: rows.size], *_waits(events, rows))
    waiting = rows[calls.waits]
    begin, over = row_start[waiting], row_start[waiting] + ints(events, "dur_ns")[waiting]
    of_thread = (calls.thread[calls.waits] == i for i in range(num_threads))
    sync_calls = tuple(Intervals.union(begin[mine], over[mine]) for mine in of_thread)
    return Launches(start, end, thread, linked, calls, sync_calls, threads)


def on_device(events: pa.Table) -> BoolArray:
    """Rows of device time, shape ``(num_rows,)``: not the synchronisation rows, which name a device too."""
    _, has_device = optional_ints(events, "device")
    category, _ = codes_and_names(events, "category")
    return np.asarray(has_device & (category >= 0), dtype=bool)


def is_call(events: pa.Table) -> BoolArray:
    """Runtime and driver calls, shape ``(num_rows,)``."""
    cat, names = codes_and_names(events, "cat")
    return np.isin(cat, [code for code, name in enumerate(names) if name in RUNTIME_CATS])


def waits_by_name(name: str) -> bool:
    """Whether a call of this name synchronises."""
    return any(part in name for part in SYNCHRONISING)


def _waits(events: pa.Table, calls: Int64Array) -> tuple[BoolArray, BoolArray]:
    """Which of the calls synchronise by their names, and which of these are not asynchronous."""
    names, distinct = codes_and_names(events, "name")
    synchronising = [i for i, name in enumerate(distinct) if waits_by_name(name)]
    waits = np.isin(names[calls], synchronising)
    return waits, waits & ~np.isin(names[calls], [i for i in synchronising if "Async" in distinct[i]])
