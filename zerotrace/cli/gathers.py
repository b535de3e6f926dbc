"""Stage 3's gathers in a few lines of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean

from zerotrace.model import Analysis, GatherReport, GatherStep
from zerotrace.units import format_ns, format_ratio


def gather_lines(analysis: Analysis) -> list[str]:
    """What prefetch hides, what the coordinator costs, and which steps are cold; nothing below stage 3."""
    report = analysis.gathers
    if report is None:
        return []
    warm = [step for step in report.steps if not step.cold]
    return [*_hidden(report, warm), *_coordinator(warm), *_cold(report)]


def _hidden(report: GatherReport, warm: Sequence[GatherStep]) -> list[str]:
    if report.total is None:
        return []
    kinds = (
        (_mean(warm, lambda step: step.num_prefetch), "prefetch", "prefetches"),
        (_mean(warm, lambda step: step.num_demand), "demand", "demands"),
        (_mean(warm, lambda step: step.num_refresh), "refresh", "refreshes"),
        (_mean(warm, lambda step: step.num_unknown), "of unknown kind", "of unknown kind"),
    )
    counts = ", ".join(_counted(count, *words) for count, *words in kinds if count)
    totals = report.total.totals
    line = f"Gathers a step: {counts}; compute hides {format_ratio(totals.hidden_ratio)} of their time"
    if totals.hidden_transfer_ratio is not None:
        line += f", {format_ratio(totals.hidden_transfer_ratio)} of their transfer"
    if report.total.num_late and totals.blocking_ns is not None and warm:
        late = _counted(_mean(warm, lambda step: step.num_late) or 0, "prefetch is late", "prefetches are late")
        line += f"; {late}, and gathers hold compute back {format_ns(totals.blocking_ns / len(warm))}"
    if report.inferred_ratio:
        line += "; without labels, kinds and phases are inferred from the order of the host's calls"
    return [f"{line}."]


def _coordinator(warm: Sequence[GatherStep]) -> list[str]:
    host = _mean(warm, lambda step: step.coordinator_ns)
    if host is None:
        return []
    line = f"DeepSpeed's coordinator takes {format_ns(host)} of the host's time a step"
    if (bound := _mean(warm, lambda step: step.coordinator_host_bound_ns)) is not None:
        line += f"; for {format_ns(bound)} of it the device is idle and waits for the host"
    if forced := _mean(warm, lambda step: step.num_forced_syncs):
        line += f"; {_counted(forced, 'time', 'times')} it makes the host wait for a pending fetch"
    return [f"{line}."]


def _cold(report: GatherReport) -> list[str]:
    if not report.cold_steps:
        return []
    steps = ", ".join(map(str, report.cold_steps))
    return [f"Cold, without any prefetch, and in none of these figures: step {steps}."]


def _counted(count: float, one: str, many: str) -> str:
    return f"{count:.4g} {one if count == 1 else many}"


def _mean(steps: Sequence[GatherStep], figure: Callable[[GatherStep], int | None]) -> float | None:
    known = [value for step in steps if (value := figure(step)) is not None]
    return fmean(known) if known and len(known) == len(steps) else None
