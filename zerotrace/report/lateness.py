"""Who is late and why, as section 4 shows it."""

from __future__ import annotations

from msgspec import Struct

from zerotrace.model import LateGroup, Lateness, Stragglers
from zerotrace.report.words import counted, tell

#: Ranks in the table; the second where all else shows some ranks only.
MAX_RANKS = 512
MAX_OF_MANY = 16


class LatenessPart(Struct, frozen=True, kw_only=True):
    """What the section shows of it."""

    sentence: str
    group: LateGroup | None
    """Ranks that are late together."""
    rows: tuple[Lateness, ...]
    note: str | None
    """Which ranks are shown, if not all are."""


def lateness_part(stragglers: Stragglers | None, many_ranks: bool = False) -> LatenessPart | None:
    """The part of the section; ``None`` where no collective was matched.

    Args:
        stragglers: who is late.
        many_ranks: whether there are so many ranks that the page shows some of them.
    """
    if stragglers is None:
        return None
    ranks, note = stragglers.ranks, None
    most = MAX_OF_MANY if many_ranks else MAX_RANKS
    if len(ranks) > most:
        ranks = tuple(sorted(ranks, key=lambda lateness: -lateness.late_ns)[:most])
        note = tell("The {} of {} ranks with the most lateness.", counted(most), counted(len(stragglers.ranks)))
    return LatenessPart(sentence=stragglers.sentence, group=stragglers.group, rows=ranks, note=note)
