"""Findings about the reduction of gradients: compute that waits behind it.

Costs are those of the rank that is held back least: what the others wait for is that rank, and not the reduction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from zerotrace.analysis.findings.gather_costs import step_place
from zerotrace.analysis.findings.torch_knobs import smaller_reductions, torch_engine
from zerotrace.model import Analysis, Finding, Gain, Place, ReductionStep
from zerotrace.units import format_ns

#: With so few buckets the last one comes when the backward pass is over, which is the finding of few_buckets.
FEW_BUCKETS = 2


def serial_reduction(analysis: Analysis) -> Iterator[Finding]:
    """Compute that waits behind the reduction of gradients. Cost, and gain at most: its blocking time."""
    held = _least_held(analysis)
    if held is None:
        return
    cost, steps = held
    overlap = _overlap(analysis)
    if overlap is not False and fmean(step.num_reductions for step in steps) <= FEW_BUCKETS:
        return
    if not cost:
        return
    sync = fmean(step.blocking_sync_ns or 0 for step in steps)
    how = "the host synchronises with it" if sync > cost / 2 else "kernels are launched, and held back by it"
    engine = torch_engine(analysis.manifest)
    if engine is not None:
        knob = smaller_reductions(engine, analysis.manifest)
    else:
        key = "overlap_comm: true" if overlap is False else "reduce_bucket_size"
        knob = f"{'' if overlap is False else 'smaller '}zero_optimization.{key}"
    yield Finding(
        code="reduction_serial",
        claim=f"Compute waits behind the reduction of gradients for {format_ns(cost)} a step: {how}.",
        evidence=f"That is the rank that waits least, {format_ns(sync)} of it with the host in a synchronising call; "
        f"the one that waits most is held back for {format_ns(_most(analysis))}, waiting for others included.",
        numbers={"blocking_ns": cost, "blocking_sync_ns": sync},
        cost_ns=cost,
        place=_place(analysis, steps),
        knob=knob,
        gain=Gain(step_ns=cost, basis="the time for which the reduction holds compute back"),
    )


def _by_rank(analysis: Analysis) -> dict[int, list[ReductionStep]]:
    found: dict[int, list[ReductionStep]] = {}
    for step in analysis.reductions:
        found.setdefault(step.rank, []).append(step)
    return found


def _held(steps: Sequence[ReductionStep]) -> float:
    return fmean(step.blocking_ns or 0 for step in steps)


def _least_held(analysis: Analysis) -> tuple[float, list[ReductionStep]] | None:
    """Blocking time a step, and the steps, of the rank that is held back least; ``None`` where it is unknown."""
    if not analysis.reductions or any(step.blocking_ns is None for step in analysis.reductions):
        return None
    steps = min(_by_rank(analysis).values(), key=_held)
    return _held(steps), steps


def _most(analysis: Analysis) -> float:
    return max(_held(steps) for steps in _by_rank(analysis).values())


def _overlap(analysis: Analysis) -> bool | None:
    """What the configuration says of ``overlap_comm``, which is on by default at stage 3 alone; ``None`` if unknown."""
    manifest = analysis.manifest
    if manifest is None or manifest.ds_config is None:
        return None
    section = manifest.ds_config.get("zero_optimization")
    stated = section.get("overlap_comm") if isinstance(section, dict) else None
    return stated if isinstance(stated, bool) else manifest.stage == 3


def _place(analysis: Analysis, steps: Sequence[ReductionStep]) -> Place | None:
    worst = max(steps, key=lambda step: step.blocking_ns or 0)
    return step_place(analysis, worst.rank, worst.step)


RULES = (serial_reduction,)
