"""Memory of a run: measured by owner, and beside it what the ledgers predict."""

from __future__ import annotations

from msgspec import Struct

from zerotrace.model.vocabulary import Owner


class OwnedBytes(Struct, frozen=True, kw_only=True):
    """What one owner holds of one kind at one instant."""

    owner: Owner
    part: str
    """What it is in words, or the attribute that holds it."""
    bytes: int
    """What the allocator gave: rounded up to 512 bytes, and by up to 1 MiB more where the rest was not split off."""
    requested_bytes: int
    num_blocks: int


class RankMemory(Struct, frozen=True, kw_only=True):
    """The memory of one rank's device, measured in the memory window of a capture, or read off a snapshot alone."""

    rank: int | None
    """``None`` for a snapshot by itself."""
    device: int | None
    """Index of the device on its host; ``None`` on CPU."""
    resident: tuple[OwnedBytes, ...]
    """After the last step, most bytes first. On CPU what the engine holds, and no more: there is no snapshot."""
    resident_bytes: int | None
    """Σ live blocks; ``None`` on CPU."""
    peak: tuple[OwnedBytes, ...] = ()
    """At the instant of the peak."""
    peak_bytes: int | None = None
    """The highest level of the replayed history; ``None`` where none was recorded."""
    peak_phase: str | None = None
    """``forward``, ``backward`` or ``step``, by the stack of the allocation that made the peak."""
    peak_after_ns: int | None = None
    """From the first event of the history to the peak."""
    peak_reserved_bytes: int | None = None
    """Σ segments at that instant: what of them is not allocated then, is lost to fragmentation."""
    window_peak_bytes: int | None = None
    """``max_memory_allocated`` over the memory window: what the replay must reach."""
    reserved_bytes: int | None = None
    """Σ segments."""
    fragmentation_bytes: int | None = None
    """``reserved − resident``: what the allocator keeps for later."""
    rounding_bytes: int | None = None
    """Of the resident blocks, what was given beyond what was asked for."""
    device_used_bytes: int | None = None
    """In use on the device in the timed window, as the driver reports it."""
    context_bytes: int | None = None
    """``device used − reserved`` of the timed window: CUDA context, NCCL, and whatever else runs there."""
    timed_resident_bytes: int | None = None
    """The gauge of the timed window, which the manifest holds; other steps than those of the snapshot."""
    timed_peak_bytes: int | None = None
    num_events: int = 0
    """Events of the history."""
    snapshot_file: str | None = None
    owners_file: str | None = None


class OwnerCurve(Struct, frozen=True, kw_only=True):
    """One owner's bytes at each point of a :class:`MemoryCurve`."""

    owner: Owner
    bytes: tuple[int, ...]


class MemoryCurve(Struct, frozen=True, kw_only=True):
    """Bytes by owner over the memory window, reduced: each point is the highest instant of its stretch of time."""

    rank: int
    after_ns: tuple[int, ...]
    """From the first event of the history to each point."""
    owners: tuple[OwnerCurve, ...]
    """Those that hold anything at any point."""


class LedgerLine(Struct, frozen=True, kw_only=True):
    """One entry of a ledger: what a rank holds for one purpose."""

    owner: Owner
    what: str
    formula: str
    """How its bytes come about, with the numbers put in."""
    bytes: float
    """On the device. A fraction where theory divides by ranks."""
    rounding_bytes: int = 0
    """Of these, what the allocator gives beyond what is asked for."""
    offloaded_bytes: int = 0
    """What the configuration puts into host memory or on disk instead."""
    source: str = ""
    """File and function of DeepSpeed or torch that it follows, or the paper."""


class PaperLedger(Struct, frozen=True, kw_only=True):
    """The model states of one rank in theory: 16 bytes a parameter, sharded by stage."""

    stage: int
    world_size: int
    num_params: int
    lines: tuple[LedgerLine, ...]
    bytes: float
    padded_bytes: int | None = None
    """The same with partitions padded as the engine pads them; ``None`` where that takes shapes that are unknown."""


class PeakLedger(Struct, frozen=True, kw_only=True):
    """What comes on top of the resident lines at one instant of the step."""

    instant: str
    """``loss``, ``reduce`` or ``step``."""
    meaning: str
    lines: tuple[LedgerLine, ...]
    bytes: int
    """Resident lines included."""


class EngineLedger(Struct, frozen=True, kw_only=True):
    """What an engine holds for its configuration, on one rank: this build of DeepSpeed, or one of torch's.

    Results keep the names that they had when DeepSpeed's was the only one: ``deepspeed``, ``deepspeed_bytes``.
    """

    engine: str = "deepspeed"
    """As the manifest calls it."""
    stage: int
    """The ZeRO stage, of another engine the one that shards the same states."""
    world_size: int
    num_params: int
    lines: tuple[LedgerLine, ...]
    """Resident: between two steps."""
    bytes: int
    peaks: tuple[PeakLedger, ...]
    activations_bytes: int | None
    """Counted in the peaks; ``None`` where they are unknown, and then the peaks are those of the states alone."""
    estimate_bytes: int | None
    """What the engine's own estimator says for the device; ``None`` where it has none."""
    estimate_source: str
    notes: tuple[str, ...] = ()
    """What was assumed."""

    @property
    def peak_bytes(self) -> int:
        """The largest of the instants."""
        return max(peak.bytes for peak in self.peaks)


class OwnerGap(Struct, frozen=True, kw_only=True):
    """One owner: measured, and what the ledgers say."""

    owner: Owner
    measured_bytes: int
    deepspeed_bytes: int | None
    """``None`` where the ledger cannot tell: activations of a model that it does not know."""
    paper_bytes: float
    gap_bytes: int | None
    """``measured − the ledger's``."""
    unexplained_bytes: int
    """The part of the gap that ``words`` do not explain, without its sign."""
    explained_bytes: int | None = None
    """The part that has a name, with the sign of the gap: ``± max(|gap| − unexplained, 0)``; zero without a gap."""
    words: str | None = None
    """What the gap is."""


class Reconciliation(Struct, frozen=True, kw_only=True):
    """Measured bytes of one rank at one instant, held against the ledgers owner by owner."""

    rank: int
    instant: str
    """``resident``, or the instant of the peak ledger that fits the measured peak best."""
    measured_bytes: int
    deepspeed_bytes: int
    """Σ of the ledger, with activations as measured where it does not know them."""
    paper_bytes: float
    owners: tuple[OwnerGap, ...]
    """Most measured bytes first."""
    unexplained_bytes: int
    """Σ over owners: gaps of opposite signs do not cancel."""
    gap_bytes: int | None = None
    """``measured − the ledger's``, over all owners."""
    unexplained_ratio: float
    """Of what was measured."""
    words: tuple[str, ...] = ()
    """The difference to the paper, in sentences."""


class ProfiledMemory(Struct, frozen=True, kw_only=True):
    """Memory of one device as a trace's ``[memory]`` events tell it (``profile_memory=True``): totals, no owners."""

    rank: int
    device: str
    """``cuda:0``, ``cpu``."""
    baseline_bytes: int | None
    """Allocated before the profiler started; ``None`` on CPU, whose total starts from zero with the profiler."""
    peak_bytes: int
    peak_ns: int
    """When, nanoseconds since the Unix epoch."""
    end_bytes: int
    peak_reserved_bytes: int | None
    num_events: int


class MemoryReport(Struct, frozen=True, kw_only=True):
    """The memory ledger of a run."""

    ranks: tuple[RankMemory, ...] = ()
    """Measured, by rank."""
    paper: PaperLedger | None = None
    deepspeed: EngineLedger | None = None
    """Of whatever engine trained; ``None`` for one that no ledger knows."""
    resident: Reconciliation | None = None
    """Of the rank that holds most."""
    peak: Reconciliation | None = None
    """Of the rank that comes highest."""
    curve: MemoryCurve | None = None
    """Of the rank that comes highest."""
    profiled: tuple[ProfiledMemory, ...] = ()
    reason: str | None = None
    """Why nothing above is measured by owner, where it is not."""


class LadderStep(Struct, frozen=True, kw_only=True):
    """What going up one stage saves, on the same model and world size."""

    from_stage: int
    to_stage: int
    paper_bytes: float
    """Resident bytes that theory saves a rank."""
    deepspeed_bytes: int
    """What this build and these configurations save."""
    measured_bytes: int
    error_ratio: float | None
    """``(measured − DeepSpeed's) / resident at the lower stage``; ``None`` where nothing is resident there."""
