"""What weakens the figures of a run, counted; and figures that are bounds because the class of some time is unknown."""

from __future__ import annotations

from msgspec import Struct


class Bound(Struct, frozen=True, kw_only=True):
    """The least and the most that a figure can be, whatever the unclassified kernels are."""

    low: float
    high: float


class FigureBounds(Struct, frozen=True, kw_only=True):
    """Bounds of one rank's mean step."""

    unclassified_ns: float
    """Time of kernels of unknown class, mean over the steps."""
    compute_ns: Bound
    comm_ns: Bound
    exposed_ns: Bound
    overlap_ratio: Bound | None
    """``None`` where there may be no communication at all."""


class Trust(Struct, frozen=True, kw_only=True):
    """What weakens the figures. Counts are over all ranks; ``None`` means unknown, never zero."""

    unclassified_ratio: float
    """The largest share of any rank's compute time that is of unknown class."""
    unclassified_names: tuple[str, ...]
    """Kernels of unknown class, most time first."""
    num_launches: int | None
    """Launch calls within the steps; ``None`` in host mode, like the next two."""
    num_launches_without_kernel: int | None
    num_kernels_without_launch: int | None
    num_dropped: int
    """Events without a usable time, negative durations and repeated records: in no figure."""
    num_clipped: int
    """Rows that cross the border of a step window, and are cut there."""
    num_missing_ranks: int | None
    """Ranks of the world without a trace; ``None`` where no trace states the world."""
    num_unmatched: int | None
    """Rows of collectives without a partner; ``None`` where a single rank was read."""
    clock_residual_median_ns: float | None
    """How well ends of matched collectives agree between ranks; ``None`` without any."""
    clock_residual_worst_ns: int | None
    dilation_ratio: float | None
    """Profiled step / unprofiled step; ``None`` without a manifest."""
