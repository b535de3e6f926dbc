"""What gathers cost a step, as the rules about them count it.

What a rank waits for is partly another rank that is late, and no knob of the gathers changes that. So a cost is that of
the rank with the least of it, the mean over its steps; cold steps are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from zerotrace.model import Analysis, Gain, GatherReport, GatherStep, HeldGather, Place


def warm_steps(report: GatherReport) -> list[GatherStep]:
    """The steps that figures are over."""
    return [step for step in report.steps if not step.cold]


def least(report: GatherReport, figure: Callable[[GatherStep], int | None]) -> float | None:
    """The smallest of the ranks' means over warm steps; ``None`` where a step does not know the figure."""
    of_rank: dict[int, list[int | None]] = {}
    for step in warm_steps(report):
        of_rank.setdefault(step.rank, []).append(figure(step))
    known = {rank: [value for value in values if value is not None] for rank, values in of_rank.items()}
    if not known or any(len(known[rank]) < len(values) for rank, values in of_rank.items()):
        return None
    return min(fmean(values) for values in known.values())


def mean(report: GatherReport, figure: Callable[[GatherStep], int]) -> float:
    """Mean over ranks and warm steps; 0 without any."""
    steps = warm_steps(report)
    return fmean(figure(step) for step in steps) if steps else 0.0


def fetched_blocking(step: GatherStep) -> int | None:
    """What demands and prefetches hold compute back."""
    return step.fetched.blocking_ns


def undilated(analysis: Analysis, cost: float, basis: str) -> Gain | None:
    """A gain of host time, which the profiler dilates; ``None`` where it is unknown how much."""
    dilation = analysis.verdict.dilation_ratio
    return None if dilation is None else Gain(step_ns=cost / max(1.0, dilation), basis=basis)


def worst_place(held: tuple[HeldGather, ...]) -> Place | None:
    """Where the gather lies that holds compute back longest."""
    if not held:
        return None
    worst = held[0]
    return Place(rank=worst.rank, step=worst.step, start_ns=worst.start_ns, end_ns=worst.end_ns)


def step_place(analysis: Analysis, rank: int, step: int) -> Place | None:
    """The window of a step."""
    window = next((w for w in analysis.windows if (w.rank, w.step) == (rank, step)), None)
    if window is None:
        return None
    return Place(rank=rank, step=step, start_ns=window.start_ns, end_ns=window.end_ns)
