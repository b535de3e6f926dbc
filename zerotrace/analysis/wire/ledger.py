"""The ledger of a run: its mean step's traffic, what theory says of its stage, and the gap by cause."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.bandwidth import ELEMENT_BYTES
from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.labelled import LabelTotal
from zerotrace.analysis.wire.causes import find_causes
from zerotrace.analysis.wire.facts import Facts, LabelMeans, label_means
from zerotrace.analysis.wire.traffic import KINDS, ROLES, RankTraffic
from zerotrace.model import (
    STAGES,
    STEP_ALL,
    CollectiveKind,
    Origin,
    RunManifest,
    Scheme,
    WireLedger,
    WireRole,
    WireTraffic,
)

_MODEL_STATES = (WireRole.GRADIENTS, WireRole.PARAMETERS, WireRole.UPDATED)

# Traffic below this part of the gradients is not what makes a stage.
_MINOR = 0.05


class LedgerRequest(Struct, frozen=True, kw_only=True):
    """What is known of a run beside its traffic."""

    manifest: RunManifest | None = None
    stage: int | None = None
    """The stage, where there is no manifest to say it."""
    num_params: int | None = None
    """Ψ, likewise."""
    contradiction: str | None = None
    """Why what is told of the stage cannot be, where the trace shows another one."""

    @property
    def believed(self) -> LedgerRequest:
        """What is left where the trace contradicts it: nothing."""
        return self if self.contradiction is None else LedgerRequest(contradiction=self.contradiction)

    @property
    def scheme(self) -> Scheme | None:
        """What the manifest says that its ranks share, else the option; ``None`` where nothing has to be sent, too."""
        found = self.manifest.sharing if self.manifest is not None else None
        if found is None and self.stage is not None:
            found = STAGES[self.stage]
        return found if found is not None and found.wire_ratio is not None else None

    @property
    def engine(self) -> str | None:
        """Which of torch's engines trained; ``None`` for DeepSpeed, and where that is unknown."""
        if self.manifest is None or self.manifest.stage is not None or self.scheme is None:
            return None
        return self.manifest.engine


def wire_ledger(
    traffic: Sequence[RankTraffic],
    labels: Mapping[int, Sequence[LabelTotal]],
    steps: Collection[tuple[int, int]],
    request: LedgerRequest,
) -> WireLedger | None:
    """Bytes sent a rank and step, beside theory.

    Args:
        traffic: of each rank.
        labels: what each rank's labels count, by rank.
        steps: rank and step of all that was seen whole; means are over these.
        request: what is known beside.

    Returns:
        The ledger; ``None`` where no step was seen.
    """
    if not steps:
        return None
    mean = mean_traffic(traffic, steps)
    told = label_means(labels, steps)
    group_size = _group_size(mean, request)
    stages, stage_origin = _stages(mean, request) if request.contradiction is None else ((), None)
    num_params, params_origin = _params(mean, told, stages, request)
    scheme = request.scheme if request.contradiction is None else None
    theory = scheme.wire_ratio if scheme is not None else STAGES[stages[0]].wire_ratio if stages else None
    silent = next((t.reason for t in mean if t.sent_bytes is None), None)
    sent = None if silent else sum(t.sent_bytes or 0.0 for t in mean)
    ledger = WireLedger(
        num_steps=len({step for _, step in steps}),
        group_size=group_size,
        stages=stages,
        stage_origin=stage_origin,
        scheme=scheme.name if scheme is not None and request.engine is not None else None,
        sizes_by_label=any(part.by_label for part in traffic),
        num_params=num_params,
        params_origin=params_origin,
        micro_steps=told.micro_steps,
        traffic=mean,
        sent_bytes=sent,
        theory_bytes=None,
        ratio=None,
        theory_ratio=theory,
    )
    reason = request.contradiction or silent or _why_no_ratio(ledger, steps)
    return replace(ledger, reason=reason) if reason else _with_gap(ledger, told, request)


def mean_traffic(traffic: Sequence[RankTraffic], steps: Collection[tuple[int, int]]) -> tuple[WireTraffic, ...]:
    """The traffic of the mean step and rank, by role, kind, phase, element type and group size.

    Args:
        traffic: of each rank.
        steps: rank and step of what is averaged.
    """
    entries: dict[tuple[int, int, str, str, int], list[tuple[int, int, int, float]]] = {}
    pairs = {*steps}
    for part in traffic:
        phases, types = _texts(part.phase.codes, part.phase.distinct), _texts(part.dtype.codes, part.dtype.distinct)
        keys = zip(part.role.tolist(), part.kind.tolist(), phases, types, part.group_size.tolist())
        figures = zip(part.num_calls.tolist(), part.elements.tolist(), part.size.tolist(), part.sent.tolist())
        for rank, step, key, figure in zip(part.rank.tolist(), part.step.tolist(), keys, figures):
            if (rank, step) in pairs:
                entries.setdefault(key, []).append(figure)
    return tuple(_mean(key, entries[key], len(pairs)) for key in sorted(entries))


def _mean(
    key: tuple[int, int, str, str, int], figures: Sequence[tuple[int, int, int, float]], count: int
) -> WireTraffic:
    role, kind, phase, dtype, group_size = key
    calls, elements, sizes, sent = zip(*figures)
    known = not np.isnan(sent).any()
    return WireTraffic(
        kind=KINDS[kind],
        role=ROLES[role],
        phase=phase or None,
        dtype=dtype or None,
        group_size=None if group_size == ABSENT else group_size,
        num_calls=sum(calls) / count,
        elements=None if ABSENT in elements else sum(elements) / count,
        size_bytes=None if ABSENT in sizes else sum(sizes) / count,
        sent_bytes=sum(sent) / count if known else None,
        reason=None if known else _why_unknown(KINDS[kind], dtype, group_size, ABSENT in elements),
    )


def _why_unknown(kind: CollectiveKind, dtype: str, group_size: int, elements_unknown: bool) -> str:
    if elements_unknown or not dtype:
        return (
            "the trace does not say how many elements its collectives have, and of which type "
            "(gloo's annotations never do, NCCL's kernels only where host activities are recorded)"
        )
    if dtype not in ELEMENT_BYTES:
        return f"the element type {dtype} has no size that could be known"
    if kind is CollectiveKind.OTHER:
        return "no price is defined for some kind of collective"
    assert group_size == ABSENT
    return "the trace does not say how many ranks take part in its collectives"


def _group_size(traffic: Sequence[WireTraffic], request: LedgerRequest) -> int | None:
    own = [t for t in traffic if t.role in _MODEL_STATES and t.group_size is not None]
    if own:
        return max(own, key=lambda t: t.elements or 0.0).group_size
    return request.manifest.world_size if request.manifest is not None else None


def _stages(traffic: Sequence[WireTraffic], request: LedgerRequest) -> tuple[tuple[int, ...], Origin | None]:
    """The stage as it is told, else as kinds and order of collectives show it.

    Stage 3 gathers parameters before it reduces gradients, stages 1 and 2 gather as many as they reduce afterwards,
    stage 0 gathers none, and reduces for all. Stages 1 and 2 differ where gradients are reduced several times a step.
    """
    if request.scheme is not None:
        by_manifest = request.manifest is not None and request.manifest.sharing is request.scheme
        return (request.scheme.stage,), Origin.MANIFEST if by_manifest else Origin.OPTION
    gradients, parameters, updated = (_elements(traffic, role) for role in _MODEL_STATES)
    if not gradients:
        return (), None
    if parameters > _MINOR * gradients:
        return (3,), Origin.INFERRED
    if updated <= _MINOR * gradients:
        by_all_reduce = sum(
            t.elements or 0.0 for t in traffic if t.role is WireRole.GRADIENTS and t.kind is CollectiveKind.ALL_REDUCE
        )
        return ((0,), Origin.INFERRED) if by_all_reduce > 0.5 * gradients else ((), None)
    return ((2,) if gradients > 1.5 * updated else (1, 2)), Origin.INFERRED


def _params(
    traffic: Sequence[WireTraffic], told: LabelMeans, stages: tuple[int, ...], request: LedgerRequest
) -> tuple[int | None, Origin | None]:
    """Ψ as it is told, else as many as gradients are reduced in one micro-step."""
    if request.manifest is not None:
        return request.manifest.model.num_params, Origin.MANIFEST
    if request.num_params is not None:
        return request.num_params, Origin.OPTION
    gradients = told.reduced or _elements(traffic, WireRole.GRADIENTS)
    times = told.micro_steps or 1.0
    updated = _elements(traffic, WireRole.UPDATED)
    if told.micro_steps is None and stages == (2,) and updated:
        times = round(gradients / updated)
    if not stages or not gradients:
        return None, None
    return round(gradients / (times if stages[-1] >= 2 else 1)), Origin.INFERRED


def _elements(traffic: Sequence[WireTraffic], role: WireRole) -> float:
    return sum(t.elements or 0.0 for t in traffic if t.role is role)


def _why_no_ratio(ledger: WireLedger, steps: Collection[tuple[int, int]]) -> str | None:
    if {step for _, step in steps} == {STEP_ALL}:
        return "the trace has no step windows, so that what one step sends is unknown"
    if not ledger.traffic:
        return "there is no communication"
    if ledger.group_size == 1:
        return "one rank has all of the model states, so that nothing has to be sent"
    if ledger.group_size is None or ledger.num_params is None or ledger.theory_ratio is None:
        return "nothing that was sent looks like gradients, so that stage and Ψ are unknown"
    return None


def _with_gap(ledger: WireLedger, told: LabelMeans, request: LedgerRequest) -> WireLedger:
    assert ledger.group_size is not None
    assert ledger.num_params is not None
    assert ledger.sent_bytes is not None
    assert ledger.theory_ratio is not None
    manifest = request.manifest
    facts = Facts(
        traffic=ledger.traffic,
        labels=told,
        stage=ledger.stages[-1],
        group_size=ledger.group_size,
        num_params=ledger.num_params,
        config=manifest.ds_config if manifest is not None else None,
        theory_ratio=ledger.theory_ratio,
        num_gathers=(request.scheme or STAGES[ledger.stages[-1]]).num_gathers,
        engine=request.engine,
        settings=manifest.engine_settings if manifest is not None else None,
        groups=manifest.shard_groups if manifest is not None else (),
        buckets=manifest.buckets if manifest is not None else (),
    )
    causes = find_causes(facts)
    theory = ledger.theory_ratio * facts.unit_bytes
    # Means of whole bytes: what is left below a thousandth of one is the arithmetic's.
    unexplained = round(ledger.sent_bytes - theory - sum(cause.sent_bytes for cause in causes), 3) + 0.0
    return replace(
        ledger,
        theory_bytes=theory,
        ratio=ledger.sent_bytes / facts.unit_bytes,
        causes=causes,
        unexplained_bytes=unexplained,
        unexplained_ratio=unexplained / facts.unit_bytes,
    )


def _texts(codes: npt.NDArray[np.int32], distinct: Sequence[str]) -> list[str]:
    """The text of each row; empty where there is none."""
    texts = [*distinct, ""]
    return [texts[code] for code in codes.tolist()]
