"""Several runs side by side."""

from __future__ import annotations

from dataclasses import dataclass

from zerotrace.model.ablation import Ablation
from zerotrace.model.memory import LadderStep
from zerotrace.model.result import Spread

COMPARISON_VERSION = "1.0"


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a rank computes in a step, and on what: step times compare where all of it is equal."""

    model: str
    num_params: int
    micro_batch: int
    """Sequences a micro-step."""
    num_micro_steps: int
    """Micro-steps a step: gradient accumulation."""
    sequence: int | None
    """Tokens a sequence; ``None`` where a user's own program ran."""
    precision: str | None
    """``bf16``, ``fp16`` or ``fp32``; ``None`` where the configuration does not say."""
    device: str
    """Names of the devices."""


@dataclass(frozen=True, kw_only=True)
class ComparedRun:
    """One run of a comparison."""

    name: str
    engine: str
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


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs in the order in which they were given."""

    schema_version: str = COMPARISON_VERSION
    zerotrace_version: str
    runs: tuple[ComparedRun, ...]
    baseline: str | None
    """Name of the run on a single device that the others' steps are held against."""
    ablations: tuple[Ablation, ...] = ()
    """What a part of the engine is worth, for every pair of runs that differ in that part alone."""
    ladder: tuple[LadderStep, ...] = ()
    """What each ZeRO stage saves of memory over the one below it, of the first run's model on as many ranks."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures should know, one sentence each."""
