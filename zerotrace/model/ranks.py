"""Runs of many ranks: how each figure spreads over them, which ranks stand out, and which are shown in full."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class RankFigure(str, Enum):
    """A figure that every rank has, by the attribute of :class:`RankFigures` that holds it."""

    SPAN = "span_ns"
    OWN = "own_ns"
    COMPUTE = "compute_ns"
    EXPOSED = "exposed_ns"
    TRANSFER = "exposed_transfer_ns"
    WAIT = "exposed_wait_ns"
    IDLE = "idle_ns"
    HOST_BOUND = "host_bound_ns"
    LATE = "late_ns"
    CAUSED_WAIT = "caused_wait_ns"
    PEAK = "peak_bytes"


class RankFigures(Struct, frozen=True, kw_only=True):
    """The headline figures of one device of a rank. Times are those of its mean step, unless it says otherwise."""

    rank: int
    device: int | None
    """``None`` in host mode."""
    span_ns: float
    own_ns: float | None
    """``span − exposed wait``: the step without what the rank waits for others. ``None`` without peers."""
    compute_ns: float
    exposed_ns: float
    exposed_transfer_ns: float | None
    exposed_wait_ns: float | None
    idle_ns: float | None
    host_bound_ns: float | None
    num_late: int | None
    """Collectives at which it is last by more than a tie, over all steps; ``None`` where none was matched."""
    late_ns: int | None
    """How late it is at these, summed over all steps."""
    caused_wait_ns: int | None
    """What others waited for it as the last to arrive, summed over members and steps."""
    peak_bytes: int | None
    """Peak of allocated memory, unprofiled, by the manifest."""


class RankValue(Struct, frozen=True, kw_only=True):
    """A figure of one rank."""

    rank: int
    device: int | None
    value: float


class RankSpread(Struct, frozen=True, kw_only=True):
    """How one figure spreads over the ranks."""

    figure: RankFigure
    num_known: int
    """Ranks (devices, where a rank has several) of which it is known."""
    lowest: RankValue
    low: float
    """5 % of the ranks have at most this much; a figure of one of them, like ``high``."""
    median: float
    high: float
    """95 % of the ranks have at most this much."""
    highest: RankValue
    outside_low: float
    """A rank below this, or above ``outside_high``, stands out: it is further from the median than four robust standard
    deviations (1.4826 × the median absolute deviation) and 1 % of the median step, or of the median for memory."""
    outside_high: float
    num_outliers: int
    outliers: tuple[RankValue, ...]
    """Ranks that stand out, the one furthest from the median first; at most eight."""
    bins: tuple[int, ...]
    """Ranks in each of so many parts of equal width from lowest to highest; one where all are equal."""


class StepSpread(Struct, frozen=True, kw_only=True):
    """How one figure of one step spreads over the ranks."""

    figure: RankFigure
    step: int
    lowest: RankValue
    median: float
    highest: RankValue


class ShownBecause(str, Enum):
    """Why a rank is shown in full."""

    ASKED = "asked"
    """``--ranks`` names it."""
    SLOWEST = "slowest"
    """Its mean step, without what it waits for others, is the longest."""
    FASTEST = "fastest"
    """It is the shortest."""
    MEDIAN = "median"
    """It is the median, or the nearest to it."""
    LAST = "last"
    """It is the last to arrive most often."""
    LATEST = "latest"
    """It is late by most in sum."""
    FINDING = "finding"
    """A finding has its evidence there."""
    OUTLIER = "outlier"
    """Of all ranks it is furthest outside in some figure."""


class ShownReason(Struct, frozen=True, kw_only=True):
    """One reason to show a rank in full."""

    because: ShownBecause
    figure: RankFigure | None = None
    """The figure that it is about; ``None`` for a count, a finding, and what was asked for."""
    value: float | None = None
    finding: str | None = None
    """The finding's code."""


class ShownRank(Struct, frozen=True, kw_only=True):
    """A rank that is shown in full: bars and rows of its own, and lanes in the timeline."""

    rank: int
    reasons: tuple[ShownReason, ...]
    num_rows: int
    """Rows of time that its lanes draw, or somewhat fewer."""


class RankOverview(Struct, frozen=True, kw_only=True):
    """What leads the page of a run of many ranks."""

    num_ranks: int
    ranks: tuple[RankFigures, ...]
    """Every rank, by rank and device."""
    spreads: tuple[RankSpread, ...]
    """The figures that are known of some rank."""
    map_figures: tuple[RankFigure, ...]
    """Figures that are drawn by rank and step."""
    map_steps: tuple[int, ...]
    """Steps that are drawn: all of them, or those with the longest spans where they would be too many."""
    steps: tuple[StepSpread, ...]
    """Spreads of ``map_figures`` in ``map_steps``."""
    shown: tuple[ShownRank, ...]
    """By rank."""
    left_out: tuple[ShownRank, ...] = ()
    """Ranks that have a reason, but no room on the page."""
