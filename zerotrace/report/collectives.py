"""Section 4: collectives by kind, duration over bytes, and who arrives last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from zerotrace.model import STEP_ALL, CollectiveFigures, CollectiveKind, Collectives, StepArrivals
from zerotrace.report.charts import Chart, chart_text, decades, label_px, log_axis
from zerotrace.report.words import Named, counted, joined, shown, tell
from zerotrace.units import NS_PER_MS, format_count, format_ns, format_traffic

#: Ranks in the heat map; rows in the tables of arrivals and of the sample.
MAX_HEAT_RANKS = 64
#: Where there are so many ranks that the page shows some of them; all are in its map by rank and step.
MAX_HEAT_OF_MANY = 16
MAX_HEAT_STEPS = 64
MAX_TABLE_ROWS = 2000

#: Cells of the heat map in which a text can still be read.
_MAX_CELL_TEXTS = 48

#: Role and sign of each kind in the scatter plot; the others share the last.
_SERIES: dict[CollectiveKind, tuple[str, str, str, str]] = {
    CollectiveKind.ALL_GATHER: ("compute", "circle", "●", "all-gather"),
    CollectiveKind.REDUCE_SCATTER: ("exposed", "square", "■", "reduce-scatter"),
    CollectiveKind.ALL_REDUCE: ("copy", "diamond", "◆", "all-reduce"),
}
_OTHERS = ("overlapped", "triangle-up", "▲", "others")

_GUIDES_GBPS = (1, 10, 100)


class SamplePoint(Struct, frozen=True, kw_only=True):
    """One collective of the sample."""

    name: str
    size_bytes: int
    transfer_ns: int
    skew_ns: int
    step: int


class CollectivesSection(Struct, frozen=True, kw_only=True):
    """What the section shows."""

    lead: str
    collectives: Collectives
    scatter: Chart | None
    points: tuple[SamplePoint, ...]
    heat: Chart | None
    arrivals: tuple[StepArrivals, ...]
    """Those of the table: the ones most waited for, if there are too many."""
    arrivals_note: str | None


def collectives_section(
    collectives: Collectives | None, whole_trace: bool = False, many_ranks: bool = False
) -> CollectivesSection | None:
    """The section; ``None`` where no step has a collective.

    Args:
        collectives: in figures.
        whole_trace: whether there are no steps, so that figures are of the whole trace.
        many_ranks: whether there are so many ranks that the page shows some of them.
    """
    if collectives is None:
        return None
    arrivals = collectives.arrivals
    note = None
    heat_ranks = _most_waited_for(arrivals, MAX_HEAT_OF_MANY if many_ranks else MAX_HEAT_RANKS)
    if many_ranks:
        arrivals = tuple(entry for entry in arrivals if entry.rank in heat_ranks)
        note = "Rows of the ranks that are drawn; analysis.json has those of all."
    if len(arrivals) > MAX_TABLE_ROWS:
        arrivals = tuple(sorted(arrivals, key=lambda a: -a.caused_wait_ns)[:MAX_TABLE_ROWS])
        note = tell(
            "The {} of {} that others waited for most.", counted(MAX_TABLE_ROWS), counted(len(collectives.arrivals))
        )
    return CollectivesSection(
        lead=_lead(collectives, whole_trace),
        collectives=collectives,
        scatter=_scatter(collectives),
        points=_points(collectives),
        heat=_heat(collectives, heat_ranks),
        arrivals=arrivals,
        arrivals_note=note,
    )


def kind_name(kind: CollectiveFigures) -> str:
    """What a kind is called on the page: ``all_gather``, or as the trace spells what is of no known kind."""
    return kind.name if kind.kind is CollectiveKind.OTHER else kind.kind.value


def _lead(collectives: Collectives, whole_trace: bool) -> str:
    steps = "one step" if collectives.num_steps == 1 else tell("{} steps", shown(collectives.num_steps))
    if whole_trace:
        steps = "the whole trace"
    if not collectives.num_matched:
        return tell(
            "Figures are of {}; no collective was found on two ranks, so that transfer and wait are unknown.", steps
        )
    count, lonely = collectives.num_matched, collectives.num_unmatched
    noun, verb = ("collective", "was") if count == 1 else ("collectives", "were")
    without = ""
    if lonely:
        without = tell(f"; {{}} {'row has' if lonely == 1 else 'rows have'} no partner", shown(lonely, format_count))
    return tell(
        f"{{}} {noun} of {{}} {verb} found on several ranks{{}}. Calls, bytes and times are the mean of a "
        f"{'rank' if whole_trace else 'step and rank'}; medians are over single collectives.",
        shown(count, format_count),
        steps,
        without,
    )


def _points(collectives: Collectives) -> tuple[SamplePoint, ...]:
    sample = collectives.sample
    columns = zip(sample.figures, sample.size_bytes, sample.transfer_ns, sample.skew_ns, sample.step)
    return tuple(
        SamplePoint(
            name=_full_name(collectives.kinds[kind]), size_bytes=size, transfer_ns=transfer, skew_ns=skew, step=step
        )
        for kind, size, transfer, skew, step in columns
    )


def _full_name(kind: CollectiveFigures) -> str:
    return f"{kind_name(kind)} {kind.phase}" if kind.phase else kind_name(kind)


def _scatter(collectives: Collectives) -> Chart | None:
    sample = collectives.sample
    if not sample.num_all:
        return None
    bytes_ticks = decades(min(sample.size_bytes), max(sample.size_bytes))
    time_ticks = decades(min(sample.transfer_ns), max(sample.transfer_ns))
    points = _points(collectives)
    traces = _guides(bytes_ticks, time_ticks)
    legend = []
    for series in (*_SERIES.values(), _OTHERS):
        of_kind = [i for i, kind in enumerate(sample.figures) if _series(collectives.kinds[kind].kind) == series]
        if of_kind:
            legend.append((series[0], f"{series[2]} {series[3]}"))
            traces.append(_marks(series, [points[i] for i in of_kind]))
    part = ""
    if len(points) != sample.num_all:
        part = tell(" {} of {} are drawn.", counted(len(points)), shown(sample.num_all, format_count))
    return Chart(
        id="collective-sizes",
        caption=tell(
            "Each mark is one collective: the time of its transfer over its size S, with dotted lines at 1, 10 and "
            "100 GB/s.{}",
            part,
        ),
        label="Transfer time of collectives over their size; the same figures are in the table below",
        legend=tuple(legend),
        figure={
            "data": traces,
            "layout": {
                "height": 320,
                "showlegend": False,
                "margin": {"l": 64, "r": 12, "t": 22, "b": 36},
                "xaxis": log_axis(bytes_ticks, _round_size),
                "yaxis": log_axis(time_ticks, _round_time),
            },
        },
    )


def _series(kind: CollectiveKind) -> tuple[str, str, str, str]:
    return _SERIES.get(kind, _OTHERS)


def _marks(series: tuple[str, str, str, str], points: Sequence[SamplePoint]) -> dict[str, Any]:
    role, symbol, _, name = series
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "meta": {"role": role},
        "marker": {"symbol": symbol, "size": 8},
        "x": [point.size_bytes for point in points],
        "y": [point.transfer_ns for point in points],
        "hovertext": [
            tell(
                f"<b>{{}}</b><br>{{}} in {{}}<br>{_step_name(point.step)}, the first waits {{}}",
                Named(chart_text(point.name)),
                shown(point.size_bytes, format_traffic),
                shown(point.transfer_ns, format_ns),
                shown(point.skew_ns, format_ns),
            )
            for point in points
        ],
        "hoverinfo": "text",
    }


def _guides(bytes_ticks: Sequence[float], time_ticks: Sequence[float]) -> list[dict[str, Any]]:
    """Lines of equal bandwidth, S / transfer, as far as they cross the picture. A byte a ns is a GB/s."""
    guides = []
    for gbps in _GUIDES_GBPS:
        low = max(bytes_ticks[0], time_ticks[0] * gbps)
        high = min(bytes_ticks[-1], time_ticks[-1] * gbps)
        if low < high:
            guides.append(
                {
                    "type": "scatter",
                    "mode": "lines+text",
                    "meta": {"role": "guide"},
                    "x": [low, high],
                    "y": [low / gbps, high / gbps],
                    "text": ["", f"{gbps:g} GB/s"],
                    "textposition": "top left",
                    "cliponaxis": False,
                    "hoverinfo": "skip",
                }
            )
    return guides


def _most_waited_for(arrivals: Sequence[StepArrivals], most: int) -> list[int]:
    """The ranks that others waited for most, in the order of ranks."""
    caused: dict[int, int] = {}
    for entry in arrivals:
        caused[entry.rank] = caused.get(entry.rank, 0) + entry.caused_wait_ns
    ranks = sorted(caused, key=lambda rank: (-caused[rank], rank))
    if len(ranks) > most:
        # of a choice, those that nobody waited for are no part, unless nobody was waited for at all
        ranks = [rank for rank in ranks[:most] if caused[rank]] or ranks[:most]
    return sorted(ranks)


def _heat(collectives: Collectives, ranks: Sequence[int]) -> Chart | None:
    arrivals = collectives.arrivals
    if not arrivals:
        return None
    num_ranks = len({entry.rank for entry in arrivals})
    steps = sorted({entry.step for entry in arrivals})[:MAX_HEAT_STEPS]
    by_place = {(entry.rank, entry.step): entry for entry in arrivals}
    cells = [[by_place.get((rank, step)) for step in steps] for rank in ranks]
    names = [f"rank {rank}" for rank in ranks]
    all_steps = {entry.step for entry in arrivals}
    left = [tell("{} ranks", counted(num_ranks))] if len(ranks) < num_ranks else []
    left += [tell("{} steps", counted(len(all_steps)))] if len(steps) < len(all_steps) else []
    part = ""
    if left:
        part = tell(
            " The {} ranks most waited for and {} steps, of {}.",
            counted(len(ranks)),
            counted(len(steps)),
            joined(" and ", left),
        )
    few = len(ranks) * len(steps) <= _MAX_CELL_TEXTS
    trace: dict[str, Any] = {
        "type": "heatmap",
        "meta": {"role": "heat"},
        "x": [_step_name(step) for step in steps],
        "y": names,
        "z": [[None if cell is None else cell.caused_wait_ns / NS_PER_MS for cell in row] for row in cells],
        "hovertext": [[_cell_hover(cell) for cell in row] for row in cells],
        "hoverinfo": "text",
        "xgap": 2,
        "ygap": 2,
        "zmin": 0,
        "zmax": max((entry.caused_wait_ns for entry in arrivals), default=0) / NS_PER_MS or 1,
        "showscale": False,
    }
    return Chart(
        id="collective-arrivals",
        caption=tell(
            "How long the others waited, in sum, for each rank as the last to arrive, and at how many collectives.{}",
            part,
        ),
        label="Waiting caused by each rank in each step; the same figures are in the table below",
        figure={
            "data": [trace, *([_cell_texts(trace, cells)] if few else [])],
            "layout": {
                "height": round(len(ranks) * (30 if few else 16)) + 44,
                "showlegend": False,
                "margin": {"l": label_px(names), "r": 8, "t": 4, "b": 34},
                "xaxis": {"type": "category", "fixedrange": True},
                "yaxis": {"type": "category", "autorange": "reversed", "fixedrange": True, "ticklabelstandoff": 8},
            },
        },
    )


def _cell_texts(heat: dict[str, Any], cells: Sequence[Sequence[StepArrivals | None]]) -> dict[str, Any]:
    """What stands in the cells. ``shares`` says how dark each cell is, so that the page can choose a colour of text."""
    places = [(x, y, cell) for y, row in zip(heat["y"], cells) for x, cell in zip(heat["x"], row) if cell is not None]
    return {
        "type": "scatter",
        "mode": "text",
        "meta": {"role": "cells", "shares": [cell.caused_wait_ns / NS_PER_MS / heat["zmax"] for _, _, cell in places]},
        "x": [x for x, _, _ in places],
        "y": [y for _, y, _ in places],
        "text": [
            tell("{}, {} ×", shown(cell.caused_wait_ns, format_ns), shown(cell.num_last)) for _, _, cell in places
        ],
        "hoverinfo": "skip",
    }


def _cell_hover(cell: StepArrivals | None) -> str:
    if cell is None:
        return "no collective"
    return tell(
        f"<b>rank {cell.rank}, {_step_name(cell.step)}</b><br>last at {{}} of {{}} collectives<br>"
        "the others waited {} for it",
        shown(cell.num_last, format_count),
        shown(cell.num_collectives, format_count),
        shown(cell.caused_wait_ns, format_ns),
    )


def _step_name(step: int) -> str:
    return "whole trace" if step == STEP_ALL else f"step {step}"


def _round_time(value_ns: float) -> str:
    """A power of ten without digits behind the point: ``10 µs``."""
    return _round(value_ns, ((1e9, "s"), (1e6, "ms"), (1e3, "µs"), (0, "ns")))


def _round_size(value_bytes: float) -> str:
    """A power of ten without digits behind the point: ``10 MB``."""
    return _round(value_bytes, ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (0, "B")))


def _round(value: float, units: Sequence[tuple[float, str]]) -> str:
    scale, unit = next((scale, unit) for scale, unit in units if value >= scale)
    return f"{value / (scale or 1):g} {unit}"
