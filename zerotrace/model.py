"""The nouns of zerotrace as enums and frozen dataclasses: few things, each with one meaning.

Many things (events, intervals) are Arrow tables, defined in :mod:`zerotrace.schema`. This module
imports nothing but the standard library, so that it can be used inside every rank of a capture.
Times are int64 nanoseconds, bytes are int64; ``None`` means *unknown*, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

MANIFEST_VERSION = "1.1"
ANALYSIS_VERSION = "1.0"

#: ``step`` of the one window that stands for a trace without ProfilerStep annotations.
STEP_ALL = -1


class Category(str, Enum):
    """What a row of device time is spent on (host time, in host mode)."""

    COMPUTE = "compute"
    COMM = "comm"
    COPY = "copy"


class Owner(str, Enum):
    """What a block of memory belongs to."""

    PARAMS = "params"
    """Parameters in the dtype of the forward pass: whole ones, or this rank's partitions."""
    GRADS = "grads"
    MASTER = "master"
    """The optimizer's own copy of the parameters."""
    EXP_AVG = "exp_avg"
    EXP_AVG_SQ = "exp_avg_sq"
    REDUCE_BUCKET = "reduce_bucket"
    """Flat buffers in which gradients are collected for their reduction."""
    GRAD_PARTITION = "grad_partition"
    """This rank's share of the reduced gradients."""
    GATHERED_PARAMS = "gathered_params"
    """Stage 3's whole parameters: gathered for a moment, or persisted."""
    ACTIVATIONS = "activations"
    WORKSPACE = "workspace"
    OTHER = "other"


class Mode(str, Enum):
    """Where the time of a run is read from."""

    DEVICE = "device"
    """Kernels, copies and sets on a device."""
    HOST = "host"
    """CPU operators and ``gloo:*`` annotations; used when there are no device rows and the backend is gloo."""


class Attribution(str, Enum):
    """How device rows are given to steps."""

    CLIP = "clip"
    """Each row is cut at the borders of the host's step window."""
    LAUNCH = "launch"
    """Each row belongs, whole, to the step in which it was launched."""


class Level(str, Enum):
    """How much a diagnostic weakens the result."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class WindowKind(str, Enum):
    """The parts of a capture, in the order in which they run."""

    WARMUP = "warmup"
    TIMED = "timed"
    """Without a profiler: the run as it is."""
    LABELLED = "labelled"
    """Like timed, with the label hooks in place: what they cost."""
    LIGHT = "light"
    """The profiler records what the device does, and nothing of the host."""
    DETAILED = "detailed"
    """The profiler records host and device, with labels."""
    MEMORY = "memory"
    """The allocator's history is recorded."""

    @classmethod
    def _missing_(cls, value: object) -> WindowKind | None:
        # Its name in manifests of version 1.0.
        return cls.DETAILED if value == "profiled" else None


# --------------------------------------------------------------------------- capture


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The model of a run. The shape is that of a GPT-2 decoder; of a user's own program only name and Ψ are known."""

    name: str
    """Name of one of zerotrace's own models, else the file name of the training program."""
    num_params: int
    """Ψ, counted on the built model (tied weights once)."""
    num_layers: int | None = None
    num_heads: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class WindowRecord:
    """The step times of one window of a capture, as one rank's host clock saw them."""

    kind: WindowKind
    first_step: int
    step_ns: tuple[int, ...]
    """Duration of each step, device work included (the device is synchronised between steps)."""


@dataclass(frozen=True, kw_only=True)
class RankRecord:
    """What one rank measured about itself."""

    rank: int
    host: int
    """Index of the rank's host among the hosts of the run; host names are not kept."""
    device: str
    """Marketing name of the device, for example ``NVIDIA H200`` or ``cpu``."""
    windows: tuple[WindowRecord, ...]
    resident_bytes: int | None = None
    """``memory_allocated`` after the last timed step; ``None`` on CPU."""
    peak_bytes: int | None = None
    """``max_memory_allocated`` over the timed window; ``None`` on CPU."""
    reserved_bytes: int | None = None
    """``memory_reserved`` after the last timed step."""
    device_used_bytes: int | None = None
    """Memory in use on the device by all that runs there, as the driver reports it."""
    trace_file: str | None = None
    """File name of the Kineto trace of the detailed window, beside the manifest."""
    light_trace_file: str | None = None
    """The Kineto trace of the light window, in a folder of its own so that no analysis mixes the two up."""
    owners_file: str | None = None
    """Which storage belongs to what after the last step of the memory window."""
    snapshot_file: str | None = None
    """The allocator's snapshot of the same moment, with the history of the memory window; ``None`` on CPU."""


@dataclass(frozen=True, kw_only=True)
class LabelsRecord:
    """How the trace of the detailed window was labelled."""

    version: int
    """Version of the name format, see :mod:`zerotrace.labels`."""
    hooks: tuple[str, ...]
    """Hooks that were in place."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Hook -> why it was not: what it marks is absent from the trace."""
    overhead_ratio: float | None = None
    """Median step with the hooks in place / without, both unprofiled; ``None`` without these two windows."""


@dataclass(frozen=True, kw_only=True)
class RunManifest:
    """What a capture did: enough to repeat it, and to know what its figures mean."""

    schema_version: str = MANIFEST_VERSION
    created: str
    """Start of the capture, ISO 8601, UTC."""
    zerotrace_version: str
    command: tuple[str, ...]
    engine: str
    stage: int
    world_size: int
    device: str
    """``cuda`` or ``cpu``."""
    backend: str
    """``nccl`` or ``gloo``."""
    model: ModelShape
    micro_batch: int
    sequence: int | None = None
    """Tokens a sequence; ``None`` where a user's own program ran."""
    seed: int | None = None
    ds_config: Mapping[str, Any]
    """The whole DeepSpeed configuration as passed to ``deepspeed.initialize``."""
    versions: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that change what is measured (``NCCL_*``, ``OMP_NUM_THREADS`` ...)."""
    losses: tuple[float | None, ...] = ()
    """Rank 0's loss after each step, warm-up first: two runs of equal work can be told by it. ``None`` where it was no
    finite number."""
    ranks: tuple[RankRecord, ...]
    labels: LabelsRecord | None = None
    """``None`` if nothing was labelled."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures should know about how the capture came about, one sentence each."""


# --------------------------------------------------------------------------- analysis


@dataclass(frozen=True, kw_only=True)
class Diagnostic:
    """Something about the input that a reader of the figures must know."""

    code: str
    level: Level
    message: str
    file: str | None = None
    """Name of the trace file, relative to the run folder; ``None`` where it concerns all of them."""
    count: int = 1
    hint: str | None = None


@dataclass(frozen=True, kw_only=True)
class TraceSource:
    """One trace file that was read."""

    file: str
    rank: int
    num_bytes: int
    """Size on disk."""
    digest: str
    """BLAKE2b-128 of the file as it lies on disk."""
    num_events: int
    num_device_rows: int
    world_size: int | None
    backend: str | None
    host: str | None
    devices: tuple[str, ...] = ()
    """Names of the devices that the trace lists."""


@dataclass(frozen=True, kw_only=True)
class StepWindow:
    """The window of one step on one rank's host clock, half open."""

    rank: int
    step: int
    start_ns: int
    end_ns: int

    @property
    def span_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, kw_only=True)
class StepPartition:
    """One step of one rank on one device, taken apart.

    ``span = compute + exposed + copy_only + idle`` and ``comm = overlapped + exposed``, to the
    nanosecond. All are ``None`` but the span where the window holds no device row: unknown, not idle.
    """

    rank: int
    device: int | None
    """Device index on the host; ``None`` in host mode."""
    step: int
    """Number of the ProfilerStep; :data:`STEP_ALL` for the window ``all``."""
    start_ns: int
    span_ns: int
    compute_ns: int | None
    comm_ns: int | None
    overlapped_ns: int | None
    exposed_ns: int | None
    copy_only_ns: int | None
    idle_ns: int | None
    exposed_transfer_ns: int | None = None
    """Exposed after the last member of the collective has started; ``None`` where peers are not in the run."""
    exposed_wait_ns: int | None = None
    """Exposed before that: waiting for a late rank."""
    blocking_queued_ns: int | None = None
    """Exposed with the next compute kernel launched already: the collective holds the device back."""
    blocking_sync_ns: int | None = None
    """Exposed with the next kernel's thread inside a synchronising call: the host waits for the device."""
    shadow_ns: int | None = None
    """Exposed with the host busy elsewhere: a faster collective wins nothing."""
    host_bound_ns: int | None = None
    """Idle until the launch call of the next row had returned."""
    stalled_ns: int | None = None
    """Idle after that: launched, but held back."""
    tail_ns: int | None = None
    """Idle after the window's last row."""
    unlinked_ns: int | None = None
    """Idle before rows whose launch is not in the trace."""

    @property
    def known(self) -> bool:
        """Whether the window held any device row."""
        return self.compute_ns is not None

    @property
    def blocking_ns(self) -> int | None:
        """``queued + sync``: what faster communication could win."""
        if self.blocking_queued_ns is None or self.blocking_sync_ns is None:
            return None
        return self.blocking_queued_ns + self.blocking_sync_ns

    @property
    def overlap_ratio(self) -> float | None:
        """``overlapped / comm``; ``None`` where there is no communication."""
        if not self.comm_ns or self.overlapped_ns is None:
            return None
        return self.overlapped_ns / self.comm_ns


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A figure over ranks and steps."""

    min: float
    median: float
    max: float


@dataclass(frozen=True, kw_only=True)
class RankSummary:
    """One rank's mean step over its known steps."""

    rank: int
    device: int | None
    num_steps: int
    span_ns: float
    compute_ns: float
    comm_ns: float
    overlapped_ns: float
    exposed_ns: float
    copy_only_ns: float
    idle_ns: float | None
    """``None`` when rows are attributed by launch."""
    overlap_ratio: float | None
    """Σ overlapped / Σ comm over the rank's steps."""
    exposed_transfer_ns: float | None = None
    exposed_wait_ns: float | None = None
    blocking_ns: float | None = None
    host_bound_ns: float | None = None
    outside_steps_ns: int
    """Device time of this rank that lies in no step window."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The figures that answer first. Times are per step, each with its spread over ranks' mean steps."""

    unprofiled_step_ns: float | None
    """Median over the timed steps of the slowest rank's step time; ``None`` without a manifest."""
    dilation_ratio: float | None
    """Median profiled step / median unprofiled step, both of the slowest rank and by its own clock."""
    span_ns: Spread | None
    compute_ns: Spread | None
    exposed_ns: Spread | None
    overlap_ratio: Spread | None
    copy_only_ns: Spread | None
    idle_ns: Spread | None
    peak_bytes: Spread | None
    resident_bytes: Spread | None
    exposed_transfer_ns: Spread | None = None
    exposed_wait_ns: Spread | None = None
    blocking_ns: Spread | None = None
    host_bound_ns: Spread | None = None
    headline: str
    """The answer in one or two sentences."""


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """Total time of all device rows of one name on one rank."""

    rank: int
    name: str
    category: Category
    count: int
    total_ns: int


@dataclass(frozen=True, kw_only=True)
class HtaOverlap:
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
    note: str | None = None
    """Why the two differ, where they do."""


@dataclass(frozen=True, kw_only=True)
class HtaIdle:
    """HTA's idle breakdown of one stream."""

    rank: int
    stream: int
    reason: str
    """``host_wait``, ``kernel_wait`` or ``other``, as HTA names them."""
    idle_ns: int
    ratio: float | None


@dataclass(frozen=True, kw_only=True)
class HtaKernelType:
    """HTA's kernel breakdown: time during which these kinds of kernel run, over all ranks."""

    kernel_type: str
    total_ns: int
    percent: float


@dataclass(frozen=True, kw_only=True)
class HtaReport:
    """What HTA says about the run."""

    hta_version: str
    overlap: tuple[HtaOverlap, ...]
    idle: tuple[HtaIdle, ...]
    kernel_types: tuple[HtaKernelType, ...]


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """Every number of the report; stored as ``analysis.json``."""

    schema_version: str = ANALYSIS_VERSION
    zerotrace_version: str
    run_name: str
    mode: Mode
    attribution: Attribution
    sources: tuple[TraceSource, ...]
    windows: tuple[StepWindow, ...]
    partition: tuple[StepPartition, ...]
    ranks: tuple[RankSummary, ...]
    verdict: Verdict
    top_kernels: tuple[KernelTime, ...]
    """The names with the most device time on each rank, most first: the place to see what the rules took
    for compute."""
    diagnostics: tuple[Diagnostic, ...]
    hta: HtaReport | None = None
    manifest: RunManifest | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Digest of every file that was looked at, the manifest included, by its name within the run."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``zerotrace analyze`` that change what is written."""
    outputs: tuple[str, ...] = ()
    """Files that were written beside this one."""
    elapsed_s: float | None = None
    """Wall-clock seconds that the analysis took."""
