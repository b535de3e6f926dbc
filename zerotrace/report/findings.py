"""The findings of the verdict: the worst few, each with its link into the timeline and its gain in words."""

from __future__ import annotations

from msgspec import Struct

from zerotrace.model import MOST_FINDINGS, Analysis, Finding, Gain
from zerotrace.report.payload import TimelinePayload
from zerotrace.report.words import Named, joined, shown, tell
from zerotrace.units import format_bytes, format_ns


class FindingEntry(Struct, frozen=True, kw_only=True):
    """One finding as the page shows it."""

    finding: Finding
    href: str | None
    """Where the timeline shows the evidence; ``None`` where it does not."""
    gain: str
    """What the change is predicted to win, in words; empty where that is unknown."""


def finding_entries(analysis: Analysis, payload: TimelinePayload) -> tuple[FindingEntry, ...]:
    """The worst findings, at most five.

    Args:
        analysis: its findings are sorted, worst first.
        payload: knows where the timeline starts to count.
    """
    return tuple(
        FindingEntry(finding=finding, href=_href(finding, payload), gain=_gain_text(finding.gain))
        for finding in analysis.findings[:MOST_FINDINGS]
    )


def _gain_text(gain: Gain | None) -> str:
    """As :attr:`zerotrace.model.Gain.text`, with its figures marked."""
    if gain is None:
        return ""
    time = [] if gain.step_ns is None else [tell("{} a step", shown(gain.step_ns, format_ns))]
    memory = [] if gain.memory_bytes is None else [tell("{} a rank", shown(gain.memory_bytes, format_bytes))]
    amount = joined(" and ", time + memory)
    return tell(f"{'at most' if gain.at_most else 'about'} {{}} ({{}})", amount, Named(gain.basis))


def _href(finding: Finding, payload: TimelinePayload) -> str | None:
    place = finding.place
    if place is None:
        return None
    base = next((group.base_ns for group in payload.groups if group.rank == place.rank), None)
    return None if base is None else f"#t={place.start_ns - base},{place.end_ns - base}"
