"""The section of a run of many ranks: figures as they spread, a map by rank and step, and who is shown in full."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from zerotrace.model import Analysis, RankFigure, RankFigures, RankOverview, RankSpread, StepSpread
from zerotrace.report.rank_map import RankMap, encode_map
from zerotrace.report.rank_words import FIGURES, figure_text, left_out_text, overview_lead, reasons_text
from zerotrace.report.words import counted, tell

#: Size of a histogram; a bar that stands for one rank among a thousand can still be seen.
STRIP_WIDTH, STRIP_HEIGHT, _LEAST_HEIGHT = 160, 28, 2.5


#: The mean step of every rank from the tables, the one that computes longest first.
QUERY = """\
select rank, avg(span_ns) / 1e6 as step_ms, avg(compute_ns) / 1e6 as compute_ms,
       avg(exposed_transfer_ns) / 1e6 as transfer_ms, avg(exposed_wait_ns) / 1e6 as waiting_ms,
       avg(idle_ns) / 1e6 as idle_ms
from 'partition.parquet' where compute_ns is not null
group by rank order by compute_ms desc"""


class Bar(Struct, frozen=True, kw_only=True):
    """One bar of a histogram, in its own units."""

    x: float
    width: float
    height: float
    outside: bool
    """Whether the ranks in it stand out."""


class SpreadRow(Struct, frozen=True, kw_only=True):
    """How one figure spreads."""

    name: str
    role: str
    spread: RankSpread
    bars: tuple[Bar, ...]
    median_x: float

    def text(self, value: float) -> str:
        """A value of the figure with its unit."""
        return figure_text(self.spread.figure, value)


class StepRow(Struct, frozen=True, kw_only=True):
    """How one figure of one step spreads."""

    name: str
    spread: StepSpread


class ShownRow(Struct, frozen=True, kw_only=True):
    """One rank that is shown in full."""

    figures: RankFigures
    reasons: str


class Panel(Struct, frozen=True, kw_only=True):
    """One figure of the map."""

    figure: str
    name: str
    role: str
    low: float
    high: float


class RanksSection(Struct, frozen=True, kw_only=True):
    """What the section shows."""

    overview: RankOverview
    lead: str
    left_out: str | None
    has_devices: bool
    """Whether a rank drives more than one."""
    spreads: tuple[SpreadRow, ...]
    steps: tuple[StepRow, ...]
    shown: tuple[ShownRow, ...]
    panels: tuple[Panel, ...]
    steps_note: str | None
    """Which steps the map has, where it has not all."""
    map: RankMap


def ranks_section(analysis: Analysis) -> RanksSection | None:
    """The section; ``None`` where each rank is shown in full.

    Args:
        analysis: the whole of it.
    """
    overview = analysis.rank_overview
    if overview is None:
        return None
    num_steps = len({part.step for part in analysis.partition if part.known})
    reasons = {entry.rank: reasons_text(entry) for entry in overview.shown}
    return RanksSection(
        overview=overview,
        lead=overview_lead(overview),
        left_out=left_out_text(overview),
        has_devices=len({one.rank for one in overview.ranks}) < len(overview.ranks),
        spreads=tuple(_spread_row(spread) for spread in overview.spreads),
        steps=tuple(StepRow(name=FIGURES[one.figure][0], spread=one) for one in overview.steps),
        shown=tuple(ShownRow(figures=one, reasons=reasons[one.rank]) for one in overview.ranks if one.rank in reasons),
        panels=tuple(_panels(overview)),
        steps_note=None
        if len(overview.map_steps) == num_steps
        else tell(
            "Of {} steps the {} with the longest spans are drawn.", counted(num_steps), counted(len(overview.map_steps))
        ),
        map=encode_map(analysis, overview),
    )


def _spread_row(spread: RankSpread) -> SpreadRow:
    name, role = FIGURES[spread.figure]
    low, high = spread.lowest.value, spread.highest.value
    width = STRIP_WIDTH / len(spread.bins)
    most = max(spread.bins)
    bars = []
    for number, count in enumerate(spread.bins):
        if count:
            middle = low + (number + 0.5) / len(spread.bins) * (high - low)
            bars.append(
                Bar(
                    x=round(number * width, 2),
                    width=round(max(width - 0.5, 1), 2),
                    height=round(max(_LEAST_HEIGHT, STRIP_HEIGHT * count / most), 2),
                    outside=not spread.outside_low <= middle <= spread.outside_high,
                )
            )
    place = 0.5 if low == high else (spread.median - low) / (high - low)
    return SpreadRow(name=name, role=role, spread=spread, bars=tuple(bars), median_x=round(place * STRIP_WIDTH, 2))


def _panels(overview: RankOverview) -> Iterator[Panel]:
    for figure in overview.map_figures:
        found = [one for one in overview.steps if one.figure is figure]
        if found:
            name, role = FIGURES[RankFigure(figure)]
            yield Panel(
                figure=figure.value,
                name=name,
                role=role,
                low=min(one.lowest.value for one in found),
                high=max(one.highest.value for one in found),
            )
