"""Records that stand twice in one file: a buffer that the profiler delivered again."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zerotrace.ingest.columns import Texts
from zerotrace.ingest.kineto import Args, Event
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray


def find_duplicates(
    events: Sequence[Event],
    args: Sequence[Args],
    names: Texts,
    start_ns: Int64Array,
    dur_ns: Int64Array,
    is_device: BoolArray,
) -> BoolArray:
    """Rows that repeat one before them: equal name, start, duration, place and ids. All arguments have one entry a row.

    Kernels of one launch share its correlation id, but never all of this: a stream runs no two equal kernels at one
    moment. Host rows are looked at only where there are no others: elsewhere nothing but their time is counted.

    Args:
        events: the events, in file order.
        args: their arguments.
        names: their names.
        start_ns: their starts.
        dur_ns: their durations.
        is_device: which of them are rows of device time.

    Returns:
        Shape ``(n,)``.
    """
    repeated = np.zeros(start_ns.size, dtype=bool)
    device = bool(is_device.any())
    rows = np.flatnonzero(is_device) if device else np.arange(start_ns.size)
    order = rows[np.argsort(start_ns[rows], kind="stable")]
    start, dur, name = start_ns[order], dur_ns[order], names.codes[order]
    # Few rows share a moment; only those are looked at one by one.
    moments = start[1:][start[1:] == start[:-1]]
    if not moments.size:
        return repeated
    seen = set()
    for place in np.flatnonzero(np.isin(start, moments)).tolist():
        row = int(order[place])
        what = (int(start[place]), int(dur[place]), int(name[place]))
        key = (*what, *_identity(events[row], args[row], device))
        repeated[row] = key in seen
        seen.add(key)
    return repeated


def _identity(event: Event, args: Args, device: bool) -> tuple[str, ...]:
    place = (args.device, args.stream) if device else (args.external_id, args.legacy_external_id)
    return tuple(map(str, (event.cat, event.pid, event.tid, args.correlation, *place)))
