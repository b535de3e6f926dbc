"""The plotly figures of the page as plain dictionaries: what is drawn and where, in no colour.

Each trace says its role in ``meta``; the page paints roles in the colours of the theme in use. Every number
comes from the analysis; positions of bars are the partition laid end to end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from zerotrace.model import STEP_ALL, Analysis, Attribution, Mode
from zerotrace.report.embed import printable
from zerotrace.report.words import counted, joined, shown, tell
from zerotrace.units import NS_PER_MS, format_ns

MAX_RANKS_WITH_STEPS = 16
MAX_STEP_BARS = 64
MAX_BARS = 256
"""Nine marks a bar at most: 256 bars stay under 3,000 SVG marks."""


class StepBar(Struct, frozen=True, kw_only=True):
    """One bar: a step of a rank, or a rank's mean step. Nanoseconds; ``None`` is unknown."""

    rank: int
    device: int | None
    step: int | None
    """``None`` for a mean over steps."""
    label: str
    span_ns: float
    compute_ns: float | None
    overlapped_ns: float | None
    exposed_ns: float | None
    copy_only_ns: float | None
    idle_ns: float | None
    exposed_transfer_ns: float | None
    exposed_wait_ns: float | None
    host_bound_ns: float | None
    other_idle_ns: float | None


class StepFigure(Struct, frozen=True):
    """The figure of section 2 with its words."""

    caption: str
    roles: tuple[tuple[str, str], ...]
    """Role and name of each colour, in the order in which they stand in a bar."""
    bars: tuple[StepBar, ...]
    figure: dict[str, Any]


def step_label(step: int) -> str:
    """``step 2``; ``whole trace`` for the window ``all``."""
    return "whole trace" if step == STEP_ALL else f"step {step}"


def lane_owner(rank: int, device: int | None, devices_of_rank: int) -> str:
    """``rank 0``, or ``rank 0 · device 1`` where the rank drives more than one."""
    return f"rank {rank}" if devices_of_rank < 2 else f"rank {rank} · device {device}"


def step_figure(analysis: Analysis) -> StepFigure:
    """Stacked bars of the partition, one a rank and step, or one a rank where those would be too many to read."""
    devices = {rank: len({p.device for p in analysis.partition if p.rank == rank}) for rank in _ranks(analysis)}
    mean = len(devices) > MAX_RANKS_WITH_STEPS or len(analysis.partition) > MAX_STEP_BARS
    bars = _mean_bars(analysis, devices) if mean else _single_bars(analysis, devices)
    shown = bars
    caption = "Each bar is one step of one rank; its parts add up to the step, to the nanosecond."
    if analysis.attribution is Attribution.LAUNCH:
        caption = (
            "Each bar is the device time that one step of one rank launched, wherever it ran; "
            "idle time is not defined for it, and the figure at its end is the length of the host's window."
        )
    if mean:
        caption = tell(
            "Each bar is the mean step of one rank, since {} single steps are too many bars to read; the table below "
            "has every step.",
            counted(len(analysis.partition)),
        )
    if len(bars) > MAX_BARS:
        shown = sorted(
            sorted(bars, key=lambda b: -(b.exposed_ns or 0))[:MAX_BARS], key=lambda b: (b.rank, b.device or 0)
        )
        caption = tell(
            "Each bar is the mean step of one rank: the {} of {} ranks with the most exposed communication; the table "
            "below has all of them.",
            counted(MAX_BARS),
            counted(len(bars)),
        )
    if analysis.rank_overview is not None:
        caption = joined(" ", (caption, "Of all ranks, those shown in full have bars."))
    roles = _roles(analysis)
    return StepFigure(caption=caption, roles=roles, bars=tuple(bars), figure=_bar_figure(shown, roles))


def _roles(analysis: Analysis) -> tuple[tuple[str, str], ...]:
    """The parts that this analysis tells apart."""
    waits = any(part.exposed_wait_ns is not None for part in analysis.partition)
    hosts = any(part.host_bound_ns is not None for part in analysis.partition)
    roles = [("compute", "compute"), ("overlapped", "of it, hiding communication")]
    roles.append(("exposed", "exposed transfer" if waits else "exposed communication"))
    roles += [("waiting", "waiting for a rank")] if waits else []
    roles += [("copy", "copy only")] if analysis.mode is Mode.DEVICE else []
    roles += [("host", "idle: host not there yet"), ("idle", "idle: other")] if hosts else [("idle", "idle")]
    return tuple(roles)


def _ranks(analysis: Analysis) -> list[int]:
    return sorted({p.rank for p in analysis.partition})


def _single_bars(analysis: Analysis, devices: dict[int, int]) -> list[StepBar]:
    return [
        StepBar(
            rank=p.rank,
            device=p.device,
            step=p.step,
            label=f"{lane_owner(p.rank, p.device, devices[p.rank])} · {step_label(p.step)}",
            span_ns=p.span_ns,
            compute_ns=p.compute_ns,
            overlapped_ns=p.overlapped_ns,
            exposed_ns=p.exposed_ns,
            copy_only_ns=p.copy_only_ns,
            idle_ns=p.idle_ns,
            exposed_transfer_ns=p.exposed_transfer_ns,
            exposed_wait_ns=p.exposed_wait_ns,
            host_bound_ns=p.host_bound_ns,
            other_idle_ns=p.other_idle_ns,
        )
        for p in analysis.partition
    ]


def _mean_bars(analysis: Analysis, devices: dict[int, int]) -> list[StepBar]:
    return [
        StepBar(
            rank=r.rank,
            device=r.device,
            step=None,
            label=lane_owner(r.rank, r.device, devices.get(r.rank, 1)),
            span_ns=r.span_ns,
            compute_ns=r.compute_ns,
            overlapped_ns=r.overlapped_ns,
            exposed_ns=r.exposed_ns,
            copy_only_ns=r.copy_only_ns,
            idle_ns=r.idle_ns,
            exposed_transfer_ns=r.exposed_transfer_ns,
            exposed_wait_ns=r.exposed_wait_ns,
            host_bound_ns=r.host_bound_ns,
            other_idle_ns=r.other_idle_ns,
        )
        for r in analysis.ranks
    ]


def _bar_figure(bars: Sequence[StepBar], roles: Sequence[tuple[str, str]]) -> dict[str, Any]:
    positions = _positions(bars)
    dense = len(bars) > 24
    widest = max((bar.span_ns for bar in bars), default=1) / NS_PER_MS
    known = [(bar, y) for bar, y in zip(bars, positions, strict=True) if bar.compute_ns is not None]
    unknown = [(bar, y) for bar, y in zip(bars, positions, strict=True) if bar.compute_ns is None]
    traces = [_role_trace(role, name, known, widest) for role, name in roles]
    if unknown:
        traces.append(_unknown_trace(unknown))
    traces.append(_total_trace(bars, positions))
    depth = (positions[-1] if positions else 0.0) + 1
    return {
        "data": traces,
        "layout": {
            "barmode": "overlay",
            "showlegend": False,
            "height": round(depth * (17 if dense else 30)) + 40,
            "margin": {"l": _label_px(bars), "r": 8, "t": 4, "b": 36},
            "xaxis": {"range": [0, widest * 1.11 or 1], "fixedrange": True, "ticksuffix": " ms", "rangemode": "tozero"},
            "yaxis": {
                "range": [depth - 0.4, -0.6],
                "fixedrange": True,
                "tickvals": positions,
                "ticktext": [bar.label for bar in bars],
                "ticklabelstandoff": 8,
            },
            # Text that does not fit its bar is left out, never shrunk or turned.
            "uniformtext": {"minsize": 11, "mode": "hide"},
        },
    }


def _label_px(bars: Sequence[StepBar]) -> int:
    """Room for the longest name of a bar, with 6.4 px a character at the figures' size of text."""
    return min(240, max(64, round(6.4 * max((len(bar.label) for bar in bars), default=0)) + 14))


def _positions(bars: Sequence[StepBar]) -> list[float]:
    """Places of the bars from the top; a new rank starts after a little more room."""
    places: list[float] = []
    for index, bar in enumerate(bars):
        previous = bars[index - 1] if index else None
        gap = 1.0 if previous is None or previous.rank == bar.rank or bar.step is None else 1.35
        places.append(round(places[-1] + gap, 2) if places else 0.0)
    return places


def _role_trace(role: str, name: str, bars: Sequence[tuple[StepBar, float]], widest_ms: float) -> dict[str, Any]:
    """The segments of one role. Lengths and bases in ms, as plotly draws them."""
    base, length, text, hover = [], [], [], []
    for bar, _ in bars:
        start, size = _segment(role, bar)
        base.append(start / NS_PER_MS)
        length.append(size / NS_PER_MS)
        drawn = role != "overlapped" and size / NS_PER_MS > 0.02 * widest_ms
        text.append(shown(size, _in_ms) if drawn else "")
        label, of_step = printable(bar.label), shown(bar.span_ns, format_ns)
        hover.append(tell(f"<b>{label}</b><br>{name} {{}}, of a step of {{}}", shown(size, format_ns), of_step))
    trace: dict[str, Any] = {
        "type": "bar",
        "orientation": "h",
        "name": name,
        "meta": {"role": role},
        "y": [y for _, y in bars],
        "x": length,
        "base": base,
        "width": 0.8,
        "text": text,
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "hovertext": hover,
        "hoverinfo": "text",
        "customdata": [[bar.rank, bar.device, bar.step] for bar, _ in bars],
    }
    if role == "overlapped":
        # A strip along the lower edge of compute: part of it, not an addition to it.
        trace |= {"width": 0.24, "offset": 0.16}
    return trace


def _segment(role: str, bar: StepBar) -> tuple[float, float]:
    """Start and length of one part of a bar, in ns. Lengths are figures of the analysis, starts are sums of them."""
    compute, exposed = bar.compute_ns or 0, bar.exposed_ns or 0
    copy, overlapped = bar.copy_only_ns or 0, bar.overlapped_ns or 0
    wait, host = bar.exposed_wait_ns or 0, bar.host_bound_ns or 0
    busy = compute + exposed + copy
    return {
        "compute": (0, compute),
        "overlapped": (compute - overlapped, overlapped),
        "exposed": (compute, exposed if bar.exposed_transfer_ns is None else bar.exposed_transfer_ns),
        "waiting": (compute + exposed - wait, wait),
        "copy": (compute + exposed, copy),
        "host": (busy, host),
        "idle": (busy + host, bar.other_idle_ns or 0),
    }[role]


def _unknown_trace(bars: Sequence[tuple[StepBar, float]]) -> dict[str, Any]:
    return {
        "type": "bar",
        "orientation": "h",
        "name": "unknown",
        "meta": {"role": "unknown"},
        "y": [y for _, y in bars],
        "x": [bar.span_ns / NS_PER_MS for bar, _ in bars],
        "base": [0] * len(bars),
        "width": 0.8,
        "text": ["\u2002no device rows: unknown"] * len(bars),
        "textposition": "inside",
        "insidetextanchor": "start",
        "textangle": 0,
        "hoverinfo": "skip",
        "customdata": [[bar.rank, bar.device, bar.step] for bar, _ in bars],
    }


def _total_trace(bars: Sequence[StepBar], positions: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "text",
        "name": "step",
        "meta": {"role": "total"},
        "x": [bar.span_ns / NS_PER_MS for bar in bars],
        "y": list(positions),
        "text": [tell("\u2009 {}", shown(bar.span_ns, format_ns)) for bar in bars],
        "textposition": "middle right",
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _in_ms(value_ns: float) -> str:
    value = value_ns / NS_PER_MS
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 0.1 else f"{value:.3f}"
