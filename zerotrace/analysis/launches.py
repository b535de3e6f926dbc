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
class Launches:
    """The launch of each row of an event table. All columns have one entry a row.

    A device row and the runtime or driver call that launched it carry one correlation id. Where a runtime call
    makes a driver call of the same id, the earlier one counts.

    Attributes:
        start: when the call began; the row's own start where there is none.
        end: when the call returned; the row's own start where there is none.
        thread: which thread made the call, as an index into ``sync_calls``; -1 where there is none.
        linked: rows whose launch is in the trace.
        sync_calls: for each thread that launches, when it is inside a synchronising call.
    """

    start: Int64Array
    end: Int64Array
    thread: Int64Array
    linked: BoolArray
    sync_calls: tuple[Intervals, ...]


def find_launches(events: pa.Table) -> Launches:
    """Links device rows to their launches.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
    """
    row_start = ints(events, "start_ns")
    row_end = row_start + ints(events, "dur_ns")
    correlation, correlated = optional_ints(events, "correlation")
    calls = np.flatnonzero(_is_call(events))
    num_threads, thread_of_call = number_pairs(ints(events, "pid")[calls], ints(events, "tid")[calls])
    linked = np.zeros(events.num_rows, dtype=bool)
    start: Int64Array = np.array(row_start)
    end: Int64Array = np.array(row_start)
    thread: Int64Array = np.full(events.num_rows, -1, dtype=np.int64)
    launching = calls[correlated[calls]]
    if launching.size:
        order = np.lexsort((row_start[launching], correlation[launching]))
        launching = launching[order]
        ids, first = np.unique(correlation[launching], return_index=True)
        rows = np.flatnonzero(on_device(events) & correlated)
        place = np.minimum(np.searchsorted(ids, correlation[rows]), ids.size - 1)
        found = ids[place] == correlation[rows]
        rows, call = rows[found], launching[first[place[found]]]
        linked[rows] = True
        start[rows], end[rows] = row_start[call], row_end[call]
        thread[rows] = thread_of_call[np.searchsorted(calls, call)]
    names, distinct = codes_and_names(events, "name")
    waits = np.isin(names[calls], [i for i, name in enumerate(distinct) if any(part in name for part in SYNCHRONISING)])
    sync_calls = tuple(
        Intervals.union(row_start[calls[waits & (thread_of_call == i)]], row_end[calls[waits & (thread_of_call == i)]])
        for i in range(num_threads)
    )
    return Launches(start, end, thread, linked, sync_calls)


def on_device(events: pa.Table) -> BoolArray:
    """Rows of device time, shape ``(num_rows,)``: not the synchronisation rows, which name a device too."""
    _, has_device = optional_ints(events, "device")
    category, _ = codes_and_names(events, "category")
    return np.asarray(has_device & (category >= 0), dtype=bool)


def _is_call(events: pa.Table) -> BoolArray:
    cat, names = codes_and_names(events, "cat")
    return np.isin(cat, [code for code, name in enumerate(names) if name in RUNTIME_CATS])
