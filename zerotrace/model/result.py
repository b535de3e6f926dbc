"""The result of an analysis, as ``analysis.json`` holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from zerotrace.model.blocking import BlockingCheck
from zerotrace.model.clock import ClockReport
from zerotrace.model.collectives import Collectives
from zerotrace.model.finding import Finding
from zerotrace.model.gathers import GatherReport
from zerotrace.model.hta import HtaReport
from zerotrace.model.manifest import RunManifest
from zerotrace.model.memory import MemoryReport
from zerotrace.model.overlap_tax import OverlapTax
from zerotrace.model.partition import RankSummary, StepPartition, StepWindow
from zerotrace.model.ranks import RankOverview
from zerotrace.model.reductions import ReductionStep
from zerotrace.model.spread import Spread
from zerotrace.model.stragglers import Stragglers
from zerotrace.model.trust import Trust
from zerotrace.model.vocabulary import Attribution, Category, Level, Mode
from zerotrace.model.wire import WireLedger

ANALYSIS_VERSION = "1.3"


class Diagnostic(Struct, frozen=True, kw_only=True):
    """Something about the input that a reader of the figures must know."""

    code: str
    level: Level
    message: str
    file: str | None = None
    """Name of the trace file, relative to the run folder; ``None`` where it concerns all of them."""
    count: int = 1
    hint: str | None = None
    event: int | None = None
    """Position in ``traceEvents`` of the first event concerned; ``None`` where it is not about events."""
    offset: int | None = None
    """Byte at which the first of it stands in the file's unpacked text; ``None`` where it is not about text."""


class TraceSource(Struct, frozen=True, kw_only=True):
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


class Verdict(Struct, frozen=True, kw_only=True):
    """The figures that answer first. Times are per step, each with its spread over ranks' mean steps.

    Where kernels of unknown class ran, compute, exposed and overlap go from the least to the most that they can be.
    """

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
    baseline_name: str | None = None
    """The run on a single device that the step is held against; ``None`` without one, like the next two."""
    baseline_step_ns: float | None = None
    """Its unprofiled step."""
    study_exposed_ns: float | None = None
    """``unprofiled step − baseline's``: exposed communication as the study has it, and all else that the run does more
    slowly than one device alone. May be below zero."""
    compute_ratio: Spread | None = None
    """``compute / span`` of the ranks' mean steps, each rank's time by its own step; so are the next two."""
    exposed_ratio: Spread | None = None
    idle_ratio: Spread | None = None
    headline: str
    """The answer in one or two sentences."""


class KernelTime(Struct, frozen=True, kw_only=True):
    """Total time of all device rows of one name on one rank."""

    rank: int
    name: str
    category: Category
    count: int
    total_ns: int
    ratio: float | None = None
    """``total / Σ total`` over the rank's names in the list that this is an entry of; ``None`` where that is zero."""


class RunTotals(Struct, frozen=True, kw_only=True):
    """How much was read."""

    num_ranks: int
    num_events: int
    """Σ over trace files."""
    num_rows: int | None = None
    """Rows of device time, of host time in host mode; ``None`` where they were not counted."""


class Analysis(Struct, frozen=True, kw_only=True):
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
    totals: RunTotals | None = None
    """``None`` in files of versions before it."""
    left_out_steps: tuple[int, ...] = ()
    """Steps in which ranks wait for another one's profiler: in no mean, unless a rank has no others."""
    verdict: Verdict
    top_kernels: tuple[KernelTime, ...]
    """The names with the most device time on each rank, most first: the place to see what the rules took
    for compute."""
    diagnostics: tuple[Diagnostic, ...]
    trust: Trust | None = None
    """What weakens the figures, counted; ``None`` in files of versions before it."""
    gathers: GatherReport | None = None
    """Stage 3's parameter gathers; ``None`` where there are none."""
    no_gathers: str | None = None
    """Why there are none, one sentence; ``None`` where there are some."""
    reductions: tuple[ReductionStep, ...] = ()
    """The reduction of gradients by rank and step; empty where there is none."""
    findings: tuple[Finding, ...] = ()
    """What costs the run most, worst first; nothing within the noise of the step time."""
    rank_overview: RankOverview | None = None
    """What leads the page of a run of more than 16 ranks; ``None`` where each rank is shown in full."""
    stragglers: Stragglers | None = None
    """Who arrives last at collectives, and whether chance explains it; ``None`` where none was matched."""
    overlap_tax: OverlapTax | None = None
    """What compute pays for running beside communication; ``None`` in host mode, and without communication."""
    blocking_check: BlockingCheck | None = None
    """Blocking time by launches beside what the waits of streams say; ``None`` where no trace recorded these."""
    clock: ClockReport | None = None
    """How well the clocks of the ranks agree; ``None`` where no collectives were compared."""
    hta: HtaReport | None = None
    collectives: Collectives | None = None
    """The collectives of the steps in figures; ``None`` where there are none."""
    wire: WireLedger | None = None
    """Bytes sent a rank and step; ``None`` where no step was seen."""
    memory: MemoryReport | None = None
    """Memory by owner, measured and on paper."""
    memory_reason: str | None = None
    """Why ``memory`` is ``None``."""
    manifest: RunManifest | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    """Digest of every file that was looked at, the manifest included, by its name within the run."""
    store_marks: Mapping[str, str] = field(default_factory=dict)
    """What an object store said of each input when it was listed, by the same names: its ETag, or when it was changed,
    and its size. Empty for inputs that lay on the machine."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``zerotrace analyze`` that change what is written."""
    outputs: tuple[str, ...] = ()
    """Files that were written beside this one."""
    row_counts: Mapping[str, int] = field(default_factory=dict)
    """Rows of every table among them, by file."""
    elapsed_s: float | None = None
    """Wall-clock seconds that the analysis took."""
