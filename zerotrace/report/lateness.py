"""Who is late and why, as section 4 shows it."""

from __future__ import annotations

from dataclasses import dataclass

from zerotrace.model import Lateness, Stragglers
from zerotrace.report.words import counted, tell

#: Ranks in the table.
MAX_RANKS = 512


@dataclass(frozen=True, kw_only=True)
class LatenessPart:
    """What the section shows of it."""

    sentence: str
    rows: tuple[Lateness, ...]
    note: str | None
    """Which ranks are shown, if not all are."""


def lateness_part(stragglers: Stragglers | None) -> LatenessPart | None:
    """The part of the section; ``None`` where no collective was matched."""
    if stragglers is None:
        return None
    ranks, note = stragglers.ranks, None
    if len(ranks) > MAX_RANKS:
        ranks = tuple(sorted(ranks, key=lambda lateness: -lateness.late_ns)[:MAX_RANKS])
        note = tell("The {} of {} ranks with the most lateness.", counted(MAX_RANKS), counted(len(stragglers.ranks)))
    return LatenessPart(sentence=stragglers.sentence, rows=ranks, note=note)
