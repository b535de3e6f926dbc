"""Figures that follow from others: what the page shows of differences, shares and means, so that it works out none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, median

from msgspec.structs import replace

from zerotrace.analysis.memory.reconcile import explained_bytes
from zerotrace.model import (
    Analysis,
    GatherGroup,
    GatherMeans,
    GatherReport,
    GatherStep,
    HtaOverlap,
    HtaReport,
    KernelTime,
    LateGroup,
    Lateness,
    MemoryReport,
    OwnTime,
    RankSummary,
    Reconciliation,
    RunTotals,
    Spread,
    StepPartition,
    Stragglers,
    Verdict,
)


def with_derived(analysis: Analysis, num_rows: int | None = None) -> Analysis:
    """The analysis with every figure that follows from those it has.

    That of an older version gains the figures that it was stored without, but for the number of rows.

    Args:
        analysis: each figure is read from a trace, or follows from such.
        num_rows: rows of device time, of host time in host mode; as they are by default.
    """
    if num_rows is None and analysis.totals is not None:
        num_rows = analysis.totals.num_rows
    return replace(
        analysis,
        totals=RunTotals(
            num_ranks=len({source.rank for source in analysis.sources}),
            num_events=sum(source.num_events for source in analysis.sources),
            num_rows=num_rows,
        ),
        partition=tuple(map(_with_ratio, analysis.partition)),
        ranks=tuple(replace(rank, other_idle_ns=_less(rank.idle_ns, rank.host_bound_ns)) for rank in analysis.ranks),
        verdict=_with_shares(analysis.verdict, analysis.ranks),
        top_kernels=_with_shares_of_list(analysis.top_kernels),
        gathers=analysis.gathers and _with_means(analysis.gathers),
        stragglers=analysis.stragglers and _with_more(analysis.stragglers),
        hta=analysis.hta and _with_differences(analysis.hta),
        memory=analysis.memory and _with_gaps(analysis.memory),
    )


def _less(whole: float | None, part: float | None) -> float | None:
    """``whole − part``; all of it where the part is unknown."""
    return None if whole is None else whole - (part or 0)


def _with_ratio(part: StepPartition) -> StepPartition:
    known = part.comm_ns and part.overlapped_ns is not None
    return replace(
        part,
        other_idle_ns=None if part.idle_ns is None else part.idle_ns - (part.host_bound_ns or 0),
        overlap_ratio=(part.overlapped_ns or 0) / part.comm_ns if known and part.comm_ns else None,
    )


def _with_shares(verdict: Verdict, ranks: Sequence[RankSummary]) -> Verdict:
    def share(figure: Callable[[RankSummary], float | None]) -> Spread | None:
        pairs = ((figure(rank), rank.span_ns) for rank in ranks)
        return _spread(time / span for time, span in pairs if time is not None and span)

    return replace(
        verdict,
        compute_ratio=share(lambda rank: rank.compute_ns),
        exposed_ratio=share(lambda rank: rank.exposed_ns),
        idle_ratio=share(lambda rank: rank.idle_ns),
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(min=min(known), median=median(known), max=max(known)) if known else None


def _with_shares_of_list(kernels: Sequence[KernelTime]) -> tuple[KernelTime, ...]:
    listed: dict[int, int] = {}
    for kernel in kernels:
        listed[kernel.rank] = listed.get(kernel.rank, 0) + kernel.total_ns
    return tuple(
        replace(kernel, ratio=kernel.total_ns / listed[kernel.rank] if listed[kernel.rank] else None)
        for kernel in kernels
    )


def _with_means(report: GatherReport) -> GatherReport:
    warm = [step for step in report.steps if not step.cold]

    def of_steps(groups: Sequence[GatherGroup]) -> tuple[GatherGroup, ...]:
        return tuple(
            replace(group, step_gather_ns=group.totals.gather_ns / len(warm) if warm else None) for group in groups
        )

    return replace(
        report,
        hidden_ratio=_spread(group.totals.hidden_ratio for group in report.ranks),
        hidden_transfer_ratio=_spread(group.totals.hidden_transfer_ratio for group in report.ranks),
        means=_means(warm) if warm else None,
        modules=of_steps(report.modules),
        slack=tuple(
            replace(bin_, num_gathers=bin_.num_demand + bin_.num_prefetch + bin_.num_unknown) for bin_ in report.slack
        ),
    )


def _means(steps: Sequence[GatherStep]) -> GatherMeans:
    def mean(figure: Callable[[GatherStep], int | None]) -> float | None:
        known = [value for step in steps if (value := figure(step)) is not None]
        return fmean(known) if len(known) == len(steps) else None

    return GatherMeans(
        num_prefetch=fmean(step.num_prefetch for step in steps),
        num_demand=fmean(step.num_demand for step in steps),
        num_refresh=fmean(step.num_refresh for step in steps),
        num_unknown=fmean(step.num_unknown for step in steps),
        num_late=mean(lambda step: step.num_late),
        blocking_ns=mean(lambda step: step.totals.blocking_ns),
        coordinator_ns=mean(lambda step: step.coordinator_ns),
        coordinator_host_bound_ns=mean(lambda step: step.coordinator_host_bound_ns),
        num_forced_syncs=mean(lambda step: step.num_forced_syncs),
        forced_sync_ns=mean(lambda step: step.forced_sync_ns),
    )


def _with_more(stragglers: Stragglers) -> Stragglers:
    group = stragglers.group
    return replace(
        stragglers,
        ranks=tuple(replace(one, more=_more(one)) for one in stragglers.ranks),
        group=None if group is None else replace(group, more=_more(group)),
    )


def _more(lateness: Lateness | LateGroup) -> OwnTime:
    own, before = lateness.own, lateness.before
    bound = None
    if own.host_bound_ns is not None and before.host_bound_ns is not None:
        bound = own.host_bound_ns - before.host_bound_ns
    return OwnTime(
        total_ns=own.total_ns - before.total_ns,
        compute_ns=own.compute_ns - before.compute_ns,
        copy_ns=own.copy_ns - before.copy_ns,
        comm_ns=own.comm_ns - before.comm_ns,
        host_bound_ns=bound,
        rest_ns=own.rest_ns - before.rest_ns,
    )


def _with_differences(hta: HtaReport) -> HtaReport:
    return replace(hta, overlap=tuple(map(_with_difference, hta.overlap)))


def _with_difference(one: HtaOverlap) -> HtaOverlap:
    overlap = None
    if one.hta_overlap_percent is not None and one.our_overlap_percent is not None:
        overlap = one.hta_overlap_percent - one.our_overlap_percent
    return replace(
        one,
        overlap_difference_percent=overlap,
        compute_difference_ns=one.hta_compute_ns - one.our_compute_ns,
        non_compute_difference_ns=one.hta_non_compute_ns - one.our_non_compute_ns,
        idle_difference_ns=one.hta_idle_ns - one.our_idle_ns,
        total_difference_ns=one.hta_total_ns - one.our_total_ns,
    )


def _with_gaps(memory: MemoryReport) -> MemoryReport:
    return replace(
        memory,
        resident=memory.resident and _with_gap(memory.resident),
        peak=memory.peak and _with_gap(memory.peak),
    )


def _with_gap(found: Reconciliation) -> Reconciliation:
    return replace(
        found,
        gap_bytes=found.measured_bytes - found.deepspeed_bytes,
        owners=tuple(
            replace(gap, explained_bytes=explained_bytes(gap.gap_bytes, gap.unexplained_bytes)) for gap in found.owners
        ),
    )
