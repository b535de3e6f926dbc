"""Stage 3's gathers in two lines of text."""

from __future__ import annotations

from zerotrace.model import Analysis
from zerotrace.report.gather_words import gather_cautions, gather_lead


def gather_lines(analysis: Analysis) -> list[str]:
    """What prefetch hides, and what keeps that from being the answer; nothing below stage 3."""
    report = analysis.gathers
    if report is None:
        return []
    return [f"Gathers: {gather_lead(report)}", *gather_cautions(report)]
