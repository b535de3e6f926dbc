"""From a device row back to the host call that launched it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from zerotrace.ingest.classify import RUNTIME_CATS
from zerotrace.intervals import Int64Array
from zerotrace.tables import codes_and_names, equals, ints, optional_ints


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
    start = ints(events, "start_ns")
    correlation, correlated = optional_ints(events, "correlation")
    _, on_device = optional_ints(events, "device")
    is_call = np.zeros(events.num_rows, dtype=bool)
    for cat in RUNTIME_CATS:
        is_call |= equals(events, "cat", cat)
    calls = np.flatnonzero(is_call & correlated)
    launched = start.copy()
    if calls.size == 0:
        return launched
    calls = calls[np.lexsort((start[calls], correlation[calls]))]
    ids, first = np.unique(correlation[calls], return_index=True)
    rows = np.flatnonzero(on_device & correlated)
    place = np.minimum(np.searchsorted(ids, correlation[rows]), ids.size - 1)
    linked = ids[place] == correlation[rows]
    launched[rows[linked]] = start[calls[first[place[linked]]]]
    return launched


def num_unlinked(events: pa.Table) -> int:
    """Device rows whose launch is not in the trace."""
    correlation, correlated = optional_ints(events, "correlation")
    codes, cats = codes_and_names(events, "cat")
    is_call = np.isin(codes, [i for i, cat in enumerate(cats) if cat in RUNTIME_CATS])
    _, on_device = optional_ints(events, "device")
    known = np.isin(correlation, correlation[is_call & correlated])
    return int((on_device & ~(correlated & known)).sum())
