"""Standing columns, one a run, on one axis; and lines of theory across them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from zerotrace.report.charts import Chart, chart_text, escaped
from zerotrace.report.words import joined, tell

_LINE_CHARACTERS = 11
_MAX_LINES = 4
_CHARACTER_PX = 6.0
_MIN_COLUMN_PX = 40
_LEFT_PX, _RIGHT_PX = 40, 4
_COLUMN_WIDTH = 0.64
_LINE_WIDTH = 0.84
_STRIP_WIDTH = 0.16


class Segment(Struct, frozen=True):
    """One part of a column."""

    role: str
    length: float
    hover: str
    text: str = ""
    """What stands in it, where there is room."""


class Strip(Struct, frozen=True):
    """Something that is part of a segment and no addition to it: drawn along the right edge of its column."""

    role: str
    start: float
    length: float
    hover: str


class Column(Struct, frozen=True):
    """One run: what it is called, its parts from the axis up, and the figure that stands under its name."""

    label: str
    segments: tuple[Segment, ...]
    text: str
    strip: Strip | None = None


class TheoryLine(Struct, frozen=True):
    """What each column would reach by theory; ``None`` where theory says nothing."""

    role: str
    values: tuple[float | None, ...]
    hovers: tuple[str, ...]


def column_chart(
    columns: Sequence[Column],
    lines: Sequence[TheoryLine] = (),
    *,
    id: str,
    caption: str,
    label: str,
    legend: Sequence[tuple[str, str]] = (),
    suffix: str,
    height: int = 300,
    reach: float | None = None,
) -> Chart:
    """A chart of columns.

    Args:
        columns: at least one.
        lines: of theory, with a value for each column.
        id: of the element that it is drawn into.
        caption: what it shows, in one sentence or two.
        label: what it is, for those who do not see it.
        legend: roles and names of the colours.
        suffix: unit of the axis.
        height: pixels, names included.
        reach: what the axis goes up to at least, so that charts share one.
    """
    names = [_name_lines(column.label) for column in columns]
    longest = max((len(line) for lines_ in names for line in lines_), default=0)
    rows = max((len(lines_) for lines_ in names), default=1) + 1
    tops = [sum(segment.length for segment in column.segments) for column in columns]
    tops += [value for line in lines for value in line.values if value is not None]
    top = 1.04 * max([*tops, reach or 0.0]) or 1.0
    return Chart(
        id=id,
        caption=caption,
        label=label,
        legend=tuple(legend),
        figure={
            "data": [*_bars(columns), *_strips(columns), *(trace for line in lines for trace in _line_traces(line))],
            "layout": {
                "barmode": "overlay",
                "showlegend": False,
                "height": height + 16 * rows,
                "margin": {"l": _LEFT_PX, "r": _RIGHT_PX, "t": 8, "b": 16 * rows + 12},
                # Text that does not fit its part is left out, never shrunk or turned.
                "uniformtext": {"minsize": 11, "mode": "hide"},
                "meta": {"column_px": max(_MIN_COLUMN_PX, round(_CHARACTER_PX * longest) + 6), "columns": len(columns)},
                "xaxis": {
                    "range": [-0.5, len(columns) - 0.5],
                    "fixedrange": True,
                    "tickangle": 0,
                    "tickvals": list(range(len(columns))),
                    "ticktext": [
                        tell("{}<br><b>{}</b>", joined("<br>", map(chart_text, lines_)), column.text)
                        for lines_, column in zip(names, columns, strict=True)
                    ],
                },
                "yaxis": {
                    "range": [0, top],
                    "fixedrange": True,
                    "showgrid": True,
                    "nticks": 6,
                    "title": {"text": suffix, "standoff": 4},
                    "ticklabelstandoff": 4,
                },
            },
        },
    )


def shared_reach(columns: Sequence[Column]) -> float:
    """The height of the highest column, for charts that share an axis."""
    return max((math.fsum(segment.length for segment in column.segments) for column in columns), default=0.0)


def _bars(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """One trace a role, in the order in which roles stand in the columns."""
    roles = dict.fromkeys(segment.role for column in columns for segment in column.segments)
    found: dict[str, list[tuple[int, float, Segment]]] = {role: [] for role in roles}
    for place, column in enumerate(columns):
        start = 0.0
        for segment in column.segments:
            found[segment.role].append((place, start, segment))
            start += segment.length
    return [
        {
            "type": "bar",
            "meta": {"role": role},
            "x": [place for place, _, _ in parts],
            "base": [start for _, start, _ in parts],
            "y": [segment.length for _, _, segment in parts],
            "width": _COLUMN_WIDTH,
            "text": [segment.text for _, _, segment in parts],
            "textposition": "inside",
            "insidetextanchor": "middle",
            "textangle": 0,
            "hovertext": [escaped(segment.hover) for _, _, segment in parts],
            "hoverinfo": "text",
        }
        for role, parts in found.items()
    ]


def _strips(columns: Sequence[Column]) -> list[dict[str, Any]]:
    found = [(place, column.strip) for place, column in enumerate(columns) if column.strip and column.strip.length]
    return [
        {
            "type": "bar",
            "meta": {"role": strip.role},
            "x": [place],
            "base": [strip.start],
            "y": [strip.length],
            "width": _STRIP_WIDTH,
            "offset": _COLUMN_WIDTH / 2 - _STRIP_WIDTH,
            "hovertext": [escaped(strip.hover)],
            "hoverinfo": "text",
        }
        for place, strip in found
    ]


def _line_traces(line: TheoryLine) -> list[dict[str, Any]]:
    """The line, and a wider one of the background's colour beneath it, so that it stands out from any column."""
    x: list[float | None] = []
    y: list[float | None] = []
    hover: list[str] = []
    for place, (value, text) in enumerate(zip(line.values, line.hovers, strict=True)):
        if value is None:
            continue
        x += [place - _LINE_WIDTH / 2, place, place + _LINE_WIDTH / 2, None]
        y += [value, value, value, None]
        hover += [escaped(text)] * 3 + [""]
    base = {"type": "scatter", "mode": "lines", "x": x, "y": y}
    return [
        {**base, "meta": {"role": "halo"}, "hoverinfo": "skip"},
        {**base, "meta": {"role": line.role}, "hovertext": hover, "hoverinfo": "text"},
    ]


def _name_lines(label: str) -> list[str]:
    """A name on lines that a column has room for, broken behind spaces, strokes and the like where it can be."""
    lines = [""]
    for piece in re.findall(r"[^\s/_.-]*[\s/_.-]*", label):
        for start in range(0, len(piece), _LINE_CHARACTERS):
            part = piece[start : start + _LINE_CHARACTERS]
            if lines[-1] and len(lines[-1]) + len(part.rstrip()) > _LINE_CHARACTERS:
                lines.append("")
            lines[-1] += part
    lines = [line.strip() for line in lines if line.strip()] or ["–"]
    return lines if len(lines) <= _MAX_LINES else [*lines[: _MAX_LINES - 1], f"{lines[_MAX_LINES - 1][:-1]}…"]
