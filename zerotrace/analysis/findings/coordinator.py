"""Findings about DeepSpeed's stage-3 coordinator: its host time, its refreshes, and the record it throws away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean

from zerotrace.analysis.findings.gather_costs import fetched_blocking, least, mean, step_place, undilated, warm_steps
from zerotrace.analysis.findings.torch_knobs import larger_gathers, torch_engine
from zerotrace.model import Analysis, Finding, Gain, GatherReport, GatherStep, Place
from zerotrace.units import format_bytes, format_ns, format_ratio

_ZERO = "zero_optimization"
_LEAF = "deepspeed.utils.set_z3_leaf_modules"
_WHO = "DeepSpeed's stage-3 coordinator"
_KNOB = f"{_ZERO}.stage3_module_granularity_threshold or {_LEAF}, which fetch whole blocks instead of single modules"

#: A coordinator that leaves the device idle for less than this part of the step does not bind it.
BOUND_RATIO = 0.1

#: So many refreshes are many, and of so few bytes each they are small.
MANY_REFRESHES = 50
SMALL_BYTES = 1 << 20


def coordinator_bound(analysis: Analysis) -> Iterator[Finding]:
    """A device that idles while the host is inside of the coordinator.

    Cost: host-bound idle time within fetches and releases. Gain at most: the same by the dilation of the profiler.
    """
    report = analysis.gathers
    cost = least(report, lambda step: step.coordinator_host_bound_ns) if report else None
    span = min((rank.span_ns for rank in analysis.ranks), default=0.0)
    if report is None or cost is None or cost < BOUND_RATIO * span:
        return
    engine = torch_engine(analysis.manifest)
    who = _WHO if engine is None else "What FSDP does around modules"
    host = mean(report, lambda step: step.coordinator_ns or 0)
    worst = max(warm_steps(report), key=lambda step: step.coordinator_host_bound_ns or 0)
    yield Finding(
        code="coordinator_bound",
        claim=f"{who} keeps the host from launching: for {format_ns(cost)} of the profiled step the devices idle while "
        "it fetches and releases parameters.",
        evidence=f"That is the least of any rank; it takes {format_ns(host)} of the host's time a step.",
        numbers={"coordinator_host_bound_ns": cost, "coordinator_ns": host},
        cost_ns=cost,
        place=step_place(analysis, worst.rank, worst.step),
        knob=f"{_KNOB}; or a larger micro-batch"
        if engine is None
        else f"a larger micro-batch; {larger_gathers(engine)}",
        gain=undilated(analysis, cost, "host-bound idle time in the coordinator, by the dilation of the profiler"),
    )


def tiny_refreshes(analysis: Analysis) -> Iterator[Finding]:
    """Many small all-gathers of persisted parameters after the optimizer step.

    Cost: from the submission of the first to the end of the last. Gain at most: the same by the profiler's dilation.
    """
    report = analysis.gathers
    cost = least(report, lambda step: step.refresh_ns) if report else None
    if report is None or not cost:
        return
    count, size = mean(report, lambda step: step.num_refresh), _bytes_of_refreshes(report)
    if count < MANY_REFRESHES or size is None or size / count > SMALL_BYTES:
        return
    yield Finding(
        code="tiny_refreshes",
        claim=f"After each optimizer step {count:.4g} all-gathers refresh the persisted parameters, "
        f"{format_bytes(size / count)} each: launches and latency, and hardly any data.",
        evidence=f"From the first to the last they take {format_ns(cost)} of the profiled step.",
        numbers={"num_refresh": count, "refresh_ns": cost, "refresh_bytes": size},
        cost_ns=cost,
        place=_longest_refresh(report),
        knob=f"{_ZERO}.stage3_param_persistence_threshold: 0, which gathers them with their layers instead",
        gain=undilated(analysis, cost, "the time of the refreshes, by the dilation of the profiler"),
    )


def cold_cache(analysis: Analysis) -> Iterator[Finding]:
    """Steps without prefetch, since DeepSpeed threw its order of modules away.

    Cost, and gain at most: what gathers hold compute back in a cold step beyond a warm one, by the part of the steps
    that are cold.
    """
    report = analysis.gathers
    if report is None or not report.cold_steps or torch_engine(analysis.manifest) is not None:
        return
    cold, warm = [step for step in report.steps if step.cold], warm_steps(report)
    of_cold, of_warm = (
        fmean(fetched_blocking(step) or 0 for step in steps) if steps else 0.0 for steps in (cold, warm)
    )
    cost = (of_cold - of_warm) * len(cold) / len(report.steps)
    if cost <= 0:
        return
    worst = max(cold, key=lambda step: fetched_blocking(step) or 0)
    ratios = {"cold": _hidden(cold), "warm": _hidden(warm)}
    count = len(report.cold_steps)
    yield Finding(
        code="prefetch_cache_cold",
        claim=f"{count} of the profiled steps {'runs' if count == 1 else 'run'} without prefetch, because DeepSpeed "
        "had to record the order of modules anew.",
        evidence=f"Gathers hold compute back for {format_ns(of_cold)} in a cold step and {format_ns(of_warm)} in a "
        f"warm one; compute hides {format_ratio(ratios['cold'])} of them in the one, {format_ratio(ratios['warm'])} in "
        "the other.",
        numbers={
            "cold_blocking_ns": of_cold,
            "warm_blocking_ns": of_warm,
            "num_cold_steps": count,
            **{f"{name}_hidden_ratio": ratio for name, ratio in ratios.items() if ratio is not None},
        },
        cost_ns=cost,
        place=step_place(analysis, worst.rank, worst.step),
        knob=f"the same modules in the same order in every step; {_LEAF} for those of which a step runs only some",
        gain=Gain(step_ns=cost, basis="blocking time of cold steps beyond that of warm ones"),
    )


def _hidden(steps: Sequence[GatherStep]) -> float | None:
    """Part of the gathers of some steps that compute hides; ``None`` without any."""
    total = sum(step.fetched.gather_ns for step in steps)
    return sum(step.fetched.hidden_ns for step in steps) / total if total else None


def _bytes_of_refreshes(report: GatherReport) -> float | None:
    """Bytes that a step refreshes, the mean; ``None`` where they are unknown."""
    pairs = [(step.totals.num_bytes, step.fetched.num_bytes) for step in warm_steps(report)]
    known = [whole - fetched for whole, fetched in pairs if whole is not None and fetched is not None]
    return fmean(known) if known and len(known) == len(pairs) else None


def _longest_refresh(report: GatherReport) -> Place | None:
    worst = max(warm_steps(report), key=lambda step: step.refresh_ns or 0)
    if worst.refresh_start_ns is None or worst.refresh_end_ns is None:
        return None
    return Place(rank=worst.rank, step=worst.step, start_ns=worst.refresh_start_ns, end_ns=worst.refresh_end_ns)


RULES = (coordinator_bound, tiny_refreshes, cold_cache)
