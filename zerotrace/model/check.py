"""A run held against conditions, and against another run."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

CHECK_VERSION = "1.0"


class Unit(str, Enum):
    """What a figure is counted in; its name says it, too."""

    NS = "ns"
    BYTES = "bytes"
    RATIO = "ratio"
    COUNT = "count"
    PER_S = "per_s"


class Judgement(str, Enum):
    """What became of a figure since the baseline."""

    BETTER = "better"
    EQUAL = "equal"
    """The difference lies within the noise."""
    WORSE = "worse"
    UNKNOWN = "unknown"
    """One of the two figures, or the noise of a run, is unknown."""


class CheckedCondition(Struct, frozen=True, kw_only=True):
    """One condition, and whether the run meets it."""

    condition: str
    """As it was written."""
    figure: str
    unit: Unit
    value: float | None
    threshold: float
    """In the unit of the figure."""
    holds: bool | None
    """``None`` where the figure is unknown."""
    reason: str | None = None
    """Why it is unknown."""


class ComparedFigure(Struct, frozen=True, kw_only=True):
    """One figure of the run beside the baseline's."""

    figure: str
    unit: Unit
    value: float | None
    baseline: float | None
    noise: float | None
    """Standard error of the difference; ``None`` where the steps do not tell, and for figures that are exact."""
    band: float | None
    """What the two may differ by and still count as equal."""
    judgement: Judgement
    reason: str | None = None
    """Why it was not compared."""


class Check(Struct, frozen=True, kw_only=True):
    """Everything that was checked of one run."""

    schema_version: str = CHECK_VERSION
    zerotrace_version: str
    run_name: str
    conditions: tuple[CheckedCondition, ...] = ()
    baseline_name: str | None = None
    figures: tuple[ComparedFigure, ...] = ()
    """Against the baseline."""
    failed: bool
    """Whether a condition holds that must not, or a figure is worse than the baseline's."""
    unknown: tuple[str, ...] = ()
    """What could not be judged, though it was asked for."""
