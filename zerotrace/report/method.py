"""Section 7: what the words mean, what the rules took for what, HTA beside ours, and what was run."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

from zerotrace.model import Analysis, Attribution, Category, HtaOverlap, KernelTime, Mode


@dataclass(frozen=True)
class Definition:
    """One word of the page."""

    term: str
    formula: str | None
    meaning: str
    role: str | None = None
    """The colour in which figures draw it."""


@dataclass(frozen=True)
class KernelRow:
    """One line of the kernel table."""

    kernel: KernelTime
    share: float
    """Of the rank's listed device time."""


@dataclass(frozen=True)
class HtaComparison:
    """HTA's figure and ours for one quantity of one rank."""

    rank: int
    quantity: str
    unit: str
    """``%`` or ``ns``."""
    hta: float | None
    ours: float | None
    note: str | None

    @property
    def difference(self) -> float | None:
        """HTA − ours; ``None`` where one is unknown."""
        return None if self.hta is None or self.ours is None else self.hta - self.ours


def definitions(mode: Mode) -> tuple[Definition, ...]:
    """The words of the page in the order in which one needs them."""
    device = mode is Mode.DEVICE
    row = "kernel, copy or set on a device" if device else "operator or gloo call on a host thread"
    comm_rule = (
        "Rows that carry collective metadata or, without it, a name of NCCL, RCCL or another known library."
        if device
        else "The gloo:* annotations of the backend."
    )
    compute_rule = (
        "Kernels that are neither communication nor a copy."
        if device
        else "Operators on threads that run no gloo call, without the c10d wrappers."
    )
    nothing = "Nothing runs on the device." if device else "No operator and no gloo call runs."
    return (
        Definition("step", None, "The host's annotation ProfilerStep#N: a window [start, end) on one rank."),
        Definition(
            "busy time", "|a ∪ b ∪ …|", f"Time during which at least one {row} runs. Rows that run at once count once."
        ),
        Definition("compute", "|compute rows|", compute_rule, "compute"),
        Definition("comm", "overlapped + exposed", comm_rule),
        Definition(
            "overlapped",
            "|comm ∩ compute|",
            "Communication while compute runs: it costs no time of its own.",
            "overlapped",
        ),
        Definition(
            "exposed",
            "|comm \\ compute|",
            "Communication with no compute beside it, waiting for other ranks included: "
            "an upper bound of what faster communication could win.",
            "exposed",
        ),
        Definition(
            "copy only",
            "|copy \\ (compute ∪ comm)|",
            "Copies and sets while neither compute nor communication runs.",
            "copy",
        ),
        Definition("idle", "span − compute − exposed − copy only", nothing, "idle"),
        Definition(
            "span",
            "compute + exposed + copy only + idle",
            "Length of the step window. The sum closes to the nanosecond, or the analysis stops.",
        ),
        Definition(
            "overlap ratio",
            "overlapped ÷ comm",
            "The share of communication that is hidden; unknown where there is none.",
        ),
        Definition(
            "dilation",
            "profiled step ÷ unprofiled step",
            "What the profiler itself costs. Every time read from a trace contains it.",
        ),
        Definition(
            "resident, peak",
            None,
            "Memory allocated after a step, and the most during one, as the allocator counts it.",
        ),
    )


def attribution_text(attribution: Attribution) -> str:
    """How rows were given to steps."""
    if attribution is Attribution.LAUNCH:
        return (
            "by launch: a row belongs, whole, to the step that launched it. "
            "The timeline shows rows where they ran, so that its sums can differ from the bars at the borders of steps."
        )
    return "by clock: a row that crosses the border of a step is cut there."


def kernel_rows(analysis: Analysis) -> tuple[KernelRow, ...]:
    """The names with the most time, by rank, most first."""
    totals: dict[int, int] = {}
    for kernel in analysis.top_kernels:
        totals[kernel.rank] = totals.get(kernel.rank, 0) + kernel.total_ns
    ordered = sorted(analysis.top_kernels, key=lambda k: (k.rank, -k.total_ns, k.name))
    return tuple(KernelRow(k, k.total_ns / totals[k.rank] if totals[k.rank] else 0.0) for k in ordered)


def kernel_role(category: Category) -> str:
    """The colour of a category in a table; communication takes that of its exposed part."""
    return {Category.COMPUTE: "compute", Category.COMM: "exposed", Category.COPY: "copy"}[category]


def hta_comparisons(analysis: Analysis) -> tuple[HtaComparison, ...]:
    """Five quantities a rank, HTA's beside ours."""
    overlap = () if analysis.hta is None else analysis.hta.overlap
    return tuple(row for entry in overlap for row in _hta_rows(entry))


def _hta_rows(entry: HtaOverlap) -> tuple[HtaComparison, ...]:
    quantities: tuple[tuple[str, str, float | None, float | None], ...] = (
        ("overlap", "%", entry.hta_overlap_percent, entry.our_overlap_percent),
        ("compute", "ns", entry.hta_compute_ns, entry.our_compute_ns),
        ("non-compute", "ns", entry.hta_non_compute_ns, entry.our_non_compute_ns),
        ("idle", "ns", entry.hta_idle_ns, entry.our_idle_ns),
        ("total", "ns", entry.hta_total_ns, entry.our_total_ns),
    )
    return tuple(
        HtaComparison(entry.rank, name, unit, hta, ours, entry.note if index == 0 else None)
        for index, (name, unit, hta, ours) in enumerate(quantities)
    )


def command_text(analysis: Analysis) -> str | None:
    """The command of the capture as one would type it."""
    return None if analysis.manifest is None else shlex.join(analysis.manifest.command)


def configuration_text(analysis: Analysis) -> str | None:
    """The whole DeepSpeed configuration, indented JSON."""
    if analysis.manifest is None:
        return None
    return json.dumps(analysis.manifest.ds_config, indent=2, ensure_ascii=False, default=str)
