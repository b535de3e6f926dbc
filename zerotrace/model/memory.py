"""Memory of a run: measured by owner, and beside it what the ledgers predict."""

from __future__ import annotations

from dataclasses import dataclass

from zerotrace.model.vocabulary import Owner


@dataclass(frozen=True, kw_only=True)
class OwnedBytes:
    """What one owner holds of one kind at one instant."""

    owner: Owner
    part: str
    """What it is in words, or the attribute that holds it."""
    bytes: int
    """What the allocator gave: rounded up to 512 bytes, and by up to 1 MiB more where the rest was not split off."""
    requested_bytes: int
    num_blocks: int


@dataclass(frozen=True, kw_only=True)
class LedgerLine:
    """One entry of a ledger: what a rank holds for one purpose."""

    owner: Owner
    what: str
    formula: str
    """How its bytes come about, with the numbers put in."""
    bytes: float
    """On the device. A fraction where theory divides by ranks."""
    offloaded_bytes: int = 0
    """What the configuration puts into host memory or on disk instead."""
    source: str = ""
    """File and function of DeepSpeed or torch that it follows, or the paper."""


@dataclass(frozen=True, kw_only=True)
class PaperLedger:
    """The model states of one rank in theory: 16 bytes a parameter, sharded by stage."""

    stage: int
    world_size: int
    num_params: int
    lines: tuple[LedgerLine, ...]
    bytes: float
    padded_bytes: int | None = None
    """The same with partitions padded as DeepSpeed pads them; ``None`` at stage 3 where shapes are unknown."""


@dataclass(frozen=True, kw_only=True)
class PeakLedger:
    """What comes on top of the resident lines at one instant of the step."""

    instant: str
    """``loss``, ``reduce`` or ``step``."""
    meaning: str
    lines: tuple[LedgerLine, ...]
    bytes: int
    """Resident lines included."""


@dataclass(frozen=True, kw_only=True)
class DeepSpeedLedger:
    """What this build of DeepSpeed holds for a configuration, on one rank."""

    stage: int
    world_size: int
    num_params: int
    lines: tuple[LedgerLine, ...]
    """Resident: between two steps."""
    bytes: int
    peaks: tuple[PeakLedger, ...]
    activations_bytes: int | None
    """Counted in the peaks; ``None`` where they are unknown, and then the peaks are those of the states alone."""
    estimate_bytes: int | None
    """What DeepSpeed's own estimator says for the device; ``None`` where it has none."""
    estimate_source: str
    notes: tuple[str, ...] = ()
    """What was assumed."""

    @property
    def peak_bytes(self) -> int:
        """The largest of the instants."""
        return max(peak.bytes for peak in self.peaks)
