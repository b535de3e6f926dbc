"""Who is late and why, as section 4 shows it."""

from __future__ import annotations

from dataclasses import dataclass

from zerotrace.model import Lateness, Stragglers
from zerotrace.units import format_count

#: Ranks in the table.
MAX_RANKS = 512


@dataclass(frozen=True, kw_only=True)
class LatenessRow:
    """One rank's lateness, and what it had more of than the rank before it. The five and ``began`` add up to it."""

    lateness: Lateness
    compute_ns: int
    copy_ns: int
    comm_ns: int
    host_bound_ns: int | None
    rest_ns: int


@dataclass(frozen=True, kw_only=True)
class LatenessPart:
    """What the section shows of it."""

    sentence: str
    rows: tuple[LatenessRow, ...]
    note: str | None
    """Which ranks are shown, if not all are."""


def lateness_part(stragglers: Stragglers | None) -> LatenessPart | None:
    """The part of the section; ``None`` where no collective was matched."""
    if stragglers is None:
        return None
    ranks, note = stragglers.ranks, None
    if len(ranks) > MAX_RANKS:
        ranks = tuple(sorted(ranks, key=lambda lateness: -lateness.late_ns)[:MAX_RANKS])
        note = f"The {MAX_RANKS} of {format_count(len(stragglers.ranks))} ranks with the most lateness."
    return LatenessPart(sentence=stragglers.sentence, rows=tuple(_row(lateness) for lateness in ranks), note=note)


def _row(lateness: Lateness) -> LatenessRow:
    own, before = lateness.own, lateness.before
    bound = None
    if own.host_bound_ns is not None and before.host_bound_ns is not None:
        bound = own.host_bound_ns - before.host_bound_ns
    return LatenessRow(
        lateness=lateness,
        compute_ns=own.compute_ns - before.compute_ns,
        copy_ns=own.copy_ns - before.copy_ns,
        comm_ns=own.comm_ns - before.comm_ns,
        host_bound_ns=bound,
        rest_ns=own.rest_ns - before.rest_ns,
    )
