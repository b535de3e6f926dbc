"""What an ablation has found, in a few lines of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from zerotrace.units import format_ns

if TYPE_CHECKING:
    from zerotrace.model import AblatedFigure, Ablation


def ablation_lines(ablation: Ablation) -> Iterator[str]:
    """One line a figure: its value with and without, and what the part wins."""
    yield f"What {ablation.part} is worth, {ablation.with_run} against {ablation.without_run}:"
    figures = {
        "unprofiled step": ablation.step,
        "exposed transfer, profiled": ablation.exposed_transfer,
        "exposed wait, profiled": ablation.exposed_wait,
    }
    for name, figure in figures.items():
        if figure is None:
            reason = "no timed window in both" if name == "unprofiled step" else "analyze both captures first"
            yield f"  {name}: unknown ({reason})"
        else:
            yield f"  {name}: {_figure(figure)}"


def _figure(figure: AblatedFigure) -> str:
    values = f"{format_ns(figure.with_ns)} with, {format_ns(figure.without_ns)} without"
    word = "wins" if figure.gain_ns >= 0 else "costs"
    gain = format_ns(abs(figure.gain_ns))
    if figure.noise_ns is None:
        return f"{values}: {word} {gain} (noise unknown: too few steps)"
    verdict = ", less than two of them: within noise" if figure.within_noise else ""
    return f"{values}: {word} {gain} (standard error {format_ns(figure.noise_ns)}{verdict})"
