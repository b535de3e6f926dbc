"""Stage 3's gathers in a few lines of text."""

from __future__ import annotations

from zerotrace.model import Analysis
from zerotrace.report.gather_words import gather_lead, gather_remarks


def gather_lines(analysis: Analysis) -> list[str]:
    """What prefetch hides, what the coordinator costs, and which steps are cold; nothing below stage 3."""
    report = analysis.gathers
    if report is None:
        return []
    return [f"Gathers: {gather_lead(report)}", *gather_remarks(report)]
