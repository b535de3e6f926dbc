"""The findings of the verdict: the worst few, each with its link into the timeline and its gain in words."""

from __future__ import annotations

from dataclasses import dataclass

from zerotrace.model import MOST_FINDINGS, Analysis, Finding
from zerotrace.report.payload import TimelinePayload


@dataclass(frozen=True, kw_only=True)
class FindingEntry:
    """One finding as the page shows it."""

    finding: Finding
    href: str | None
    """Where the timeline shows the evidence; ``None`` where it does not."""


def finding_entries(analysis: Analysis, payload: TimelinePayload) -> tuple[FindingEntry, ...]:
    """The worst findings, at most five.

    Args:
        analysis: its findings are sorted, worst first.
        payload: knows where the timeline starts to count.
    """
    return tuple(
        FindingEntry(finding=finding, href=_href(finding, payload)) for finding in analysis.findings[:MOST_FINDINGS]
    )


def _href(finding: Finding, payload: TimelinePayload) -> str | None:
    place = finding.place
    if place is None:
        return None
    base = next((group.base_ns for group in payload.groups if group.rank == place.rank), None)
    return None if base is None else f"#t={place.start_ns - base},{place.end_ns - base}"
