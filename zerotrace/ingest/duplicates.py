"""Records that stand twice in one file: a buffer that the profiler delivered again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from zerotrace.ingest.columns import Ints
from zerotrace.ingest.files import name_of
from zerotrace.ingest.rows import EventRows
from zerotrace.intervals import Int64Array
from zerotrace.model import Diagnostic, Level
from zerotrace.tables import BoolArray


def without_duplicates(rows: EventRows, path: Path, diagnostics: list[Diagnostic]) -> EventRows:
    """The rows without those that repeat one before them.

    Args:
        rows: rows in file order.
        path: for messages.
        diagnostics: what is removed is added here.
    """
    repeated = find_duplicates(rows)
    count = int(repeated.sum())
    if not count:
        return rows
    noun = ("device row" if rows.is_device.any() else "host event") + ("" if count == 1 else "s")
    diagnostics.append(
        Diagnostic(
            code="duplicate_events",
            level=Level.WARNING,
            file=name_of(path),
            count=count,
            event=int(rows.position[repeated][0]),
            message=f"{name_of(path)}: {count} {noun} removed that repeat another one in name, time, place and ids",
            hint="the profiler delivered a buffer twice; each record is counted once",
        )
    )
    return rows.without(repeated)


def find_duplicates(rows: EventRows) -> BoolArray:
    """Rows that repeat one before them: equal name, start, duration, place and ids.

    Kernels of one launch share its correlation id, but never all of this: a stream runs no two equal kernels at one
    moment. Host rows are looked at only where there are no others: elsewhere nothing but their time is counted.

    Returns:
        Shape ``(n,)``.
    """
    repeated = np.zeros(len(rows), dtype=bool)
    on_device = np.flatnonzero(rows.is_device)
    device = on_device.size > 0
    looked_at = on_device if device else np.arange(len(rows))
    start = rows.start_ns[looked_at]
    by_start = np.argsort(start, kind="stable")
    order, start = looked_at[by_start], start[by_start]
    # Few rows share a moment; only those are looked at one by one.
    moments = start[1:][start[1:] == start[:-1]]
    if not moments.size:
        return repeated
    candidates = order[np.isin(start, moments)]
    seen = set()
    for row, key in zip(candidates.tolist(), _identities(rows, candidates, device)):
        repeated[row] = key in seen
        seen.add(key)
    return repeated


def _identities(rows: EventRows, where: Int64Array, device: bool) -> Iterator[tuple[int | None, ...]]:
    """All that tells a row from others."""
    # Each column is loaded by itself, and let go of.
    columns = [getattr(rows, name)[where].tolist() for name in ("start_ns", "dur_ns")]
    columns += [getattr(rows, name).codes[where].tolist() for name in ("names", "cats")]
    columns += [_known(getattr(rows, name).take(where)) for name in ("pid", "tid", "correlation")]
    if device:
        lanes = rows.lanes
        entries = lanes.of_rows(where)
        columns += [_known(lanes.ints(name).take(entries)) for name in ("device", "stream")]
    else:
        columns.append(_known(rows.external_id.take(where)))
    return zip(*columns)


def _known(column: Ints) -> list[int | None]:
    return [value if known else None for value, known in zip(column.values.tolist(), column.present.tolist())]
