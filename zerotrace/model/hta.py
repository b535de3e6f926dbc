"""What HTA says of a run."""

from __future__ import annotations

from msgspec import Struct


class HtaOverlap(Struct, frozen=True, kw_only=True):
    """HTA's overlap and temporal breakdown of one rank, beside ours over the same rows.

    HTA's 100 % runs from the first to the last device row, and its classes come from names alone.
    """

    rank: int
    hta_overlap_percent: float | None
    our_overlap_percent: float | None
    """Ours over the whole trace, every row whole: what HTA's figure means."""
    hta_compute_ns: int
    our_compute_ns: int
    hta_non_compute_ns: int
    our_non_compute_ns: int
    hta_idle_ns: int
    our_idle_ns: int
    hta_total_ns: int
    our_total_ns: int
    overlap_difference_percent: float | None = None
    """HTA's less ours, in points; so are the next four, in ns. ``None`` where one is unknown."""
    compute_difference_ns: int | None = None
    non_compute_difference_ns: int | None = None
    idle_difference_ns: int | None = None
    total_difference_ns: int | None = None
    note: str | None = None
    """Why the two differ, where they do."""


class HtaIdle(Struct, frozen=True, kw_only=True):
    """HTA's idle breakdown of one stream."""

    rank: int
    stream: int
    reason: str
    """``host_wait``, ``kernel_wait`` or ``other``, as HTA names them."""
    idle_ns: int
    ratio: float | None


class HtaKernelType(Struct, frozen=True, kw_only=True):
    """HTA's kernel breakdown: time during which these kinds of kernel run, over all ranks."""

    kernel_type: str
    total_ns: int
    percent: float


class HtaReport(Struct, frozen=True, kw_only=True):
    """What HTA says about the run."""

    hta_version: str
    overlap: tuple[HtaOverlap, ...]
    idle: tuple[HtaIdle, ...]
    kernel_types: tuple[HtaKernelType, ...]
