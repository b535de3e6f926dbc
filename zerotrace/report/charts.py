"""Figures of the page beside timeline and bars of the steps: what is drawn and in which roles, in no colour."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from zerotrace.report.embed import printable


@dataclass(frozen=True, kw_only=True)
class Chart:
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


def chart_text(text: str) -> str:
    """A name from a trace as a text of plotly, which reads a little HTML in its texts."""
    return html.escape(printable(text), quote=False)


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
