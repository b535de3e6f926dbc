"""Why a step sends another number of bytes than theory says, cause by cause.

Theory counts elements of two bytes, one micro-step, no padding: an all-reduce of the gradients at stage 0 (2Ψ), a
reduce-scatter of gradients and an all-gather of parameters at stages 1 and 2 (2Ψ), a reduce-scatter and two
all-gathers at stage 3 (3Ψ), each times (N−1)/N. Every cause is a difference of measured traffic, so that causes and
theory add up to the measurement but for what no cause knows. Keys are DeepSpeed's here; of torch's engines
:mod:`zerotrace.analysis.wire.torch_settings` names the settings instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from zerotrace.analysis.wire.facts import Facts
from zerotrace.analysis.wire.settings import Setting, micro_steps, setting
from zerotrace.analysis.wire.torch_settings import with_settings
from zerotrace.labels import Phase
from zerotrace.model import CollectiveKind, WireCause, WireKey, WireRole, WireTraffic

_ZERO = "zero_optimization"
_SCATTER = f"{_ZERO}.reduce_scatter"
_MULTI_RANK = f"{_ZERO}.use_multi_rank_bucket_allreduce"
_ALIGNMENT = f"{_ZERO}.parameter_alignment"
_FETCH = f"{_ZERO}.stage3_use_all_reduce_for_fetch_params"
_PERSISTENCE = f"{_ZERO}.stage3_param_persistence_threshold"
_LIMITS = (f"{_ZERO}.stage3_max_live_parameters", f"{_ZERO}.stage3_max_reuse_distance")
_SECONDARY = f"{_ZERO}.zero_hpz_partition_size"
_QUANTISED = ("weights", "gradients")
_COMMUNICATION_TYPE = "communication_data_type"
_ACCUMULATION_TYPE = "data_types.grad_accum_dtype"

_NAMES = {
    "all_reduce": "all-reduce for reduce-scatter",
    "fetch_by_all_reduce": "all-reduce for all-gather",
    "element_size": "element size",
    "accumulation": "micro-steps",
    "kept": "kept for backward",
    "gathered_again": "gathered again",
    "persisted": "persisted parameters",
    "padding": "padding",
    "control": "norm and overflow",
    "other_traffic": "other traffic",
}

#: Padding is less than this part of what it pads; whatever is more has another cause.
MAX_PADDING_RATIO = 0.01


def find_causes(facts: Facts) -> tuple[WireCause, ...]:
    """All causes that a step shows, in the order of this module.

    Args:
        facts: of the mean step.
    """
    causes = (cause for rule in _RULES for cause in rule(facts))
    if facts.engine is None:
        return tuple(causes)
    return tuple(with_settings(cause, facts.engine, facts) for cause in causes)


def _all_reduce(facts: Facts) -> Iterator[WireCause]:
    """Gradients reduced by all-reduce, from stage 1 on.

    Sent beyond theory: S (N−1)/N, what the all-gather half of the all-reduce costs. Source:
    ``deepspeed/runtime/zero/stage_1_and_2.py``, ``average_tensor``: with ``reduce_scatter`` off everything goes by
    all-reduce; else ``use_multi_rank_bucket_allreduce`` chooses between one all-reduce of the whole bucket and a reduce
    to each owner. ``deepspeed/runtime/zero/stage3.py`` reduces and scatters, unless ``reduce_scatter`` is off.
    ``deepspeed/runtime/engine.py``, ``_do_optimizer_sanity_check``: stage 1 in bf16 with fp32 accumulation is another
    optimizer, which lets the engine all-reduce.
    """
    traffic = [t for t in facts.of(WireRole.GRADIENTS) if t.kind is CollectiveKind.ALL_REDUCE]
    extra = _extra(facts, traffic)
    if not extra:
        return
    key = _reduction_key(facts)
    yield _cause(
        facts,
        "all_reduce",
        "Gradients are reduced by all-reduce, which sends each one twice, though a rank keeps a shard of them alone.",
        extra,
        evidence=f"{_millions(_elements(traffic))} elements of gradients in {_calls(traffic, 'all-reduce')} a step.",
        keys=_keys(facts, key) if key else (),
        confirmed=None if facts.config is None else key is not None,
    )


def _reduction_key(facts: Facts) -> str | None:
    """The key that makes this stage reduce by all-reduce; ``None`` where the configuration says that it does not."""
    if facts.config is None:
        return _SCATTER if facts.stage == 3 else _MULTI_RANK
    scatters, multi_rank = setting(facts.config, _SCATTER), setting(facts.config, _MULTI_RANK)
    accumulation = setting(facts.config, _ACCUMULATION_TYPE)
    if facts.stage == 1 and accumulation is not None and not accumulation.is_default:
        return _ACCUMULATION_TYPE
    if scatters is not None and not scatters.value:
        return _SCATTER
    return _MULTI_RANK if facts.stage < 3 and multi_rank is not None and multi_rank.value else None


def _fetched_by_all_reduce(facts: Facts) -> Iterator[WireCause]:
    """Parameters gathered by all-reduce.

    Sent beyond theory: S (N−1)/N. Source: ``deepspeed/runtime/zero/partition_parameters.py``,
    ``_all_gather_coalesced``: every rank puts its shard into a buffer of zeros, and the sum is the whole.
    """
    roles = (WireRole.PARAMETERS, WireRole.UPDATED)
    traffic = [t for t in facts.of(*roles) if t.kind is CollectiveKind.ALL_REDUCE]
    extra = _extra(facts, traffic)
    if extra:
        key = setting(facts.config, _FETCH)
        yield _cause(
            facts,
            "fetch_by_all_reduce",
            "Parameters are gathered by all-reduce, which sends each one twice.",
            extra,
            evidence=f"{_millions(_elements(traffic))} elements in {_calls(traffic, 'all-reduce')} a step.",
            keys=_keys(facts, _FETCH),
            confirmed=None if key is None else bool(key.value),
        )


def _element_size(facts: Facts) -> Iterator[WireCause]:
    """Elements that are not two bytes wide: gradients in fp32, quantised parameters.

    Sent beyond theory: (width − 2) bytes for each. Source: ``deepspeed/runtime/engine.py``,
    ``communication_data_type``; ``deepspeed/runtime/zero/partition_parameters.py`` for quantised weights,
    ``deepspeed/runtime/comm/coalesced_collectives.py``, ``all_to_all_quant_reduce``, for quantised gradients.
    """
    roles = (WireRole.GRADIENTS, WireRole.PARAMETERS, WireRole.UPDATED)
    other = [t for t in facts.of(*roles) if t.size_bytes != 2 * (t.elements or 0.0)]
    extra = sum(facts.once(t) * (1 - 2 * (t.elements or 0.0) / t.size_bytes) for t in other if t.size_bytes)
    if extra:
        names = [_COMMUNICATION_TYPE] if extra > 0 else [f"{_ZERO}.zero_quantized_{what}" for what in _QUANTISED]
        types = ", ".join(sorted({t.dtype or "unknown" for t in other}))
        found = [setting(facts.config, name) for name in names]
        chosen = [s.key for s in found if s is not None and not s.is_default]
        yield _cause(
            facts,
            "element_size",
            "Elements travel in a type that is not two bytes wide, which is what theory counts.",
            extra,
            evidence=f"{_millions(_elements(other))} elements a step travel as {types}.",
            keys=_keys(facts, *(chosen or names)),
            confirmed=None if facts.config is None else bool(chosen) or _trains_in_fp32(facts),
        )


def _accumulation(facts: Facts) -> Iterator[WireCause]:
    """More than one micro-step: gradients reduced (from stage 2 on) and parameters gathered (stage 3) in each of them.

    Sent beyond theory with k micro-steps: (k−1)Ψ at stage 2, 3(k−1)Ψ at stage 3, nothing at stages 0 and 1, which
    reduce at the end of the step alone. Source: ``deepspeed/runtime/engine.py``, ``allreduce_gradients``. Where DDP
    reduces in each of them: 2(k−1)Ψ, with ZeroRedundancyOptimizer (k−1)Ψ and as much for the all-reduce.
    """
    told = micro_steps(facts.config, facts.group_size)
    count = facts.reductions
    asked = told.value if told is not None and facts.stage >= 2 else 1
    if count == 1 and asked == 1:
        return
    times = (count - 1) * {0: 2.0, 3: facts.theory_ratio}.get(facts.stage, 1.0)
    yield _cause(
        facts,
        "accumulation",
        f"A step has {count} micro-steps, each of which reduces its gradients"
        + (" and gathers the parameters." if facts.stage == 3 else "."),
        times * facts.price(facts.num_params),
        evidence=f"{facts.elements(WireRole.GRADIENTS) / facts.num_params:.2f} Ψ gradients are reduced a step.",
        keys=(_key("gradient_accumulation_steps", told),),
        confirmed=None if told is None else told.value == count,
    )


def _padding(facts: Facts) -> Iterator[WireCause]:
    """Elements that fill buffers up so that they can be cut in N equal parts.

    Sent beyond theory: what is sent less what labels say that was asked for, or less Ψ. Source:
    ``deepspeed/runtime/comm/coalesced_collectives.py``, ``reduce_scatter_coalesced``, and
    ``deepspeed/runtime/zero/partition_parameters.py``, ``_partition_param``: each parameter up to a multiple of N;
    ``deepspeed/runtime/zero/stage_1_and_2.py``: each flat buffer up to a multiple of 2N.
    """
    gradients = facts.labels.reduced
    if gradients is None:
        gradients = float(facts.reductions * facts.num_params)
    parts = [(facts.elements(WireRole.GRADIENTS), gradients)]
    if facts.stage == 3 and facts.labels.gathered is not None:
        parts.append((facts.elements(WireRole.PARAMETERS), sum(facts.labels.gathered.values())))
        if facts.labels.refreshed is not None:
            parts.append((facts.elements(WireRole.UPDATED), facts.labels.refreshed))
    elif facts.stage in (1, 2):
        parts.append((facts.elements(WireRole.UPDATED), float(facts.num_params)))
    padded = sum(_padding_of(sent, asked) for sent, asked in parts)
    if padded:
        aligned = setting(facts.config, _ALIGNMENT)
        yield _cause(
            facts,
            "padding",
            "Buffers are filled up so that they can be cut in equal shards.",
            facts.price(padded),
            evidence=f"{padded:,.0f} elements more than parameters and gradients have.",
            keys=_keys(facts, _ALIGNMENT) if aligned is not None and aligned.value and facts.stage < 3 else (),
        )


def _kept(facts: Facts) -> Iterator[WireCause]:
    """Parameters that stage 3 does not gather twice, or gathers more than twice, in a micro-step.

    With Q parameters that are partitioned: (elements gathered in backward − Q) and (elements gathered in forward − Q);
    for backward without Q where theory gathers once, as FSDP2 does that keeps parameters.
    Both at once, where no label tells the phases. Source: ``deepspeed/runtime/zero/partitioned_param_coordinator.py``:
    ``__params_to_release`` keeps what is used again within ``stage3_max_reuse_distance`` elements, or what the prefetch
    has passed over because it was still there; the prefetch in ``_fetch_sub_module_impl`` goes on until
    ``stage3_max_live_parameters`` are there, beyond the end of the forward pass, too.
    """
    if facts.stage != 3:
        return
    whole = facts.micro_steps * (facts.num_params - _persisted_elements(facts))
    by_phase = facts.labels.gathered
    if by_phase is None or None in by_phase:
        total = facts.elements(WireRole.PARAMETERS)
        asked = facts.num_gathers * whole
        yield from _kept_cause(facts, total - asked, "a step", asked, total)
        return
    backward, forward = (by_phase.get(phase, 0.0) for phase in (Phase.BACKWARD, Phase.FORWARD))
    again = (facts.num_gathers - 1) * whole
    yield from _kept_cause(facts, backward - again, "in backward", again, backward)
    yield from _kept_cause(facts, forward - whole, "in forward", whole, forward)


def _kept_cause(facts: Facts, beyond: float, where: str, whole: float, gathered: float) -> Iterator[WireCause]:
    if not beyond:
        return
    limits = [s.value for name in _LIMITS if (s := setting(facts.config, name)) is not None]
    known = len(limits) == len(_LIMITS)
    amount = f"{_millions(gathered)} elements are" if gathered else "No parameter is"
    evidence = f"{amount} gathered {where}; in theory {_millions(whole)} elements."
    keys = _keys(facts, *_LIMITS)
    if beyond < 0:
        yield _cause(
            facts,
            "kept",
            "Parameters stay whole between forward and backward, so that backward need not gather them again.",
            facts.price(beyond),
            evidence=evidence,
            keys=keys,
            confirmed=-beyond <= facts.micro_steps * max(limits) if known else None,
        )
        return
    yield _cause(
        facts,
        "gathered_again",
        "Parameters are gathered more than once in one pass: several modules use them, or they are released and "
        "prefetched for the next pass already.",
        facts.price(beyond),
        evidence=evidence,
        keys=keys,
        confirmed=2 * facts.num_params > min(limits) if known else None,
    )


def _persisted(facts: Facts) -> Iterator[WireCause]:
    """Parameters below the persistence threshold: whole on every rank, gathered once after the step.

    With p such elements and k micro-steps, p − 2kp. Source: ``deepspeed/runtime/zero/parameter_offload.py``,
    ``mark_persistent_parameters``; ``deepspeed/runtime/zero/stage3.py``, ``_post_step``.
    """
    elements = _persisted_elements(facts)
    if facts.stage != 3 or not elements:
        return
    key = setting(facts.config, _PERSISTENCE)
    refreshes = facts.of(WireRole.UPDATED)
    yield _cause(
        facts,
        "persisted",
        "Small parameters are kept whole, and refreshed once after the optimizer step instead of gathered twice.",
        facts.price(elements * (1 - facts.num_gathers * facts.micro_steps)),
        evidence=f"{elements:,.0f} elements are refreshed in {_calls(refreshes, 'all-gather')} a step.",
        keys=_keys(facts, _PERSISTENCE),
        confirmed=None if key is None else bool(key.value),
    )


def _persisted_elements(facts: Facts) -> float:
    """Elements that are refreshed after the step; none where they cannot all be persisted parameters of this model."""
    refreshed = facts.labels.refreshed
    elements = facts.elements(WireRole.UPDATED) if refreshed is None else refreshed
    return elements if elements <= (1 + MAX_PADDING_RATIO) * facts.num_params else 0.0


def _control(facts: Facts) -> Iterator[WireCause]:
    """Norm of the gradients, overflow flag: a few bytes, but a latency each.

    Source: ``get_grad_norm_direct`` and ``has_overflow`` in ``deepspeed/runtime/zero/stage_1_and_2.py`` and
    ``deepspeed/runtime/zero/stage3.py``.
    """
    yield from _whole_role(
        facts,
        WireRole.CONTROL,
        "control",
        "The norm of the gradients and the overflow flag are agreed upon: a few bytes, but a latency each.",
    )


def _other(facts: Facts) -> Iterator[WireCause]:
    """What ZeRO does not do in its own group: tensor, pipeline, sequence, expert parallelism, a secondary partition.

    Source: ``deepspeed/runtime/zero/partition_parameters.py``, ``zero_hpz_partition_size``, for the last.
    """
    secondary = setting(facts.config, _SECONDARY)
    yield from _whole_role(
        facts,
        WireRole.OTHER,
        "other_traffic",
        "Collectives outside of ZeRO's own group, or of another kind than ZeRO's: theory does not count them.",
        *([_SECONDARY] if secondary is not None and not secondary.is_default else []),
    )


def _whole_role(facts: Facts, role: WireRole, code: str, claim: str, *names: str) -> Iterator[WireCause]:
    traffic = facts.of(role)
    if traffic:
        sent = sum(t.sent_bytes or 0.0 for t in traffic)
        evidence = f"{_calls(traffic, 'collective')} a step, {sent:,.0f} bytes sent."
        yield _cause(facts, code, claim, sent, evidence=evidence, keys=_keys(facts, *names))


def _extra(facts: Facts, traffic: list[WireTraffic]) -> float:
    """Sent beyond the theoretical price."""
    return sum((t.sent_bytes or 0.0) - facts.once(t) for t in traffic)


def _padding_of(sent: float, asked: float) -> float:
    beyond = sent - asked
    return beyond if 0 < beyond <= MAX_PADDING_RATIO * asked else 0.0


def _trains_in_fp32(facts: Facts) -> bool:
    """Neither bf16 nor fp16 is on: parameters and gradients are four bytes wide."""
    sections = [(facts.config or {}).get(name) for name in ("bf16", "bfloat16", "fp16")]
    return not any(isinstance(section, dict) and section.get("enabled") for section in sections)


def _cause(
    facts: Facts,
    code: str,
    claim: str,
    sent_bytes: float,
    *,
    evidence: str,
    keys: tuple[WireKey, ...] = (),
    confirmed: bool | None = None,
) -> WireCause:
    return WireCause(
        code=code,
        name=_NAMES[code],
        claim=claim,
        sent_bytes=sent_bytes,
        ratio=sent_bytes / facts.unit_bytes,
        keys=keys,
        confirmed=confirmed,
        evidence=evidence,
    )


def _keys(facts: Facts, *names: str) -> tuple[WireKey, ...]:
    return tuple(_key(name, setting(facts.config, name)) for name in names)


def _key(name: str, found: Setting | None) -> WireKey:
    """A key with its value, which is unknown without a configuration."""
    if found is None:
        return WireKey(key=name, value=None, is_default=None)
    return WireKey(key=name, value=found.text, is_default=found.is_default)


def _elements(traffic: list[WireTraffic]) -> float:
    return sum(t.elements or 0.0 for t in traffic)


def _calls(traffic: list[WireTraffic], noun: str) -> str:
    count = sum(t.num_calls for t in traffic)
    return f"{count:g} {noun}{'' if count == 1 else 's'}"


def _millions(elements: float) -> str:
    return f"{elements / 1e6:,.2f} M"


_RULES: tuple[Callable[[Facts], Iterator[WireCause]], ...] = (
    _all_reduce, _fetched_by_all_reduce, _element_size, _accumulation, _kept, _persisted, _padding, _control, _other,
)  # fmt: skip
