"""Several runs side by side."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from zerotrace.model.ablation import Ablation
from zerotrace.model.memory import LadderStep
from zerotrace.model.spread import Spread
from zerotrace.model.vocabulary import Owner
from zerotrace.model.wire import CollectiveKind

COMPARISON_VERSION = "1.3"


class Cause(str, Enum):
    """What a step spends time on; each instant has one cause."""

    COMPUTE = "compute"
    EXPOSED_TRANSFER = "exposed_transfer"
    EXPOSED_WAIT = "exposed_wait"
    EXPOSED = "exposed"
    """Exposed communication of which transfer and wait are not told apart."""
    COPY = "copy"
    HOST_BOUND = "host_bound"
    """Idle until the host had launched the next row."""
    STALLED = "stalled"
    """Idle after that."""
    TAIL = "tail"
    """Idle after the last row."""
    UNLINKED = "unlinked"
    """Idle before rows whose launch is not in the trace."""
    IDLE = "idle"
    """Idle time whose reasons are not told apart."""


class Quantity(str, Enum):
    """A figure that runs are held against each other by."""

    STEP = "step_ns"
    RESIDENT = "resident_bytes"
    PEAK = "peak_bytes"
    SENT = "sent_bytes"


class CausePart(Struct, frozen=True, kw_only=True):
    """The part of a step that one cause takes."""

    cause: Cause
    profiled_ns: float
    """In the profiled step: mean over steps, then over ranks."""
    step_ns: float
    """In the unprofiled step: ``profiled × scale``."""


class StepCauses(Struct, frozen=True, kw_only=True):
    """The unprofiled step by cause: the parts of the profiled step, scaled so that they add up to it."""

    span_ns: float
    """The profiled step: Σ profiled parts."""
    parts: tuple[CausePart, ...]
    """In the order of :class:`Cause`, those that take time. Σ step_ns is the unprofiled step."""
    overlapped_ns: float
    """Of compute, what hides communication; in the profiled step."""
    overlapped_step_ns: float
    """The same in the unprofiled step: ``overlapped × device_scale``."""
    device_scale: float
    """What compute, transfer and copies are scaled by: 1, since a profiler slows the host and not the device. Where
    these alone take longer than the unprofiled step, and in host mode, it is ``host_scale``."""
    host_scale: float
    """What waiting and idle time are scaled by."""


class OwnerBytes(Struct, frozen=True, kw_only=True):
    """What one owner holds."""

    owner: Owner
    bytes: int


class HeldMemory(Struct, frozen=True, kw_only=True):
    """The memory of a rank at one instant, by owner, beside theory."""

    owners: tuple[OwnerBytes, ...] = ()
    """Measured in the memory window, on the rank that holds most, most bytes first; empty where owners are unknown."""
    owners_bytes: int | None = None
    """Σ of the owners. The gauge of the timed window may differ by some tensors of a step."""
    paper_bytes: float | None = None
    """Model states in theory; ``None`` at the peak, which theory does not tell."""
    deepspeed_bytes: int | None = None
    """The engine's ledger; ``None`` where there is none, and at the peak where activations are unknown."""


class KindTraffic(Struct, frozen=True, kw_only=True):
    """What a rank sends in a step by collectives of one kind."""

    kind: CollectiveKind
    num_calls: float
    sent_bytes: float


class SentBytes(Struct, frozen=True, kw_only=True):
    """Bytes on the wire, a rank and step."""

    kinds: tuple[KindTraffic, ...]
    """Most bytes first."""
    sent_bytes: float
    theory_bytes: float | None
    ratio: float | None
    """In units of 2Ψ (N−1)/N bytes."""
    theory_ratio: float | None


class Work(Struct, frozen=True, kw_only=True):
    """What a rank computes in a step, and on what: step times compare where all of it is equal."""

    model: str
    num_params: int
    micro_batch: int | None
    """Sequences a micro-step; ``None`` where the program has not said it."""
    num_micro_steps: int
    """Micro-steps a step: gradient accumulation."""
    sequence: int | None
    """Tokens a sequence; ``None`` where a user's own program ran."""
    precision: str | None
    """``bf16``, ``fp16`` or ``fp32``; ``None`` where the configuration does not say."""
    device: str
    """Names of the devices."""


class LossCheck(Struct, frozen=True, kw_only=True):
    """Losses of rank 0 after the same steps from the same seed, held against those of another run.

    The work of two runs is equal where they agree to what bf16 resolves.
    """

    beside: str
    """Name of the other run."""
    num_steps: int
    """Steps whose loss both know."""
    first_ratio: float
    """``|difference| / loss`` of the first step, before which nothing was updated."""
    rms_ratio: float | None
    """Root mean square of ``difference / loss`` over all steps; ``None`` beside a run of other ranks, which trains on
    other tokens."""
    tolerance_ratio: float
    """Up to which both count as equal: the distance of two numbers of bf16."""
    equal: bool


class ComparedRun(Struct, frozen=True, kw_only=True):
    """One run of a comparison."""

    name: str
    engine: str
    scheme: str | None = None
    """How its ranks share model states: ``ZeRO-3``, ``DDP``; ``None`` where that is unknown."""
    stage: int | None
    """ZeRO stage; ``None`` for an engine that has none."""
    world_size: int
    num_params: int
    """Ψ."""
    tokens: int | None
    """Tokens a step, over all ranks."""
    resident_bytes: int | None
    """After a timed step, on the rank that holds most."""
    peak_bytes: int | None
    """During the timed steps, on the rank that came highest."""
    step_ns: float | None
    """The unprofiled step: median over the timed steps of the slowest rank's time."""
    tokens_per_s: float | None
    """``tokens / step``."""
    exposed_ns: Spread | None = None
    """Exposed communication of the profiled step over the ranks; ``None`` where the run is not analysed."""
    dilation_ratio: float | None = None
    study_exposed_ns: float | None = None
    """``step − baseline's step``; ``None`` without a baseline of the same work, and for the baseline itself."""
    differences: tuple[str, ...] = ()
    """What makes its step another work than that of the first run."""
    loss_check: LossCheck | None = None
    """Its losses beside those of the first run of as many ranks; ``None`` for that run, and where there is nothing to
    compare."""
    label: str
    """A short name, unlike those of the others: ``stage 3``, ``single``, else the name."""
    step_error_ns: float | None = None
    """Standard error of ``step_ns``, by how its timed steps vary; ``None`` with fewer than four."""
    causes: StepCauses | None = None
    no_causes: str | None = None
    """Why ``causes`` is ``None``, in a few words."""
    resident: HeldMemory = HeldMemory()
    peak: HeldMemory = HeldMemory()
    sent: SentBytes | None = None
    """``None`` where the run is not analysed, or no step was seen whole."""
    overlap_ratio: float | None = None
    """Σ overlapped / Σ communication over ranks and profiled steps."""
    hidden_ratio: float | None = None
    """Σ hidden / Σ gather of parameter gathers; ``None`` where there are none."""
    hidden_transfer_ratio: float | None = None
    """The same over transfer alone, waiting left out."""


class Setting(Struct, frozen=True, kw_only=True):
    """Something about how runs were made in which they differ."""

    section: str
    """``run``, ``DeepSpeed configuration``, ``engine settings``, ``versions`` or ``environment``."""
    key: str
    """With dots for sections of the configuration."""
    values: tuple[str | None, ...]
    """Of each run, as JSON; ``None`` where it is not set."""


class Repeats(Struct, frozen=True, kw_only=True):
    """Runs of one configuration, one or several: how far their figures spread is noise."""

    label: str
    runs: tuple[int, ...]
    """Places in :attr:`Comparison.runs`, rising."""
    stage: int | None
    scheme: str | None = None
    figures: Mapping[Quantity, Spread]
    """The spread of each known figure over the runs; that of one run has no width."""
    words: str | None = None
    """What repeats spread over, in one sentence; ``None`` for one run."""


class Change(Struct, frozen=True, kw_only=True):
    """The difference in one figure between two configurations, of medians over their repeats."""

    quantity: Quantity
    before: float
    after: float
    difference: float
    """``after − before``."""
    noise: float | None
    """What the figure varies by all by itself: the widest spread of repeats, and for the step time no less than twice
    the standard error of the difference. ``None`` where there is neither."""
    equal: bool
    """Whether the difference is within the noise; without any noise, whether it is zero."""


class Delta(Struct, frozen=True, kw_only=True):
    """What going from one configuration to another costs and saves."""

    before: int
    """Place in :attr:`Comparison.repeats`."""
    after: int
    is_rung: bool
    """Whether it is a step of the ladder of stages."""
    changes: tuple[Change, ...]
    """Of the figures that both know."""
    owners: tuple[OwnerBytes, ...] = ()
    """What each owner holds more between steps (less, below zero), in the first runs of both, most changed first;
    empty where owners are unknown."""
    words: str
    """The same in one sentence."""


class Comparison(Struct, frozen=True, kw_only=True):
    """Runs in the order in which they were given."""

    schema_version: str = COMPARISON_VERSION
    zerotrace_version: str
    headline: str
    """Which configurations are fastest and which hold least, in a sentence or two."""
    runs: tuple[ComparedRun, ...]
    baseline: str | None
    """Name of the run on a single device that the others' steps are held against."""
    ablations: tuple[Ablation, ...] = ()
    """What a part of the engine is worth, for every pair of runs that differ in that part alone."""
    ladder: tuple[LadderStep, ...] = ()
    """What each ZeRO stage saves of memory over the one below it, of the first run's model on as many ranks."""
    settings: tuple[Setting, ...] = ()
    """In what the runs differ, by section; empty where all were made in one way."""
    repeats: tuple[Repeats, ...] = ()
    """The runs by configuration."""
    deltas: tuple[Delta, ...] = ()
    """The ladder's rungs, lowest first; then every other configuration beside the one that it is a variant of, and
    those of torch's engines beside the stage that does the same."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures should know, one sentence each."""
