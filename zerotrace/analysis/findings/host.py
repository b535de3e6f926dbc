"""Findings about the host: devices that wait for it to launch work."""

from __future__ import annotations

from collections.abc import Iterator

from zerotrace.analysis.findings.torch_knobs import torch_engine
from zerotrace.model import Analysis, Finding, Gain, Mode, Place, RankSummary, StepPartition
from zerotrace.units import format_ns

#: A device that waits for its host for less than this part of a step is not bound by it.
BOUND_RATIO = 0.2

_KNOB = "larger micro-batch, fused or compiled kernels"


def host_bound(analysis: Analysis) -> Iterator[Finding]:
    """Devices idle because the next kernel has not been launched yet.

    Cost: idle time of the cause host_bound, mean step of the rank with the most. Gain at most: what is left of it
    once the profiler's own share is taken off, ``unprofiled step − (profiled step − host_bound)``.
    """
    if analysis.mode is not Mode.DEVICE:
        return
    known = [rank for rank in analysis.ranks if rank.host_bound_ns is not None]
    worst = max(known, key=lambda rank: rank.host_bound_ns or 0.0, default=None)
    if worst is None or not worst.host_bound_ns or worst.host_bound_ns < BOUND_RATIO * worst.span_ns:
        return
    share = worst.host_bound_ns / worst.span_ns
    yield Finding(
        code="host_bound",
        claim=f"The devices wait for the host: for {100 * share:.0f} % of the profiled step rank {worst.rank} is idle, "
        "since the next kernel is not launched yet.",
        evidence=f"{format_ns(worst.host_bound_ns)} of {format_ns(worst.span_ns)} are idle and host-bound on rank "
        f"{worst.rank}, {format_ns(min(rank.host_bound_ns or 0.0 for rank in known))} on the least bound rank; compute "
        f"takes {format_ns(worst.compute_ns)}.",
        numbers={"host_bound_ns": worst.host_bound_ns, "span_ns": worst.span_ns, "compute_ns": worst.compute_ns},
        cost_ns=worst.host_bound_ns,
        place=_worst_step(analysis, worst),
        knob=_KNOB if torch_engine(analysis.manifest) else f"{_KNOB}, or a lower stage: its hooks launch less",
        gain=_gain(analysis, worst),
    )


def _gain(analysis: Analysis, worst: RankSummary) -> Gain | None:
    unprofiled = analysis.verdict.unprofiled_step_ns
    if unprofiled is None or worst.host_bound_ns is None:
        return None
    left = max(0.0, unprofiled - (worst.span_ns - worst.host_bound_ns))
    return Gain(
        step_ns=left,
        basis="the unprofiled step, less everything in the profiled step that is not host-bound idle time",
    )


def _worst_step(analysis: Analysis, worst: RankSummary) -> Place | None:
    def bound(part: StepPartition) -> int:
        return part.host_bound_ns or 0

    mine = [
        part for part in analysis.partition if (part.rank, part.device) == (worst.rank, worst.device) and part.known
    ]
    part = max(mine, key=bound, default=None)
    if part is None:
        return None
    return Place(rank=part.rank, step=part.step, start_ns=part.start_ns, end_ns=part.start_ns + part.span_ns)


RULES = (host_bound,)
