"""The figures that answer first: one rank's mean step, their spread over ranks, and the answer in words."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

from zerotrace.model import Mode, RankRecord, RankSummary, RunManifest, Spread, StepPartition, Verdict, WindowKind
from zerotrace.units import format_ns, format_ratio


def summarise_rank(parts: Sequence[StepPartition], outside_steps_ns: int) -> RankSummary | None:
    """One device's mean step over its known steps; ``None`` if no step is known.

    Args:
        parts: the partition of each step on one device of one rank.
        outside_steps_ns: device time that lies in no step window.
    """
    known = [part for part in parts if part.known]
    if not known:
        return None
    comm = _total(known, lambda p: p.comm_ns)
    return RankSummary(
        rank=known[0].rank,
        device=known[0].device,
        num_steps=len(known),
        span_ns=_mean(known, lambda p: p.span_ns),
        compute_ns=_mean(known, lambda p: p.compute_ns),
        comm_ns=_mean(known, lambda p: p.comm_ns),
        overlapped_ns=_mean(known, lambda p: p.overlapped_ns),
        exposed_ns=_mean(known, lambda p: p.exposed_ns),
        copy_only_ns=_mean(known, lambda p: p.copy_only_ns),
        idle_ns=_mean(known, lambda p: p.idle_ns) if known[0].idle_ns is not None else None,
        overlap_ratio=_total(known, lambda p: p.overlapped_ns) / comm if comm else None,
        outside_steps_ns=outside_steps_ns,
    )


def judge(ranks: Sequence[RankSummary], mode: Mode, manifest: RunManifest | None) -> Verdict:
    """The verdict over all ranks.

    Args:
        ranks: mean steps, at least one.
        mode: whether the figures are device time or host time.
        manifest: gives the unprofiled step and the memory gauges; ``None`` if there is none.
    """
    unprofiled = unprofiled_step_ns(manifest.ranks) if manifest else None
    span = _spread(r.span_ns for r in ranks)
    return Verdict(
        unprofiled_step_ns=unprofiled,
        dilation_ratio=span.median / unprofiled if span and unprofiled else None,
        span_ns=span,
        compute_ns=_spread(r.compute_ns for r in ranks),
        exposed_ns=_spread(r.exposed_ns for r in ranks),
        overlap_ratio=_spread(r.overlap_ratio for r in ranks),
        copy_only_ns=_spread(r.copy_only_ns for r in ranks),
        idle_ns=_spread(r.idle_ns for r in ranks),
        peak_bytes=_spread(r.peak_bytes for r in manifest.ranks) if manifest else None,
        resident_bytes=_spread(r.resident_bytes for r in manifest.ranks) if manifest else None,
        headline=_headline(ranks, mode),
    )


def unprofiled_step_ns(ranks: Sequence[RankRecord]) -> float | None:
    """Median over the timed steps of the slowest rank's step time; ``None`` without a timed window."""
    timed = [w.step_ns for rank in ranks for w in rank.windows if w.kind is WindowKind.TIMED and w.step_ns]
    return float(median(max(step) for step in zip(*timed))) if timed else None


def _headline(ranks: Sequence[RankSummary], mode: Mode) -> str:
    worker = "devices" if mode is Mode.DEVICE else "host's threads"
    share = {
        "idle": fmean((r.idle_ns or 0) / r.span_ns for r in ranks),
        "exposed": fmean(r.exposed_ns / r.span_ns for r in ranks),
        "compute": fmean(r.compute_ns / r.span_ns for r in ranks),
    }
    first = {
        "idle": f"The {worker} do nothing for {format_ratio(share['idle'])} of the step.",
        "exposed": f"Communication that no compute hides takes {format_ratio(share['exposed'])} of the step.",
        "compute": f"Compute fills {format_ratio(share['compute'])} of the step.",
    }[max(share, key=lambda name: share[name])]
    return f"{first} {_communication(ranks)}"


def _communication(ranks: Sequence[RankSummary]) -> str:
    comm = sum(r.comm_ns for r in ranks)
    if not comm:
        return "There is no communication."
    hidden = sum(r.overlapped_ns for r in ranks) / comm
    low, high = min(r.exposed_ns for r in ranks), max(r.exposed_ns for r in ranks)
    exposed = format_ns(low) if format_ns(low) == format_ns(high) else f"{format_ns(low)} to {format_ns(high)}"
    return f"{format_ratio(hidden)} of the communication is hidden, {exposed} a step is exposed."


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(min=min(known), median=median(known), max=max(known)) if known else None


def _total(parts: Sequence[StepPartition], figure: Callable[[StepPartition], int | None]) -> int:
    return sum(figure(part) or 0 for part in parts)


def _mean(parts: Sequence[StepPartition], figure: Callable[[StepPartition], int | None]) -> float:
    return _total(parts, figure) / len(parts)
