"""What leads the page of a run of many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec.structs import replace

from zerotrace.analysis.ranks.choice import choose_ranks
from zerotrace.analysis.ranks.figures import Cells, rank_figures, step_cells, values_of
from zerotrace.analysis.ranks.spread import OUTLIER_RATIO, rank_spread, step_spread
from zerotrace.model import Analysis, RankFigure, RankFigures, RankOverview, RankSpread

#: Up to so many ranks each is shown in full, and HTA is run of them.
MANY_RANKS = 16

#: Places that are drawn by rank and step: fewer steps where there are more ranks.
MAX_CELLS = 1 << 16
MAX_STEPS = 64

_SPREAD = (RankFigure.SPAN, RankFigure.OWN, RankFigure.COMPUTE, RankFigure.EXPOSED, RankFigure.TRANSFER,
           RankFigure.WAIT, RankFigure.IDLE, RankFigure.HOST_BOUND, RankFigure.LATE, RankFigure.PEAK)  # fmt: skip


def with_overview(analysis: Analysis, asked: Sequence[int] = ()) -> Analysis:
    """The analysis with its overview of the ranks, if there are more than :data:`MANY_RANKS`, or some are asked for.

    Args:
        analysis: findings and all else are there.
        asked: ranks to show in full, instead of those that stand out.
    """
    num_ranks = len({one.rank for one in analysis.ranks})
    if num_ranks <= MANY_RANKS and not asked:
        return analysis
    if not num_ranks:
        return analysis
    ranks, cells = rank_figures(analysis), step_cells(analysis)
    spreads = tuple(_spreads(analysis, ranks))
    shown, left_out = choose_ranks(analysis, ranks, spreads, asked)
    steps = _mapped_steps(cells, len(ranks))
    return replace(
        analysis,
        rank_overview=RankOverview(
            num_ranks=num_ranks,
            ranks=ranks,
            spreads=spreads,
            map_figures=tuple(cells),
            map_steps=steps,
            steps=tuple(
                step_spread(figure, step, by_step[step])
                for figure, by_step in cells.items()
                for step in steps
                if step in by_step
            ),
            shown=shown,
            left_out=left_out,
        ),
    )


def shown_ranks(analysis: Analysis) -> frozenset[int] | None:
    """The ranks that are shown in full; ``None`` where all are."""
    overview = analysis.rank_overview
    return None if overview is None else frozenset(entry.rank for entry in overview.shown)


def _spreads(analysis: Analysis, ranks: Sequence[RankFigures]) -> list[RankSpread]:
    """The figures of which anything is known; exposed time as a whole only where it is not known in parts."""
    step = median(one.span_ns for one in ranks)
    num_steps = len({part.step for part in analysis.partition if part.known})
    found = []
    for figure in _SPREAD:
        values = values_of(ranks, figure)
        if not values:
            continue
        matters = OUTLIER_RATIO * step
        if figure is RankFigure.LATE:
            matters *= num_steps  # it is a sum over all of them
        elif figure is RankFigure.PEAK:
            matters = OUTLIER_RATIO * median(one.value for one in values)
        found.append(rank_spread(figure, values, matters))
    known = {spread.figure for spread in found}
    if known >= {RankFigure.TRANSFER, RankFigure.WAIT}:
        found = [spread for spread in found if spread.figure is not RankFigure.EXPOSED]
    return found


def _mapped_steps(cells: Cells, num_columns: int) -> tuple[int, ...]:
    spans = cells.get(RankFigure.SPAN, {})
    most = max(1, min(MAX_STEPS, MAX_CELLS // max(1, num_columns)))
    longest = sorted(spans, key=lambda step: (-max(one.value for one in spans[step]), step))
    return tuple(sorted(longest[:most]))
