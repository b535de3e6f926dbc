"""Findings about stage 3's gathers: what prefetch does not hide, and which knob moves it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

from zerotrace.analysis.findings.gather_costs import fetched_blocking, least, mean, warm_steps, worst_place
from zerotrace.analysis.findings.torch_knobs import (
    earlier_gathers,
    larger_gathers,
    smaller_gathers,
    torch_engine,
)
from zerotrace.analysis.gathers.config import zero_config
from zerotrace.model import Analysis, Finding, Gain
from zerotrace.units import format_bytes, format_count, format_ns

_ZERO = "zero_optimization"
_BUCKET = f"{_ZERO}.stage3_prefetch_bucket_size"

#: Gathers that take this much longer than at the rate of the large ones are too small for the link.
SLOW_RATIO = 1.5

#: In so few submissions, compute has nothing to run beside the first, and prefetch nothing left to do after it.
FEW_GATHERS = 3

#: Of gathers that overlap, at least this part is hidden.
HIDDEN_RATIO = 0.5


def demands(analysis: Analysis) -> Iterator[Finding]:
    """Parameters that are asked for when their module is about to run. Cost, and gain at most: their blocking time."""
    report = analysis.gathers
    asking = [group for group in report.modules if group.num_demand] if report else []
    cost = least(report, lambda step: step.demand_blocking_ns) if report else None
    if report is None or cost is None or not asking:
        return
    worst = max(asking, key=lambda group: group.totals.blocking_ns or 0)
    count, prefetches = mean(report, lambda step: step.num_demand), mean(report, lambda step: step.num_prefetch)
    named = "of unknown modules" if worst.module is None else f"most of all {worst.module or 'the root module'}"
    yield Finding(
        code="demand_fetches",
        claim=f"{count:.4g} parameter gather{' a step is a demand' if count == 1 else 's a step are demands'}, "
        f"{named}: compute waits for them as they come.",
        evidence=f"Demands hold compute back for {format_ns(cost)} a step on the rank that waits least; "
        f"{prefetches:.4g} gathers a step are prefetches.",
        numbers={"demand_blocking_ns": cost, "num_demand": count, "num_prefetch": prefetches},
        cost_ns=cost,
        place=worst_place(report.missed),
        knob=_demand_knob(analysis),
        gain=Gain(step_ns=cost, basis="the time for which demands hold compute back"),
    )


def small_prefetch_bucket(analysis: Analysis) -> Iterator[Finding]:
    """A bucket that does not hold the next layer. Cost, and gain at most: blocking time of prefetches and demands."""
    report, config, layer = analysis.gathers, zero_config(analysis.manifest), _layer_elements(analysis)
    bucket = config.prefetch_bucket_size if config else None
    cost = least(report, fetched_blocking) if report else None
    if report is None or layer is None or not bucket or not cost or bucket >= layer:
        return
    yield Finding(
        code="prefetch_bucket_small",
        claim=f"The prefetch bucket holds {format_count(bucket)} elements, less than one layer "
        f"({format_count(layer)}): the next layer is never wholly on its way.",
        evidence=f"Gathers hold compute back for {format_ns(cost)} a step on the rank that waits least.",
        numbers={"bucket_elements": bucket, "layer_elements": layer, "blocking_ns": cost},
        cost_ns=cost,
        place=worst_place(report.late or report.missed),
        knob=f"{_BUCKET}: {layer} or more",
        gain=Gain(step_ns=cost, basis="the time for which gathers hold compute back"),
    )


def small_gathers(analysis: Analysis) -> Iterator[Finding]:
    """Gathers far below the rate of the large ones. Cost: what they would save at that rate, a step and rank.

    ``Σ transfer − Σ bytes / rate``, the rate being that of the largest, which carry half of the bytes. Gain at most: no
    more of it than holds compute back.
    """
    report = analysis.gathers
    link = report.link if report else None
    held = least(report, fetched_blocking) if report else None
    if report is None or link is None or held is None or link.transfer_ns < SLOW_RATIO * link.at_best_ns:
        return
    cost = (link.transfer_ns - link.at_best_ns) / len(warm_steps(report))
    rate = 100 * link.at_best_ns / link.transfer_ns
    yield Finding(
        code="gathers_small",
        claim=f"Gathers are too small for the link: half of them carry {format_bytes(link.median_bytes)} or less, and "
        f"together they run at {rate:.0f} % of the rate of the large ones.",
        evidence=f"At the {format_bytes(link.best_bytes_per_s)}/s of the large ones their transfer would take "
        f"{format_ns(cost)} less a step; gathers hold compute back for {format_ns(held)}.",
        numbers={"transfer_ns": link.transfer_ns, "at_best_ns": link.at_best_ns, "blocking_ns": held},
        cost_ns=cost,
        place=worst_place(report.late or report.missed),
        knob=larger_gathers(engine)
        if (engine := torch_engine(analysis.manifest))
        else f"larger {_BUCKET}: fewer and larger gathers",
        gain=Gain(step_ns=min(cost, held), basis="what the rate of large gathers saves, if compute waits for it"),
    )


def large_prefetch_bucket(analysis: Analysis) -> Iterator[Finding]:
    """All parameters in a few gathers, which nothing can overlap. Cost, and gain at most: their blocking time."""
    report = analysis.gathers
    cost = least(report, lambda step: step.prefetch_blocking_ns) if report else None
    if report is None or not cost:
        return
    count = mean(report, lambda step: step.num_prefetch + step.num_demand)
    ratio = fmean(step.fetched.hidden_ratio or 0.0 for step in warm_steps(report))
    if count > FEW_GATHERS or ratio > HIDDEN_RATIO:
        return
    size = mean(report, lambda step: step.fetched.num_bytes or 0) / max(count, 1)
    yield Finding(
        code="prefetch_bucket_large",
        claim=f"Each step gathers its parameters in {count:.2g} piece{'' if count == 1 else 's'} of "
        f"{format_bytes(size)}: compute cannot start "
        "before the first is there, and then there is little left to hide.",
        evidence=f"Compute hides {100 * ratio:.0f} % of them; they hold it back for {format_ns(cost)} a step on the "
        "rank that waits least.",
        numbers={"num_gathers": count, "prefetch_blocking_ns": cost, "hidden_ratio": ratio},
        cost_ns=cost,
        place=worst_place(report.late),
        knob=smaller_gathers(engine)
        if (engine := torch_engine(analysis.manifest))
        else f"smaller {_BUCKET}: some two layers",
        gain=Gain(step_ns=cost, basis="the time for which prefetches hold compute back"),
    )


def _demand_knob(analysis: Analysis) -> str:
    engine = torch_engine(analysis.manifest)
    if engine is not None:
        return earlier_gathers(engine)
    config = zero_config(analysis.manifest)
    if config is not None and config.prefetch_bucket_size == 0:
        return f"{_BUCKET}: 50000000 with overlap_comm: true; prefetch is switched off"
    if config is not None and config.max_live_parameters is not None and config.max_live_parameters < config.num_params:
        return f"larger {_ZERO}.stage3_max_live_parameters, which leaves prefetch no room, or larger {_BUCKET}"
    return f"larger {_BUCKET}"


def _layer_elements(analysis: Analysis) -> int | None:
    """Elements of one decoder layer; ``None`` where the manifest does not know the shape of the model."""
    shape = analysis.manifest.model if analysis.manifest else None
    if shape is None or shape.hidden_size is None:
        return None
    return 12 * shape.hidden_size**2 + 13 * shape.hidden_size


RULES = (demands, small_prefetch_bucket, small_gathers, large_prefetch_bucket)
