"""How much the figures of two runs may differ by chance."""

from __future__ import annotations

import math
from collections.abc import Callable

from msgspec import Struct

from zerotrace.analysis.ablation import CERTAIN, mean_error
from zerotrace.analysis.findings.noise import FEW_STEPS, FLOOR_RATIO, deviation, median_error, slowest_steps
from zerotrace.model import Analysis, StepPartition, WindowKind

StepFigure = Callable[[StepPartition], "int | None"]


class Band(Struct, frozen=True):
    """What two figures may differ by and still be equal."""

    width: float
    noise: float | None
    """Standard error of the difference; ``None`` for the floor alone."""


def step_band(run: Analysis, baseline: Analysis) -> Band | None:
    """For the unprofiled step: twice the standard errors of both medians, added as squares, at least 1 % of the step.

    Returns:
        ``None`` where a run has fewer than four timed steps.
    """
    errors = []
    for analysis in (run, baseline):
        steps = _timed(analysis)
        if len(steps) < FEW_STEPS:
            return None
        errors.append(median_error(steps))
    return _band(errors, baseline.verdict.unprofiled_step_ns or 0.0)


def part_band(run: Analysis, baseline: Analysis, figure: StepFigure) -> Band | None:
    """For a part of the profiled step on the rank where it is largest.

    The standard error of a run is that of the mean over the rank's profiled steps. Where there are fewer than four,
    the part is taken to vary by no more than a whole step does: the deviation of the timed steps, as the profiler
    dilates them, by the root of the number of profiled ones. The band is twice both errors, added as squares, at least
    1 % of the step.

    Returns:
        ``None`` where a run has too few steps of either kind.
    """
    errors = [_part_error(analysis, figure) for analysis in (run, baseline)]
    known = [error for error in errors if error is not None]
    span = baseline.verdict.span_ns
    return _band(known, span.max if span else 0.0) if len(known) == len(errors) else None


def bytes_band(baseline: float) -> Band:
    """For bytes, which repeat from step to step: 1 % of the baseline's."""
    return Band(FLOOR_RATIO * baseline, None)


def _band(errors: list[float], step_ns: float) -> Band:
    noise = math.hypot(*errors)
    return Band(max(CERTAIN * noise, FLOOR_RATIO * step_ns), noise)


def _part_error(analysis: Analysis, figure: StepFigure) -> float | None:
    values = _worst_rank(analysis, figure)
    if len(values) >= FEW_STEPS:
        return mean_error(values)
    steps = _timed(analysis)
    if not values or len(steps) < FEW_STEPS:
        return None
    return deviation(steps) * max(1.0, analysis.verdict.dilation_ratio or 1.0) / math.sqrt(len(values))


def _worst_rank(analysis: Analysis, figure: StepFigure) -> list[int]:
    """The figure in each profiled step of the rank and device where its mean is largest."""
    found: dict[tuple[int, int | None], list[int]] = {}
    counted = [part for part in analysis.partition if part.known and part.step not in analysis.left_out_steps]
    for part in counted or [part for part in analysis.partition if part.known]:
        value = figure(part)
        if value is not None:
            found.setdefault((part.rank, part.device), []).append(value)
    return max(found.values(), key=lambda values: sum(values) / len(values), default=[])


def _timed(analysis: Analysis) -> tuple[int, ...]:
    return slowest_steps(analysis.manifest.ranks, WindowKind.TIMED) if analysis.manifest else ()
