"""Runs of many ranks in words: what their figures are called, and why a rank is shown in full."""

from __future__ import annotations

from collections.abc import Sequence

from zerotrace.model import RankFigure, RankOverview, ShownBecause, ShownRank, ShownReason
from zerotrace.report.words import Shown, joined, shown, tell
from zerotrace.units import format_bytes, format_count, format_ns

#: Name of each figure, and the role in whose colour it is drawn.
FIGURES: dict[RankFigure, tuple[str, str]] = {
    RankFigure.SPAN: ("step", "muted"),
    RankFigure.OWN: ("step without waiting", "muted"),
    RankFigure.COMPUTE: ("compute", "compute"),
    RankFigure.EXPOSED: ("exposed comm", "exposed"),
    RankFigure.TRANSFER: ("exposed transfer", "exposed"),
    RankFigure.WAIT: ("waiting for a rank", "exposed"),
    RankFigure.IDLE: ("idle", "idle"),
    RankFigure.HOST_BOUND: ("idle, host-bound", "idle"),
    RankFigure.LATE: ("late, over all steps", "copy"),
    RankFigure.CAUSED_WAIT: ("others wait for it", "copy"),
    RankFigure.PEAK: ("peak memory", "overlapped"),
}

_PACES = {
    ShownBecause.SLOWEST: "the slowest",
    ShownBecause.FASTEST: "the fastest",
    ShownBecause.MEDIAN: "the median",
}


def figure_text(figure: RankFigure, value: float) -> Shown:
    """A value with its unit."""
    return shown(value, format_bytes if figure is RankFigure.PEAK else format_ns)


def reasons_text(entry: ShownRank) -> str:
    """Why a rank is shown, one phrase a reason; what it stands out in is one phrase."""
    phrases = [_phrase(reason) for reason in entry.reasons if reason.because is not ShownBecause.OUTLIER]
    outside = [reason.figure for reason in entry.reasons if reason.because is ShownBecause.OUTLIER]
    names = [FIGURES[figure][0] for figure in outside if figure is not None]
    if names:
        phrases.append(tell("stands out most in {}", _listed(names)))
    return joined("; ", phrases)


def overview_lead(overview: RankOverview) -> str:
    """How many ranks there are, and what the page shows of them."""
    asked = any(reason.because is ShownBecause.ASKED for entry in overview.shown for reason in entry.reasons)
    return tell(
        "There are {} ranks, too many to read one by one: here figures stand as they spread over them, and by rank and "
        "step. Bars, rows and lanes further down are of {} {}, {}.",
        shown(overview.num_ranks, format_count),
        "rank" if len(overview.shown) == 1 else "ranks",
        _listed([str(entry.rank) for entry in overview.shown]),
        "as asked for" if asked else "those that matter most here",
    )


def left_out_text(overview: RankOverview) -> str | None:
    """Which ranks have a reason too, but no room; ``None`` where there are none."""
    if not overview.left_out:
        return None
    entries = [tell("rank {} ({})", str(entry.rank), reasons_text(entry)) for entry in overview.left_out]
    return tell("No room on the page was left for {}.", _listed(entries))


def _phrase(reason: ShownReason) -> str:
    because, figure, value = reason.because, reason.figure, reason.value
    if because in _PACES and figure is not None and value is not None:
        return tell("{}, {} a {}", _PACES[because], figure_text(figure, value), FIGURES[figure][0])
    if because is ShownBecause.LAST and value is not None:
        return tell("the last to arrive most often, {} ×", shown(value, lambda count: format_count(int(count))))
    if because is ShownBecause.LATEST:
        return tell("late by most in sum, {}", shown(value, format_ns))
    if because is ShownBecause.FINDING:
        return f"evidence of the finding {(reason.finding or '').replace('_', ' ')}"
    return "asked for"


def _listed(texts: Sequence[str]) -> str:
    return texts[0] if len(texts) == 1 else tell("{} and {}", joined(", ", texts[:-1]), texts[-1])
