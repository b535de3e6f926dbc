"""From a device row back to the host call that launched it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from zerotrace.ingest.classify import RUNTIME_CATS
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray, codes_and_names, ints, optional_ints


def launch_starts(events: pa.Table) -> Int64Array:
    """When each row was launched.

    A device row and the runtime or driver call that launched it carry one correlation id. Where a runtime call
    makes a driver call of the same id, the earlier one counts. A row that launches itself (host rows), or whose
    launch is not in the trace, counts as launched at its own start.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.

    Returns:
        Shape ``(num_rows,)``, nanoseconds.
    """
    start: Int64Array = ints(events, "start_ns")
    correlation, correlated = optional_ints(events, "correlation")
    is_call = _is_call(events)
    calls = np.flatnonzero(is_call & correlated)
    launched: Int64Array = np.array(start)
    if calls.size == 0:
        return launched
    calls = calls[np.lexsort((start[calls], correlation[calls]))]
    ids, first = np.unique(correlation[calls], return_index=True)
    rows = np.flatnonzero(on_device(events) & correlated)
    place = np.minimum(np.searchsorted(ids, correlation[rows]), ids.size - 1)
    linked = ids[place] == correlation[rows]
    launched[rows[linked]] = start[calls[first[place[linked]]]]
    return launched


def num_unlinked(events: pa.Table) -> int:
    """Device rows whose launch is not in the trace."""
    correlation, correlated = optional_ints(events, "correlation")
    known = np.isin(correlation, correlation[_is_call(events) & correlated])
    return int((on_device(events) & ~(correlated & known)).sum())


def on_device(events: pa.Table) -> BoolArray:
    """Rows of device time, shape ``(num_rows,)``: not the synchronisation rows, which name a device too."""
    _, has_device = optional_ints(events, "device")
    category, _ = codes_and_names(events, "category")
    return np.asarray(has_device & (category >= 0), dtype=bool)


def _is_call(events: pa.Table) -> BoolArray:
    cat, names = codes_and_names(events, "cat")
    return np.isin(cat, [code for code, name in enumerate(names) if name in RUNTIME_CATS])
