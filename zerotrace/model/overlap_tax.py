"""What compute pays for running beside communication."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class TaxVerdict(str, Enum):
    """What the comparison of kernels alone and beside communication says."""

    MEASURED = "measured"
    """The difference is larger than its uncertainty."""
    WITHIN_NOISE = "within_noise"
    """It is not."""
    TOO_FEW = "too_few"
    """Less than half of the time beside communication is that of kernels that can be compared."""
    NO_OVERLAP = "no_overlap"
    """No compute kernel runs beside communication."""


class NotCompared(str, Enum):
    """Why kernels of one name and launch shape are not compared."""

    FEW = "few"
    """Fewer than five of them on one of the two sides."""
    MIXED = "mixed"
    """Alone, they take times of several kinds: one name and launch shape for problems of several sizes."""
    NO_SHAPE = "no_shape"
    """The trace does not say how they were launched."""


class KernelTax(Struct, frozen=True, kw_only=True):
    """Compute kernels of one name and launch shape on one rank: alone, and beside communication.

    *Beside* is a kernel of whose time at least half has communication running on its device, *alone* one without
    any; what is in between counts on neither side.
    """

    rank: int
    device: int
    name: str
    launch_shape: str | None
    num_alone: int
    num_beside: int
    num_between: int
    alone_ns: float | None
    """Median duration alone."""
    beside_ns: float | None
    """Median duration beside communication."""
    lost_ns: float | None
    """``num_beside × (beside − alone)`` over all steps; ``None`` where the two are not compared."""
    error_ns: float | None
    """Half of the 95 % interval of ``lost_ns``."""
    not_compared: NotCompared | None


class RankTax(Struct, frozen=True, kw_only=True):
    """The overlap tax of one device of one rank. Times are means over its steps."""

    rank: int
    device: int
    verdict: TaxVerdict
    beside_ns: float
    """Time of compute kernels with communication beside them, summed over kernels."""
    compared_ratio: float | None
    """Part of it that is of kernels compared with their like; ``None`` without any."""
    slowdown_ratio: float | None
    """``Σ num_beside × beside / Σ num_beside × alone`` over the kernels compared."""
    lost_ns: float | None
    """How much longer the kernels compared take beside communication than alone; ``None`` where too few are."""
    error_ns: float | None
    """Half of its 95 % interval."""
    hidden_transfer_ns: float | None
    """Overlapped communication after its last member had started: what overlap can win. ``None`` without peers."""
    net_ns: float | None
    """``hidden_transfer − lost``: what overlap wins in all. Below zero it costs more than it hides."""


class OverlapTax(Struct, frozen=True, kw_only=True):
    """The overlap tax of a run."""

    sentence: str
    ranks: tuple[RankTax, ...]
    kernels: tuple[KernelTax, ...]
    """The kinds of kernel that lose most, most first; ``overlap_tax.parquet`` has all of them."""
