"""Whether a trace can be of the stage that it is said to be of: each stage has collectives of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from zerotrace.analysis.diagnostics import STAGE_CONTRADICTS
from zerotrace.analysis.labelled import LabelTotal
from zerotrace.analysis.wire.ledger import LedgerRequest, mean_traffic
from zerotrace.analysis.wire.settings import setting
from zerotrace.analysis.wire.traffic import RankTraffic
from zerotrace.labels import LabelEvent
from zerotrace.model import CollectiveKind, Diagnostic, Level, RunManifest, WireRole, WireTraffic

# Traffic below this part of the gradients is not what makes a stage.
_MINOR = 0.05

# What gathers the updated parameters gathers nearly all of them.
_MOST = 0.9

_Shown = tuple[frozenset[int], str]
"""Stages that could show this, and what it is in words."""

_ALL = frozenset(range(4))


def stage_contradiction(
    traffic: Sequence[RankTraffic],
    labels: Mapping[int, Sequence[LabelTotal]],
    steps: Collection[tuple[int, int]],
    request: LedgerRequest,
) -> Diagnostic | None:
    """What in the trace cannot be of the stage that is told.

    Stage 3 labels its gathers and scatters its gradients; stages 1 and 2 gather parameters after the last reduction;
    stage 0 gathers none. torch's engines show what the stage shows that shards the same. Where a configuration blurs
    that, nothing is said.

    Args:
        traffic: of each rank.
        labels: what each rank's labels count, by rank.
        steps: rank and step of all that was seen whole.
        request: what is told of the run.
    """
    manifest = request.manifest
    scheme = request.scheme
    if scheme is None or not steps:
        return None
    told = scheme.stage
    used = [total for rank, mine in labels.items() for total in mine if (rank, total.step) in {*steps}]
    found = (_by_traffic(mean_traffic(traffic, steps), manifest), _by_labels(used, len({*steps}), manifest))
    signs = [sign for sign in found if sign is not None]
    against = [(stages, evidence) for stages, evidence in signs if told not in stages]
    if not against:
        return None
    stages, evidence = against[0]
    # What the other signs exclude need not be named; unless they exclude all, as in a trace that is of no stage.
    stages = stages.intersection(*(others for others, _ in signs)) or stages
    name = scheme.name if request.engine is not None else f"stage {told}"
    from_manifest = manifest is not None and manifest.sharing is scheme
    return _says(name, stages, evidence, from_manifest=from_manifest)


def _says(told: str, stages: frozenset[int], evidence: str, *, from_manifest: bool) -> Diagnostic:
    source = "manifest.json says" if from_manifest else "--stage says"
    others = " or ".join(map(str, sorted(stages)))
    return Diagnostic(
        code=STAGE_CONTRADICTS,
        level=Level.WARNING,
        file="manifest.json" if from_manifest else None,
        message=f"{source} {told}, but the trace shows stage {others}: {evidence}; what depends on the stage, or "
        "on the configuration, is left out",
        hint="put the manifest of these traces beside them, or move it away and give --stage and --params"
        if from_manifest
        else f"give --stage {min(stages)}, or leave it out",
    )


def _by_labels(used: Sequence[LabelTotal], num_steps: int, manifest: RunManifest | None) -> _Shown | None:
    if not used:
        return None
    gathers = sum(total.count for total in used if total.event is LabelEvent.GATHER)
    if gathers:
        return frozenset(
            {3}
        ), f"{gathers / num_steps:.4g} parameter gathers, which only stage 3 and FSDP have, are labelled in a step"
    # A rank that is alone has all parameters, so that FSDP2 gathers none.
    if manifest is None or manifest.labels is None or manifest.labels.missing or manifest.world_size == 1:
        return None
    return _ALL - {3}, "it is labelled, and no parameter gather is among the labels"


def _by_traffic(traffic: Sequence[WireTraffic], manifest: RunManifest | None) -> _Shown | None:
    gradients = [t for t in traffic if t.role is WireRole.GRADIENTS]
    total = _elements(gradients)
    if not total:
        return None
    scattered = _elements([t for t in gradients if t.kind is CollectiveKind.REDUCE_SCATTER])
    if scattered > 0.5 * total:
        return frozenset({3}), f"gradients are reduced and scattered, {_millions(scattered)} elements a step"
    before, after = (
        _elements([t for t in traffic if t.role is role]) for role in (WireRole.PARAMETERS, WireRole.UPDATED)
    )
    reduced = _elements([t for t in gradients if t.kind in (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE)])
    if before > _MINOR * total or reduced <= 0.5 * total:
        return None
    config = manifest.ds_config if manifest is not None else None
    if after <= _MINOR * total:
        # A step that overflows in fp16 is skipped, and gathers nothing.
        skipped = frozenset({1, 2}) if _enabled(config, "fp16") else frozenset()
        evidence = f"{_millions(total)} elements of gradients are reduced a step, and no parameters gathered"
        return skipped | {0}, evidence
    whole = total if manifest is None else min(total, manifest.model.num_params)
    if after < _MOST * whole:
        return None
    accumulation = setting(config, "data_types.grad_accum_dtype")
    scatters = setting(config, "zero_optimization.reduce_scatter")
    stages = {1, 2}
    if accumulation is not None and not accumulation.is_default:
        stages.add(0)  # the optimizer of bf16 with fp32 accumulation shards its states at stage 0, too
    if scatters is not None and not scatters.value:
        stages.add(3)
    gathered = f"{_millions(after)} elements of parameters gathered after them"
    return frozenset(stages), f"gradients are reduced whole, {_millions(total)} elements a step, and {gathered}"


def _enabled(config: Mapping[str, object] | None, name: str) -> bool:
    section = (config or {}).get(name)
    return isinstance(section, Mapping) and bool(section.get("enabled"))


def _elements(traffic: Sequence[WireTraffic]) -> float:
    return sum(t.elements or 0.0 for t in traffic)


def _millions(elements: float) -> str:
    return f"{elements / 1e6:,.2f} M"
