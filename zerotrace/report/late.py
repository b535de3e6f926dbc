"""Late gathers for the timeline: prefetches that hold compute back, by rank and device."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from zerotrace.model import Analysis
from zerotrace.report.gather_words import module_name
from zerotrace.report.rows import Vocabulary

#: Columns of ``GATHERS`` that the timeline needs.
LATE_COLUMNS: tuple[str, ...] = (
    "rank", "device", "phase", "module", "need_module", "bytes", "start_ns", "end_ns", "need_ns", "slack_ns",
    "blocking_ns", "late",
)  # fmt: skip


class LateGathers(Struct, frozen=True):
    """What keys jump to."""

    groups: dict[str, list[list[int | None]]]
    """By ``rank/device``, in the order of their start: start, end and need from the rank's base, slack and blocking,
    all in ns; bytes; the names of phase, module and needing module by number."""
    count: int | None
    note: str


def late_gathers(
    analysis: Analysis, table: pa.Table | None, bases: Mapping[int, int], names: Vocabulary
) -> LateGathers:
    """The late gathers of all ranks that are drawn.

    Args:
        analysis: says why nothing is gathered, if so.
        table: the table ``gathers``; ``None`` where the run has none.
        bases: zero of each rank on the page, ns since the epoch.
        names: where names are numbered.
    """
    if table is None or not table.num_rows:
        return LateGathers({}, None, analysis.no_gathers or "Nothing is known of gathers of parameters.")
    if table["late"].null_count == table.num_rows:
        return LateGathers({}, None, "On the host’s time it cannot be told which gathers hold compute back.")
    groups: dict[str, list[list[int | None]]] = {}
    rows = table.filter(pc.fill_null(table["late"], False)).sort_by("start_ns").to_pylist()
    for row in rows:
        base = bases.get(row["rank"])
        if base is None or row["start_ns"] is None or row["end_ns"] is None:
            continue
        need, device = row["need_ns"], row["device"]
        entry = [
            row["start_ns"] - base,
            row["end_ns"] - base,
            None if need is None else need - base,
            row["slack_ns"],
            row["blocking_ns"],
            row["bytes"],
            names.add(row["phase"] or "an unknown phase"),
            names.add(module_name(row["module"])),
            names.add(module_name(row["need_module"])),
        ]
        groups.setdefault(f"{row['rank']}/{'-' if device is None else device}", []).append(entry)
    return LateGathers(groups, sum(map(len, groups.values())), "has no prefetch that holds compute back.")
