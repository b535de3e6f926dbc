"""Figures of the page beside timeline and bars of the steps: what is drawn and in which roles, in no colour."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from zerotrace.report.embed import printable
from zerotrace.report.words import Shown, figures_in, joined, parts_of, tell


class Chart(Struct, frozen=True, kw_only=True):
    """One figure, with its words."""

    id: str
    """Of the element that it is drawn into."""
    caption: str
    label: str
    """What the figure is, for those who do not see it."""
    legend: tuple[tuple[str, str], ...] = ()
    """Role and name of each colour."""
    figure: dict[str, Any]
    """For plotly; each trace says its role in ``meta``, and the page paints roles in the colours of its theme."""

    @property
    def height(self) -> int:
        """Pixels."""
        return int(self.figure["layout"]["height"])


def with_figures(figure: Mapping[str, Any]) -> dict[str, Any]:
    """A figure of plotly that says which figures of the run stand in its texts.

    Each trace lists those of its texts in ``meta.figures``, as text and value, and the layout those of its axis: what a
    picture shows can so be held against the JSON of the page to the last digit.
    """
    layout = figure["layout"]
    return {
        **figure,
        "data": [_with_figures(trace, trace.get("text"), trace.get("hovertext")) for trace in figure["data"]],
        "layout": _with_figures(layout, layout.get("xaxis")),
    }


def _with_figures(part: Mapping[str, Any], *texts: Any) -> dict[str, Any]:
    pairs = dict.fromkeys((str(one), one.value) for one in figures_in(texts) if one.value is not None)
    return {**part, "meta": {**part.get("meta", {}), "figures": [list(pair) for pair in pairs]}}


def chart_text(text: str) -> str:
    """A name from a trace as a text of plotly, which reads a little HTML in its texts."""
    return html.escape(printable(text), quote=False)


def escaped(text: str) -> str:
    """The same for a text in parts, whose figures stay what they are."""
    return joined("", (part if isinstance(part, Shown) else chart_text(part) for part in parts_of(text)))


def decades(low: float, high: float) -> list[float]:
    """The powers of ten from the last one not above ``low`` to the first one not below ``high``."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    return [10.0**power for power in range(first, max(last, first + 1) + 1)]


def log_axis(values: Sequence[float], name: Callable[[float], str], **more: Any) -> dict[str, Any]:
    """A logarithmic axis with a line at each of the values, and names that have room on a telephone.

    Args:
        values: powers of ten, rising.
        name: what stands at a value; at every third one, where there are more than six.
        more: further keys of the axis.
    """
    low, high = math.log10(values[0]), math.log10(values[-1])
    room = 0.03 * (high - low)
    step = 1 if len(values) <= 6 else 3
    named = [value for value in values if round(math.log10(value)) % step == 0]
    return {
        "type": "log",
        "range": [low - room, high + room],
        "tickvals": named,
        "ticktext": [name(value) for value in named],
        "tickangle": 0,
        "showgrid": True,
        "fixedrange": True,
        **more,
    }


def label_px(labels: Sequence[str], most: int = 240) -> int:
    """Room for the longest label, with 6.4 px a character at the figures' size of text."""
    return min(most, max(56, round(6.4 * max((len(label) for label in labels), default=0)) + 14))


class BarRow(Struct, frozen=True):
    """One line of a picture of lying bars: segments of role, start and length, and the figure at the end."""

    label: str
    segments: tuple[tuple[str, float, float], ...]
    text: str
    hover: str


def bar_traces(rows: Sequence[BarRow]) -> list[dict[str, Any]]:
    """The traces of lying bars, one a role, and the figures at their ends."""
    roles = dict.fromkeys(role for row in rows for role, _, _ in row.segments)
    traces: list[dict[str, Any]] = []
    for role in roles:
        places = [
            (y, row, start, length)
            for y, row in enumerate(rows)
            for name, start, length in row.segments
            if name == role
        ]
        traces.append(
            {
                "type": "bar",
                "orientation": "h",
                "meta": {"role": role},
                "y": [y for y, _, _, _ in places],
                "base": [start for _, _, start, _ in places],
                "x": [length for _, _, _, length in places],
                "width": 0.7,
                "hovertext": [row.hover for _, row, _, _ in places],
                "hoverinfo": "text",
            }
        )
    return [*traces, _ends(rows)]


def bar_layout(rows: Sequence[BarRow], *, suffix: str, most_px: int = 200, end_px: int = 48) -> dict[str, Any]:
    """The layout of lying bars.

    Args:
        rows: at least one.
        suffix: unit of the axis.
        most_px: room for labels, at most.
        end_px: room for the figures at the ends.
    """
    labels = [row.label for row in rows]
    return {
        "barmode": "overlay",
        "showlegend": False,
        "height": 30 * len(rows) + 44,
        "margin": {"l": label_px(labels, most_px), "r": 8, "t": 4, "b": 36},
        "meta": {"end_px": end_px},
        "xaxis": {"range": [0, _widest(rows)], "fixedrange": True, "showgrid": True, "ticksuffix": suffix},
        "yaxis": {
            "range": [len(rows) - 0.4, -0.6],
            "fixedrange": True,
            "tickvals": list(range(len(rows))),
            "ticktext": labels,
            "ticklabelstandoff": 8,
        },
    }


def _widest(rows: Sequence[BarRow]) -> float:
    return max((start + length for row in rows for _, start, length in row.segments), default=0.0)


def _ends(rows: Sequence[BarRow]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "text",
        "meta": {"role": "total"},
        "x": [_widest([row]) for row in rows],
        "y": list(range(len(rows))),
        "text": [tell("\u2009 {}", row.text) for row in rows],
        "textposition": "middle right",
        "hoverinfo": "skip",
        "cliponaxis": False,
    }
