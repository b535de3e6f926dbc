"""The figures that answer first: one rank's mean step, their spread over ranks, and the answer in words."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from statistics import fmean, median

from msgspec.structs import replace

from zerotrace.analysis.bounds import DeviceDoubt, bound_summary
from zerotrace.model import (
    Bound,
    FigureBounds,
    Mode,
    RankRecord,
    RankSummary,
    RunManifest,
    Spread,
    StepPartition,
    Verdict,
    WindowKind,
)
from zerotrace.units import format_ns, format_ratio


def summarise_rank(
    parts: Sequence[StepPartition],
    outside_steps_ns: int,
    left_out: Collection[int] = (),
    *,
    doubt: DeviceDoubt | None = None,
    clipped: bool = True,
) -> RankSummary | None:
    """One device's mean step over its known steps; ``None`` if no step is known.

    Args:
        parts: the partition of each step on one device of one rank.
        outside_steps_ns: device time that lies in no step window.
        left_out: steps that count only where there are no others.
        doubt: kernels of unknown class on the device; ``None`` where there are none.
        clipped: whether rows are given to steps by the clock.
    """
    known = [part for part in parts if part.known]
    known = [part for part in known if part.step not in left_out] or known
    if not known:
        return None
    comm = _total(known, lambda p: p.comm_ns)
    summary = RankSummary(
        rank=known[0].rank,
        device=known[0].device,
        num_steps=len(known),
        span_ns=_mean(known, lambda p: p.span_ns),
        compute_ns=_mean(known, lambda p: p.compute_ns),
        comm_ns=_mean(known, lambda p: p.comm_ns),
        overlapped_ns=_mean(known, lambda p: p.overlapped_ns),
        exposed_ns=_mean(known, lambda p: p.exposed_ns),
        copy_only_ns=_mean(known, lambda p: p.copy_only_ns),
        idle_ns=_mean_if_known(known, lambda p: p.idle_ns),
        overlap_ratio=_total(known, lambda p: p.overlapped_ns) / comm if comm else None,
        outside_steps_ns=outside_steps_ns,
        exposed_transfer_ns=_mean_if_known(known, lambda p: p.exposed_transfer_ns),
        exposed_wait_ns=_mean_if_known(known, lambda p: p.exposed_wait_ns),
        blocking_ns=_mean_if_known(known, lambda p: p.blocking_ns),
        host_bound_ns=_mean_if_known(known, lambda p: p.host_bound_ns),
    )
    steps = [part.step for part in known]
    if doubt is None or (clipped and not any(doubt.unclassified_ns.get(step) for step in steps)):
        return summary
    return replace(summary, bounds=bound_summary(summary, doubt, steps, clipped=clipped))


def judge(ranks: Sequence[RankSummary], mode: Mode, manifest: RunManifest | None) -> Verdict:
    """The verdict over all ranks.

    Args:
        ranks: mean steps, at least one.
        mode: whether the figures are device time or host time.
        manifest: gives the unprofiled step and the memory gauges; ``None`` if there is none.
    """
    unprofiled = slowest_step_ns(manifest.ranks, WindowKind.TIMED) if manifest else None
    profiled = slowest_step_ns(manifest.ranks, WindowKind.DETAILED) if manifest else None
    span = _spread(r.span_ns for r in ranks)
    return Verdict(
        unprofiled_step_ns=unprofiled,
        dilation_ratio=profiled / unprofiled if profiled and unprofiled else None,
        span_ns=span,
        compute_ns=_bounded(ranks, lambda r: r.compute_ns, lambda b: b.compute_ns),
        exposed_ns=_bounded(ranks, lambda r: r.exposed_ns, lambda b: b.exposed_ns),
        overlap_ratio=_bounded(ranks, lambda r: r.overlap_ratio, lambda b: b.overlap_ratio),
        copy_only_ns=_spread(r.copy_only_ns for r in ranks),
        idle_ns=_spread(r.idle_ns for r in ranks),
        peak_bytes=_spread(r.peak_bytes for r in manifest.ranks) if manifest else None,
        resident_bytes=_spread(r.resident_bytes for r in manifest.ranks) if manifest else None,
        exposed_transfer_ns=_spread(r.exposed_transfer_ns for r in ranks),
        exposed_wait_ns=_spread(r.exposed_wait_ns for r in ranks),
        blocking_ns=_spread(r.blocking_ns for r in ranks),
        host_bound_ns=_spread(r.host_bound_ns for r in ranks),
        headline=_headline(ranks, mode),
    )


def slowest_step_ns(ranks: Sequence[RankRecord], kind: WindowKind) -> float | None:
    """Median over a window's steps of the slowest rank's step time; ``None`` where the window has no step."""
    found = [w.step_ns for rank in ranks for w in rank.windows if w.kind is kind and w.step_ns]
    return float(median(max(step) for step in zip(*found))) if found else None


def _headline(ranks: Sequence[RankSummary], mode: Mode) -> str:
    """What takes the largest part of the step, and what faster communication could win of it."""
    worker = "devices" if mode is Mode.DEVICE else "host's threads"
    parts: dict[str, Callable[[RankSummary], float | None]] = {
        f"Host-bound: the {worker} wait for the host to launch work for": lambda r: r.host_bound_ns,
        f"The {worker} do nothing for": lambda r: (r.idle_ns or 0) - (r.host_bound_ns or 0),
        "Ranks wait for each other, with no compute meanwhile, for": lambda r: r.exposed_wait_ns,
        "Communication that no compute hides takes": lambda r: r.exposed_ns - (r.exposed_wait_ns or 0),
        "Compute fills": lambda r: r.compute_ns,
    }
    shares = {words: [(figure(r) or 0) / r.span_ns for r in ranks] for words, figure in parts.items()}
    words = max(shares, key=lambda words: fmean(shares[words]))
    low, high = (f"{100 * share(shares[words]):.0f}" for share in (min, max))
    percent = f"{low} %" if low == high else f"{low} to {high} %"
    return f"{words} {percent} of the profiled step. {_communication(ranks)}"


def _communication(ranks: Sequence[RankSummary]) -> str:
    if any(r.bounds is not None and r.bounds.unclassified_ns for r in ranks):
        return _bounded_communication(ranks)
    if not sum(r.comm_ns for r in ranks):
        return "There is no communication."
    worst = max(ranks, key=lambda r: r.exposed_ns)
    if worst.blocking_ns is not None:
        most = max(r.blocking_ns or 0 for r in ranks)
        return f"Communication holds compute back for {format_ns(most)} of {format_ns(worst.span_ns)} at most."
    hidden = sum(r.overlapped_ns for r in ranks) / sum(r.comm_ns for r in ranks)
    low = format_ns(min(r.exposed_ns for r in ranks))
    high = format_ns(worst.exposed_ns)
    exposed = low if low == high else f"{low} to {high}"
    return f"{format_ratio(hidden)} of the communication is hidden, {exposed} a step is exposed."


def _bounded_communication(ranks: Sequence[RankSummary]) -> str:
    low = min(r.exposed_ns if r.bounds is None else r.bounds.exposed_ns.low for r in ranks)
    high = max(r.exposed_ns if r.bounds is None else r.bounds.exposed_ns.high for r in ranks)
    return (
        f"Kernels that may be communication make bounds of it: between {format_ns(low)} and {format_ns(high)} a step "
        "are exposed."
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(min=min(known), median=median(known), max=max(known)) if known else None


def _bounded(
    ranks: Sequence[RankSummary],
    figure: Callable[[RankSummary], float | None],
    bound: Callable[[FigureBounds], Bound | None],
) -> Spread | None:
    """Least to most over ranks, and over what kernels of unknown class may be; the median is of the figures."""
    found = _spread(figure(r) for r in ranks)
    bounds = [b for r in ranks if r.bounds is not None and (b := bound(r.bounds)) is not None]
    if found is None or not bounds:
        return found
    return Spread(
        min=min(found.min, *(b.low for b in bounds)),
        median=found.median,
        max=max(found.max, *(b.high for b in bounds)),
    )


def _total(parts: Sequence[StepPartition], figure: Callable[[StepPartition], int | None]) -> int:
    return sum(figure(part) or 0 for part in parts)


def _mean(parts: Sequence[StepPartition], figure: Callable[[StepPartition], int | None]) -> float:
    return _total(parts, figure) / len(parts)


def _mean_if_known(parts: Sequence[StepPartition], figure: Callable[[StepPartition], int | None]) -> float | None:
    return None if any(figure(part) is None for part in parts) else _mean(parts, figure)
