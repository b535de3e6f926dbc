"""Diagnostics on the page: where the first of equal ones stands, and which others say the same."""

from __future__ import annotations

from zerotrace.analysis.diagnostics import NAMED_FILES, DiagnosticGroup
from zerotrace.report.words import Named, counted, joined, shown, tell


def place_text(group: DiagnosticGroup) -> str:
    """As :attr:`DiagnosticGroup.place`."""
    if group.event is not None:
        return tell("first at event {}", shown(group.event))
    return "" if group.offset is None else tell("first at byte {}", shown(group.offset))


def others_text(group: DiagnosticGroup) -> str:
    """As :attr:`DiagnosticGroup.others`; its numbers count entries of the list in ``analysis.json``."""
    if group.num_notes < 2:
        return ""
    in_all = tell("; {} in all", counted(group.count)) if group.count > group.num_notes else ""
    files = group.files[1:]
    if len(files) + 1 < group.num_notes:
        return tell("and {} more of these{}", counted(group.num_notes - 1), in_all)
    named = joined(", ", map(Named, files[:NAMED_FILES]))
    more = tell(" and {} more files", counted(len(files) - NAMED_FILES)) if len(files) > NAMED_FILES else ""
    return tell("the same of {}{}{}", named, more, in_all)
