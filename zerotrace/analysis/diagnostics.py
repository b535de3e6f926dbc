"""Diagnostics for people: ten thousand equal ones are one line."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from zerotrace.model import Diagnostic, Level

#: Codes of diagnostics that something of one rank could not be read, while others are there.
RANK_FAILED, MEMORY_FAILED = "rank_failed", "memory_failed"

#: Code of the diagnostic that a trace cannot be of what its manifest says of it.
STAGE_CONTRADICTS = "stage_contradicts"

_WORST_FIRST = (Level.ERROR, Level.WARNING, Level.INFO)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
#: Files that are named; the others are counted.
NAMED_FILES = 3


class DiagnosticGroup(Struct, frozen=True, kw_only=True):
    """Diagnostics that say one thing: of one code and level, in the same words but for the file and what they count."""

    code: str
    level: Level
    message: str
    """The words of the first of them."""
    hint: str | None
    files: tuple[str, ...]
    count: int
    """What they count in all."""
    num_notes: int
    """How many there are."""
    event: int | None
    """As in :class:`zerotrace.model.Diagnostic`, of the first."""
    offset: int | None

    @property
    def place(self) -> str:
        """Where in its file the first of it stands, in words; empty where that is not known."""
        if self.event is not None:
            return f"first at event {self.event}"
        return "" if self.offset is None else f"first at byte {self.offset}"

    @property
    def others(self) -> str:
        """Which other notes say the same, in words; empty where there are none."""
        if self.num_notes < 2:
            return ""
        in_all = f"; {self.count} in all" if self.count > self.num_notes else ""
        files = self.files[1:]
        if len(files) + 1 < self.num_notes:
            return f"and {self.num_notes - 1} more of these{in_all}"
        named = ", ".join(files[:NAMED_FILES])
        more = f" and {len(files) - NAMED_FILES} more files" if len(files) > NAMED_FILES else ""
        return f"the same of {named}{more}{in_all}"


def group_diagnostics(notes: Iterable[Diagnostic], *levels: Level) -> tuple[DiagnosticGroup, ...]:
    """Diagnostics as a reader wants them, worst first; within a level in the order in which they came.

    Args:
        notes: diagnostics.
        levels: those that count; all of them by default.
    """
    groups: dict[tuple[Level, str, str], list[Diagnostic]] = {}
    for note in notes:
        if not levels or note.level in levels:
            groups.setdefault((note.level, note.code, _words(note)), []).append(note)
    found = [
        DiagnosticGroup(
            code=code,
            level=level,
            message=members[0].message,
            hint=next((member.hint for member in members if member.hint), None),
            files=tuple(dict.fromkeys(member.file for member in members if member.file)),
            count=sum(member.count for member in members),
            num_notes=len(members),
            event=members[0].event,
            offset=members[0].offset,
        )
        for (level, code, _), members in groups.items()
    ]
    return tuple(sorted(found, key=lambda group: _WORST_FIRST.index(group.level)))


def _words(note: Diagnostic) -> str:
    text = note.message if note.file is None else note.message.removeprefix(f"{note.file}: ")
    counts = {f"{note.count}", f"{note.count:,}"}
    return _NUMBER.sub(lambda number: "#" if number[0] in counts else number[0], text)
