"""Which ranks of many are shown in full, and why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from zerotrace.analysis.ranks.figures import values_of
from zerotrace.errors import ExitCode, RanksError
from zerotrace.model import (
    MOST_FINDINGS,
    Analysis,
    Mode,
    RankFigure,
    RankFigures,
    RankSpread,
    ShownBecause,
    ShownRank,
    ShownReason,
)
from zerotrace.units import format_count

#: Ranks that are shown in full by themselves, and those that can be asked for.
MAX_SHOWN = 8
MAX_ASKED = 16

#: Rows that the lanes of the ranks shown may draw in sum: some 7 bytes of the page each.
MAX_ROWS = 600_000

_RANGE = re.compile(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", re.ASCII)


def parse_ranks(text: str) -> tuple[int, ...]:
    """Ranks as a user lists them: ``3,17`` or ``0-3,64``; in their order, each once.

    Raises:
        RanksError: ``ranks_invalid`` if it is no such list, ``ranks_too_many`` if it names more than a page shows.
    """
    found: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise RanksError(
                f"--ranks {text[:80]}: found {part[:40]!r}, expected ranks such as 3,17 or 0-3,64",
                code="ranks_invalid",
                hint="name ranks by number, with commas between them",
                exit_code=ExitCode.USAGE,
            )
        if last - first >= MAX_ASKED or len(found | {*range(first, last + 1)}) > MAX_ASKED:
            raise RanksError(
                f"--ranks {text[:80]}: more than {MAX_ASKED} ranks, and a page has lanes for at most so many",
                code="ranks_too_many",
                hint="name fewer, and draw the page again for the others; `zerotrace export --perfetto` has all ranks",
                exit_code=ExitCode.USAGE,
            )
        found.update(range(first, last + 1))
    return tuple(sorted(found))


def require_ranks(analysis: Analysis, asked: Sequence[int]) -> None:
    """Checks that the ranks asked for are in the run.

    Raises:
        RanksError: ``ranks_unknown`` names those that are not.
    """
    known = sorted({source.rank for source in analysis.sources})
    unknown = [rank for rank in asked if rank not in known]
    if unknown:
        has = f"{format_count(len(known))} ranks, {known[0]} to {known[-1]}" if len(known) > 1 else f"rank {known[0]}"
        noun = "rank" if len(unknown) == 1 else "ranks"
        raise RanksError(
            f"--ranks: {noun} {', '.join(map(str, unknown))} not in the run, which has {has}",
            code="ranks_unknown",
            hint="name ranks whose traces were analysed",
        )


def choose_ranks(
    analysis: Analysis, ranks: Sequence[RankFigures], spreads: Sequence[RankSpread], asked: Sequence[int] = ()
) -> tuple[tuple[ShownRank, ...], tuple[ShownRank, ...]]:
    """The ranks that are shown in full, and those with a reason that found no room. Both by rank.

    Slowest, fastest and median go first, by what the step takes a rank without waiting for others: in a synchronous
    step all have the same span, and the slowest one waits least. Then whoever arrives last, the findings' ranks, and of
    each figure the rank that is furthest outside. Ranks that are asked for are the only ones.

    Args:
        analysis: sources, findings and stragglers are used.
        ranks: figures of every rank.
        spreads: how they spread.
        asked: ranks that are asked for, if any.
    """
    rows = {
        source.rank: source.num_device_rows if analysis.mode is Mode.DEVICE else source.num_events
        for source in analysis.sources
    }
    reasons: dict[int, list[ShownReason]] = {}
    found = _asked(asked) if asked else _reasons(analysis, ranks, spreads)
    for rank, reason in found:
        reasons.setdefault(rank, []).append(reason)
    shown: list[ShownRank] = []
    left_out: list[ShownRank] = []
    total = 0
    for rank, why in reasons.items():
        entry = ShownRank(rank=rank, reasons=tuple(why), num_rows=rows.get(rank, 0))
        fits = not shown or (len(shown) < MAX_SHOWN and total + entry.num_rows <= MAX_ROWS)
        (shown if fits or asked else left_out).append(entry)
        total += entry.num_rows if fits else 0
    return tuple(sorted(shown, key=lambda one: one.rank)), tuple(sorted(left_out, key=lambda one: one.rank))


def _asked(asked: Sequence[int]) -> Iterator[tuple[int, ShownReason]]:
    for rank in asked:
        yield rank, ShownReason(because=ShownBecause.ASKED)


def _reasons(
    analysis: Analysis, ranks: Sequence[RankFigures], spreads: Sequence[RankSpread]
) -> Iterator[tuple[int, ShownReason]]:
    """Ranks with a reason each, in the order of importance."""
    yield from _by_pace(ranks)
    yield from _by_arrival(ranks)
    for finding in analysis.findings[:MOST_FINDINGS]:
        if finding.place is not None:
            yield finding.place.rank, ShownReason(because=ShownBecause.FINDING, finding=finding.code)
    for spread in spreads:
        for one in spread.outliers[:1]:
            yield one.rank, ShownReason(because=ShownBecause.OUTLIER, figure=spread.figure, value=one.value)


def _by_pace(ranks: Sequence[RankFigures]) -> Iterator[tuple[int, ShownReason]]:
    figure = RankFigure.OWN if any(one.own_ns is not None for one in ranks) else RankFigure.SPAN
    ordered = sorted(values_of(ranks, figure), key=lambda one: (one.value, one.rank))
    if not ordered:
        return
    chosen = (
        (ShownBecause.SLOWEST, ordered[-1]),
        (ShownBecause.FASTEST, ordered[0]),
        (ShownBecause.MEDIAN, ordered[(len(ordered) - 1) // 2]),
    )
    for because, one in chosen:
        yield one.rank, ShownReason(because=because, figure=figure, value=one.value)


def _by_arrival(ranks: Sequence[RankFigures]) -> Iterator[tuple[int, ShownReason]]:
    often = max(ranks, key=lambda one: (one.num_late or 0, -one.rank))
    if often.num_late:
        yield often.rank, ShownReason(because=ShownBecause.LAST, value=often.num_late)
    most = max(ranks, key=lambda one: (one.late_ns or 0, -one.rank))
    if most.late_ns:
        yield most.rank, ShownReason(because=ShownBecause.LATEST, figure=RankFigure.LATE, value=most.late_ns)
