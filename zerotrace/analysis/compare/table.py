"""The study's table as CSV."""

from __future__ import annotations

import csv
import io

from zerotrace.model import ComparedRun, Comparison
from zerotrace.texts import spelled_out
from zerotrace.units import GIB, NS_PER_MS

_COLUMNS = ("stage", "world", "n_params", "resident_GiB", "peak_GiB", "step_ms", "ktok_per_s")


def study_csv(comparison: Comparison) -> str:
    """One row a run: what is unknown is empty, and an engine without stages stands in the place of its stage."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for run in comparison.runs:
        figures = (
            _scaled(run.resident_bytes, GIB),
            _scaled(run.peak_bytes, GIB),
            _scaled(run.step_ns, NS_PER_MS),
            _scaled(run.tokens_per_s, 1000),
        )
        writer.writerow([_inert(stage_text(run)), run.world_size, run.num_params, *figures])
    return text.getvalue()


def stage_text(run: ComparedRun) -> str:
    """The stage, or the engine where it has none: with its variant, as ``fsdp2 kept``."""
    if run.stage is not None:
        return str(run.stage)
    variant = (run.scheme or "").partition(", ")[2]
    return f"{run.engine} {variant}" if variant else run.engine


def _scaled(value: float | None, unit: int) -> float | None:
    return None if value is None else value / unit


def _inert(text: str) -> str:
    """A text for a cell of CSV: what a spreadsheet would run as a formula gets an apostrophe in front.

    Line ends are spelled out: Python quotes a carriage return only where it ends lines, and it would begin a row.
    """
    return spelled_out(f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else text)
