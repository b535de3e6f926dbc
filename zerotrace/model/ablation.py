"""What a part of the engine is worth: one run with it, one without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class AblatedFigure(Struct, frozen=True, kw_only=True):
    """One figure of the two runs, nanoseconds a step."""

    with_ns: float
    without_ns: float
    gain_ns: float
    """``without − with``: what the part wins; negative where it costs."""
    noise_ns: float | None
    """Standard error of the gain; ``None`` where there are too few steps to tell."""
    within_noise: bool | None
    """Whether the gain is smaller than twice its standard error; ``None`` where that is unknown."""


class Ablation(Struct, frozen=True, kw_only=True):
    """Two runs that differ in one part of the engine."""

    part: str
    """What is switched off in the second run: ``prefetch``."""
    with_run: str
    without_run: str
    keys: Mapping[str, tuple[Any, Any]]
    """Key of DeepSpeed's configuration -> its value with and without; ``None`` is DeepSpeed's default."""
    step: AblatedFigure | None
    """Unprofiled step, median of the slowest rank's; ``None`` without a timed window in both."""
    exposed_transfer: AblatedFigure | None
    """Of the profiled steps, mean over ranks; ``None`` where a run is not analysed, or not of all ranks."""
    exposed_wait: AblatedFigure | None
