"""What stage 3's gathers come to, in sentences: for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import fmean

from zerotrace.model import GatherReport, GatherStep
from zerotrace.report.summary import format_percent
from zerotrace.units import format_count, format_ns


def gather_lead(report: GatherReport) -> str:
    """How many of which kind there are in a step, and how much of them compute hides."""
    warm = warm_steps(report)
    if report.total is None:
        return "Every step is cold: nothing was prefetched, and the figures say nothing of prefetch."
    kinds = (
        (_mean(warm, lambda step: step.num_prefetch), "prefetch", "prefetches"),
        (_mean(warm, lambda step: step.num_demand), "demand", "demands"),
        (_mean(warm, lambda step: step.num_refresh), "refresh", "refreshes"),
        (_mean(warm, lambda step: step.num_unknown), "gather of unknown kind", "gathers of unknown kind"),
    )
    counts = [_counted(count, one, many) for count, one, many in kinds if count]
    totals = report.total.totals
    text = f"A step of a rank has {', '.join(counts[:-1])}{' and ' if counts[1:] else ''}{counts[-1]}. "
    text += f"Compute hides {format_percent(totals.hidden_ratio)} of their time"
    if totals.hidden_transfer_ratio is not None:
        text += f", and {format_percent(totals.hidden_transfer_ratio)} of the transfer alone, waiting left out"
    return f"{text}."


def gather_remarks(report: GatherReport) -> Iterator[str]:
    """What else there is to know, one sentence each."""
    warm = warm_steps(report)
    late, held = (_mean_if_known(warm, figure) for figure in (lambda s: s.num_late, lambda s: s.totals.blocking_ns))
    if late is not None and held is not None and warm:
        lateness = _counted(late, "prefetch is late", "prefetches are late") if late else "No prefetch is late"
        yield f"{lateness}; gathers hold compute back for {format_ns(held)}."
    if report.num_persisted is not None:
        count = format_count(report.num_persisted)
        yield f"{count} small parameters are persisted: kept whole, and refreshed after each step."
    if (host := _mean_if_known(warm, lambda step: step.coordinator_ns)) is not None:
        text = f"DeepSpeed's coordinator takes {format_ns(host)} of the host's time a step"
        if (bound := _mean_if_known(warm, lambda step: step.coordinator_host_bound_ns)) is not None:
            text += f"; for {format_ns(bound)} of it the device is idle and waits for the host"
        yield f"{text}."
    if forced := _mean_if_known(warm, lambda step: step.num_forced_syncs):
        times, lost = _counted(forced, "time", "times"), _mean_if_known(warm, lambda step: step.forced_sync_ns)
        yield f"{times} a step it makes the host wait for a pending fetch, {format_ns(lost)} in all."
    yield from gather_cautions(report)


def gather_cautions(report: GatherReport) -> Iterator[str]:
    """What the figures are not over, and what they are not read from."""
    if report.cold_steps:
        steps = ", ".join(map(str, report.cold_steps))
        yield f"Cold, without any prefetch, and in none of these figures: step {steps}."
    if report.inferred_ratio:
        yield f"{_why_inferred(report)}: kind and phase are inferred from the order of the host's calls."


def _why_inferred(report: GatherReport) -> str:
    if report.num_unread_labels:
        unread = report.num_unread_labels
        return f"{format_count(unread)} label{' is' if unread == 1 else 's are'} malformed or of another version"
    if report.inferred_ratio < 1:
        return f"{format_percent(report.inferred_ratio)} of the gathers have no label"
    return "There are no labels"


def warm_steps(report: GatherReport) -> list[GatherStep]:
    """The steps that the figures are over."""
    return [step for step in report.steps if not step.cold]


def _counted(count: float, one: str, many: str) -> str:
    return f"{count:.4g} {one if count == 1 else many}"


def _mean(steps: Sequence[GatherStep], figure: Callable[[GatherStep], int]) -> float:
    return fmean(figure(step) for step in steps) if steps else 0.0


def _mean_if_known(steps: Sequence[GatherStep], figure: Callable[[GatherStep], int | None]) -> float | None:
    known = [value for step in steps if (value := figure(step)) is not None]
    return fmean(known) if known and len(known) == len(steps) else None


def module_name(name: str | None) -> str:
    """A module as the page calls it."""
    return "unknown" if name is None else name or "(root)"
