"""Findings about what is sent, and what no compute is left to hide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from zerotrace.analysis.findings.memory import SMALLER_BUCKET
from zerotrace.analysis.findings.torch_knobs import keep_parameters, smaller_reductions, torch_engine
from zerotrace.analysis.wire.settings import setting
from zerotrace.model import (
    Analysis,
    Collectives,
    Finding,
    Gain,
    Place,
    WireLedger,
    WireRole,
    WireTraffic,
)
from zerotrace.units import format_count, format_ns, format_ratio, format_traffic

_ZERO = "zero_optimization"
_MULTI_RANK = f"{_ZERO}.use_multi_rank_bucket_allreduce"

#: Parameters gathered for backward below this part of Ψ are the last layers', which are needed at once.
AGAIN_RATIO = 0.1

#: Gradients that go in so few reductions have no other compute to hide behind than what precedes each.
FEW_BUCKETS = 2

#: A part of the gradients that lies open is worth a smaller bucket.
OPEN_RATIO = 0.5


def all_reduce(analysis: Analysis) -> Iterator[Finding]:
    """Gradients reduced by all-reduce at stages 1 and 2, though each rank keeps a shard alone.

    Cost: their exposed transfer, mean of a step and rank. Gain at most: half of their transfer, since a reduce to each
    owner sends half the bytes, as far as it is exposed. Source of the key: see
    :mod:`zerotrace.analysis.wire.causes`.
    """
    wire, collectives = analysis.wire, analysis.collectives
    if wire is None or collectives is None:
        return
    cause = next((cause for cause in wire.causes if cause.code == "all_reduce"), None)
    if cause is None or not any(key.key == _MULTI_RANK for key in cause.keys):
        return
    sent = [t for t in _traffic(wire, WireRole.GRADIENTS) if t.kind.value == "all_reduce"]
    kinds = _kinds(collectives, sent)
    time = _time(collectives, kinds)
    if time is None:
        return
    elements = sum(t.elements or 0.0 for t in sent)
    bytes_now = sum(t.sent_bytes or 0.0 for t in sent)
    yield Finding(
        code="gradients_by_all_reduce",
        claim=f"Gradients go by all-reduce: a rank sends {format_traffic(bytes_now)} a step for them, "
        f"{format_traffic(cause.sent_bytes)} more than a reduce to each shard's owner would.",
        evidence=f"{format_count(round(elements))} elements are reduced by {_calls(sent, 'all-reduce')} a step: "
        f"{time.text}. Wire ratio {wire.ratio:.2f} instead of {wire.theory_ratio:g}.",
        numbers={
            "sent_bytes": bytes_now,
            "extra_bytes": cause.sent_bytes,
            "wire_ratio": wire.ratio or 0.0,
            **time.numbers,
        },
        cost_ns=time.open_ns,
        place=_longest(collectives, kinds),
        knob=f"{_MULTI_RANK}: false",
        gain=Gain(
            step_ns=_winnable(analysis, min(time.transfer_ns / 2, time.open_ns)),
            basis="half of the transfer, as far as no compute hides it; many small reductions may cost more",
        ),
    )


def few_buckets(analysis: Analysis) -> Iterator[Finding]:
    """Gradients in so few buckets that the last reduction has no backward pass left to hide behind.

    Cost: their exposed transfer, mean of a step and rank. Gain at most: that, less the transfer of a last bucket of
    :data:`SMALLER_BUCKET` elements, and no more than the compute that hides nothing yet. Source:
    ``deepspeed/runtime/zero/stage_1_and_2.py``, ``reduce_independent_p_g_buckets_and_remove_grads``, and
    ``deepspeed/runtime/zero/stage3.py``, ``reduce_independent_p_g_buckets_and_remove_grads``: a bucket is reduced when
    the next gradient does not fit into it, the last one after the backward pass. DDP's is reduced when its last
    gradient is there (``torch/csrc/distributed/c10d/reducer.cpp``).
    """
    wire, collectives = analysis.wire, analysis.collectives
    # DeepSpeed's stage 0 reduces after the backward pass, however many buckets there are; DDP does not.
    engine = torch_engine(analysis.manifest)
    if wire is None or collectives is None or not wire.num_params or not wire.stages:
        return
    if wire.stages[-1] == 0 and engine is None:
        return
    sent = _traffic(wire, WireRole.GRADIENTS)
    kinds = _kinds(collectives, sent)
    elements = sum(t.elements or 0.0 for t in sent)
    rounds = max(1, round(elements / wire.num_params))
    calls = sum(t.num_calls for t in sent) / rounds
    time = _time(collectives, kinds)
    if time is None or not 0 < calls <= FEW_BUCKETS or elements / rounds / FEW_BUCKETS < SMALLER_BUCKET:
        return
    if time.exposed_ns < OPEN_RATIO * time.duration_ns:
        return
    left_open = time.transfer_ns * SMALLER_BUCKET * rounds / elements
    free_compute = max((rank.compute_ns - rank.overlapped_ns for rank in analysis.ranks), default=0.0)
    config = analysis.manifest.ds_config if analysis.manifest is not None else None
    knob = _bucket_knob(config, wire.stages[-1]) if engine is None else smaller_reductions(engine, analysis.manifest)
    yield Finding(
        code="few_reduce_buckets",
        claim=f"The gradients go in {calls:g} bucket{'' if calls == 1 else 's'}, so that the last one cannot overlap: "
        "it is reduced when the backward pass is over.",
        evidence=_buckets(collectives, kinds) + f" The reductions take {time.text}.",
        numbers={
            "num_buckets": calls,
            "largest_bucket_bytes": _largest_bytes(collectives, kinds) or 0,
            **time.numbers,
        },
        cost_ns=time.open_ns,
        place=_longest(collectives, kinds),
        knob=knob,
        gain=Gain(
            step_ns=_winnable(analysis, min(time.open_ns - left_open, free_compute)),
            basis=f"the open transfer, less that of a last bucket of {format_count(SMALLER_BUCKET)} elements",
        ),
    )


def gathered_for_backward(analysis: Analysis) -> Iterator[Finding]:
    """Parameters that stage 3 or FSDP2 gathers a second time, for the backward pass.

    Cost, and gain at most: the exposed transfer of the gathers launched in backward, mean of a step and rank. What it
    takes: the same parameters whole between forward and backward.
    """
    wire, collectives = analysis.wire, analysis.collectives
    if wire is None or collectives is None or wire.stages != (3,) or not wire.num_params:
        return
    sent = [t for t in _traffic(wire, WireRole.PARAMETERS) if t.phase == "backward"]
    again = sum(t.elements or 0.0 for t in sent)
    kinds = _kinds(collectives, sent)
    time = _time(collectives, kinds)
    if again < AGAIN_RATIO * wire.num_params or time is None:
        return
    held = sum(t.size_bytes or 0.0 for t in sent)
    bytes_now = sum(t.sent_bytes or 0.0 for t in sent)
    knob, now = _keeping_knob(analysis, wire.num_params)
    yield Finding(
        code="parameters_gathered_again",
        claim=f"{format_ratio(again / wire.num_params)} of the parameters are gathered again for the backward pass: a "
        f"rank sends {format_traffic(bytes_now)} a step for that.",
        evidence=f"{_calls(sent, 'all-gather')} a step in backward take {time.text}." + (f" {now}." if now else ""),
        numbers={
            "gathered_elements": again,
            "sent_bytes": bytes_now,
            "held_bytes": held,
            **time.numbers,
        },
        cost_ns=time.open_ns,
        place=_longest(collectives, kinds),
        knob=f"{knob}, for up to {format_traffic(held)} more memory a rank",
        gain=Gain(
            step_ns=_winnable(analysis, time.open_ns),
            basis="the transfer of these gathers, as far as no compute hides it",
        ),
    )


def _keeping_knob(analysis: Analysis, num_params: int) -> tuple[str, str]:
    """What keeps parameters for the backward pass, and what is set now."""
    engine = torch_engine(analysis.manifest)
    if engine is not None:
        return keep_parameters(engine), ""
    config = analysis.manifest.ds_config if analysis.manifest is not None else None
    names = (f"{_ZERO}.stage3_max_live_parameters", f"{_ZERO}.stage3_max_reuse_distance")
    now = [f"{name.rpartition('.')[2]} is {s.text}" for name in names if (s := setting(config, name)) is not None]
    return (
        f"{names[0]} and {names[1].rpartition('.')[2]}: above 2Ψ = {format_count(2 * num_params)} nothing is given "
        "back in between",
        " and ".join(now),
    )


def _traffic(wire: WireLedger, role: WireRole) -> list[WireTraffic]:
    return [traffic for traffic in wire.traffic if traffic.role is role]


def _kinds(collectives: Collectives, traffic: Sequence[WireTraffic]) -> tuple[int, ...]:
    """Indices of the figures that are of this traffic."""
    wanted = {(t.kind, t.phase, t.dtype, t.group_size) for t in traffic}
    return tuple(
        index for index, k in enumerate(collectives.kinds) if (k.kind, k.phase, k.dtype, k.group_size) in wanted
    )


class _Time(Struct, frozen=True):
    """What some kinds of collectives take, mean of a step and rank."""

    duration_ns: float
    transfer_ns: float
    wait_ns: float
    exposed_ns: float

    @property
    def open_ns(self) -> float:
        """Transfer with no compute beside it, at most: what is exposed may be waiting, too."""
        return min(self.transfer_ns, self.exposed_ns)

    @property
    def text(self) -> str:
        """In words."""
        return (
            f"{format_ns(self.transfer_ns)} of transfer and {format_ns(self.wait_ns)} of waiting; "
            f"{format_ns(self.exposed_ns)} of that have no compute beside them"
        )

    @property
    def numbers(self) -> dict[str, float]:
        """For a program."""
        return {"transfer_ns": self.transfer_ns, "wait_ns": self.wait_ns, "exposed_ns": self.exposed_ns}


def _time(collectives: Collectives, kinds: Sequence[int]) -> _Time | None:
    """``None`` where nothing was matched, so that transfer is unknown."""
    chosen = [collectives.kinds[kind] for kind in kinds]
    if not any(k.transfer_ns is not None for k in chosen):
        return None
    return _Time(
        duration_ns=sum(k.duration_ns for k in chosen),
        transfer_ns=sum(k.transfer_ns or 0.0 for k in chosen),
        wait_ns=sum(k.wait_ns or 0.0 for k in chosen),
        exposed_ns=sum(k.exposed_ns for k in chosen),
    )


def _winnable(analysis: Analysis, time_ns: float) -> float:
    """No more than communication holds compute back on the rank where it does most: the rest is nobody's loss."""
    blocking = analysis.verdict.blocking_ns
    return max(0.0, time_ns if blocking is None else min(time_ns, blocking.max))


def _buckets(collectives: Collectives, kinds: Sequence[int]) -> str:
    """How much of the gradients the largest bucket holds."""
    largest = _largest_bytes(collectives, kinds)
    total = sum(collectives.kinds[kind].size_bytes or 0.0 for kind in kinds)
    if largest is None or not total:
        return ""
    return f"The largest holds {format_ratio(largest / total)} of them ({format_traffic(largest)})."


def _largest_bytes(collectives: Collectives, kinds: Sequence[int]) -> int | None:
    sample = collectives.sample
    return max((size for kind, size in zip(sample.figures, sample.size_bytes) if kind in kinds), default=None)


def _bucket_knob(config: Mapping[str, Any] | None, stage: int) -> str:
    bucket, overlap = setting(config, f"{_ZERO}.reduce_bucket_size"), setting(config, f"{_ZERO}.overlap_comm")
    now = "" if bucket is None else f" (now {format_count(bucket.value)}{', the default' if bucket.is_default else ''})"
    knob = f"{_ZERO}.reduce_bucket_size: {SMALLER_BUCKET}{now}"
    is_on = overlap is None or (stage == 3 if overlap.is_default else bool(overlap.value))
    return knob if is_on else f"{_ZERO}.overlap_comm: true, and {knob}"


def _longest(collectives: Collectives, kinds: Sequence[int]) -> Place | None:
    """Where the longest of these collectives lies."""
    sample = collectives.sample
    mine = [index for index, kind in enumerate(sample.figures) if kind in kinds]
    if not mine:
        return None
    worst = max(mine, key=lambda index: sample.end_ns[index] - sample.start_ns[index])
    return Place(
        rank=sample.rank[worst], step=sample.step[worst], start_ns=sample.start_ns[worst], end_ns=sample.end_ns[worst]
    )


def _calls(traffic: Sequence[WireTraffic], noun: str) -> str:
    count = sum(t.num_calls for t in traffic)
    return f"{count:g} {noun}{'' if count == 1 else 's'}"


RULES = (all_reduce, few_buckets, gathered_for_backward)
