"""How much the step time of a run varies by itself: below that, nothing is a finding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from zerotrace.model import STEP_ALL, Analysis, RankRecord, WindowKind

#: Below this part of the step nobody turns a knob, however quiet the run was.
FLOOR_RATIO = 0.01

#: A median of fewer steps says little of their spread.
FEW_STEPS = 4


def step_noise_ns(analysis: Analysis) -> float:
    """The standard error of the median step time that the run itself shows, at least 1 % of the step.

    Estimated from the timed steps, which no profiler touches; from the profiled ones where those are all there is; and
    the floor alone where there are fewer than four. Formula: ``1.2533 × 1.4826 × MAD / √n``, the median absolute
    deviation scaled to a standard deviation, times the median's inefficiency against the mean.

    Args:
        analysis: with a manifest for the timed steps.

    Returns:
        Nanoseconds a step.
    """
    steps = slowest_steps(analysis.manifest.ranks, WindowKind.TIMED) if analysis.manifest else ()
    if len(steps) < FEW_STEPS:
        steps = _profiled_steps(analysis)
    span = analysis.verdict.span_ns
    floor = FLOOR_RATIO * (span.median if span else 0.0)
    if len(steps) < FEW_STEPS:
        return floor
    return max(floor, median_error(steps))


def median_error(steps: Sequence[int]) -> float:
    """The standard error of the median of step times, by their median absolute deviation."""
    return 1.2533 * deviation(steps) / math.sqrt(len(steps))


def deviation(steps: Sequence[int]) -> float:
    """The standard deviation of step times, robust against single slow ones: ``1.4826 × MAD``."""
    return 1.4826 * _mad(steps)


def slowest_steps(ranks: Sequence[RankRecord], kind: WindowKind) -> tuple[int, ...]:
    """The slowest rank's time of each step of a window, nanoseconds."""
    found = [window.step_ns for rank in ranks for window in rank.windows if window.kind is kind]
    return tuple(max(step) for step in zip(*found))


def _profiled_steps(analysis: Analysis) -> tuple[int, ...]:
    slowest: dict[int, int] = {}
    for part in analysis.partition:
        if part.known and part.step != STEP_ALL:
            slowest[part.step] = max(slowest.get(part.step, 0), part.span_ns)
    return tuple(slowest.values())


def _mad(values: Sequence[int]) -> float:
    middle = median(values)
    return float(median(abs(value - middle) for value in values))
