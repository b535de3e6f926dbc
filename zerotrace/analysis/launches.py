"""From a device row back to the host call that launched it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from zerotrace.ingest.classify import RUNTIME_CATS
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.tables import BoolArray, codes_and_names, ints, number_pairs, optional_ints

#: Runtime and driver calls during which the host waits for the device; parts of their names.
SYNCHRONISING = ("Synchronize", "Memcpy", "Malloc", "Free")


@dataclass(frozen=True, eq=False)
class Calls:
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


@dataclass(frozen=True, eq=False)
class Launches:
    """The launch of each row of an event table. All columns but the last two have one entry a row.

    A device row and the runtime or driver call that launched it carry one correlation id. Where a runtime call
    makes a driver call of the same id, the earlier one counts.

    Attributes:
        start: when the call began; the row's own start where there is none.
        end: when the call returned; the row's own start where there is none.
        thread: which thread made the call, as an index into ``sync_calls``; -1 where there is none.
        linked: rows whose launch is in the trace.
        call: row of the launch call in the event table; -1 where there is none.
        calls: every runtime and driver call.
        sync_calls: for each thread that makes calls, when it is inside a synchronising one.
    """

    start: Int64Array
    end: Int64Array
    thread: Int64Array
    linked: BoolArray
    call: Int64Array
    calls: Calls
    sync_calls: tuple[Intervals, ...]


def find_launches(events: pa.Table) -> Launches:
    """Links device rows to their launches.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
    """
    row_start = ints(events, "start_ns")
    row_end = row_start + ints(events, "dur_ns")
    correlation, correlated = optional_ints(events, "correlation")
    rows = np.flatnonzero(_is_call(events))
    num_threads, thread_of_call = number_pairs(ints(events, "pid")[rows], ints(events, "tid")[rows])
    calls = Calls(rows, thread_of_call, *_waits(events, rows))
    linked = np.zeros(events.num_rows, dtype=bool)
    start: Int64Array = np.array(row_start)
    end: Int64Array = np.array(row_start)
    thread: Int64Array = np.full(events.num_rows, -1, dtype=np.int64)
    launched_by: Int64Array = np.full(events.num_rows, -1, dtype=np.int64)
    launching = rows[correlated[rows]]
    if launching.size:
        order = np.lexsort((row_start[launching], correlation[launching]))
        launching = launching[order]
        ids, first = np.unique(correlation[launching], return_index=True)
        launched = np.flatnonzero(on_device(events) & correlated)
        place = np.minimum(np.searchsorted(ids, correlation[launched]), ids.size - 1)
        found = ids[place] == correlation[launched]
        launched, call = launched[found], launching[first[place[found]]]
        linked[launched] = True
        start[launched], end[launched] = row_start[call], row_end[call]
        thread[launched] = thread_of_call[np.searchsorted(rows, call)]
        launched_by[launched] = call
    sync_calls = tuple(
        Intervals.union(row_start[rows[waiting]], row_end[rows[waiting]])
        for waiting in (calls.waits & (thread_of_call == i) for i in range(num_threads))
    )
    return Launches(start, end, thread, linked, launched_by, calls, sync_calls)


def on_device(events: pa.Table) -> BoolArray:
    """Rows of device time, shape ``(num_rows,)``: not the synchronisation rows, which name a device too."""
    _, has_device = optional_ints(events, "device")
    category, _ = codes_and_names(events, "category")
    return np.asarray(has_device & (category >= 0), dtype=bool)


def _is_call(events: pa.Table) -> BoolArray:
    cat, names = codes_and_names(events, "cat")
    return np.isin(cat, [code for code, name in enumerate(names) if name in RUNTIME_CATS])


def _waits(events: pa.Table, calls: Int64Array) -> tuple[BoolArray, BoolArray]:
    """Which of the calls synchronise by their names, and which of these are not asynchronous."""
    names, distinct = codes_and_names(events, "name")
    synchronising = [i for i, name in enumerate(distinct) if any(part in name for part in SYNCHRONISING)]
    waits = np.isin(names[calls], synchronising)
    return waits, waits & ~np.isin(names[calls], [i for i in synchronising if "Async" in distinct[i]])
