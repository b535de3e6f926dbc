"""Findings about memory: what is held for nothing, and what a knob would give back."""

from __future__ import annotations

from collections.abc import Iterator

from zerotrace.analysis.memory.measure import by_owner
from zerotrace.errors import LedgerError
from zerotrace.ledger import decoder_activations, decoder_shapes, deepspeed_ledger, read_settings
from zerotrace.ledger.fit import with_changes
from zerotrace.model import Analysis, EngineLedger, Finding, Gain, Owner, RankMemory, RunManifest
from zerotrace.units import format_bytes

#: Parts of the peak below which memory is not worth a finding.
BUCKET_RATIO = 0.05
DIFFERENCE_RATIO = 0.01
FRAGMENTATION_RATIO = 0.1
LEFTOVER_RATIO = 0.01

#: Elements of a bucket that still holds a large layer whole: what a gain is predicted for.
SMALLER_BUCKET = 50_000_000
_KNOB = "zero_optimization.reduce_bucket_size"


def large_bucket(analysis: Analysis) -> Iterator[Finding]:
    """Reduce buckets that take a good part of the peak, resident at stage 3, at the peak at stages 1 and 2.

    Cost: bytes of the buckets on the rank with the highest peak. Gain: the difference of the ledger's resident bytes
    (stage 3) or peak (stages 1 and 2) with ``reduce_bucket_size`` at :data:`SMALLER_BUCKET`.
    """
    memory, manifest = _highest(analysis), analysis.manifest
    if memory is None or not memory.peak_bytes or manifest is None:
        return
    kept, most = (
        by_owner(memory.resident).get(Owner.REDUCE_BUCKET, 0),
        by_owner(memory.peak).get(Owner.REDUCE_BUCKET, 0),
    )
    cost = max(kept, most)
    ledgers = _with_smaller_bucket(manifest)
    if cost < BUCKET_RATIO * memory.peak_bytes or ledgers is None:
        return
    now, then = ledgers
    shard = by_owner(memory.resident).get(Owner.GRAD_PARTITION, 0)
    if kept:
        claim = f"The reduce bucket keeps {format_bytes(kept)} of each rank between steps, too"
        evidence = (
            f"Stage 3 allocates reduce_bucket_size elements once and for all. With the flat gradient shard "
            f"({format_bytes(shard)}) that is what a rank holds beyond parameters and optimizer."
        )
        won = now.bytes - then.bytes
    else:
        claim = f"The reduce buckets hold {format_bytes(most)} of the {format_bytes(memory.peak_bytes)} of the peak"
        evidence = "One bucket of reduce_bucket_size elements is filled while the other is reduced (overlap_comm)."
        won = now.peak_bytes - then.peak_bytes
    if won <= 0:
        return
    yield Finding(
        code="large_reduce_bucket",
        claim=f"{claim}.",
        evidence=evidence,
        numbers={"resident_bucket_bytes": kept, "peak_bucket_bytes": most, "gradient_shard_bytes": shard},
        cost_bytes=cost,
        knob=f"{_KNOB}, for example {SMALLER_BUCKET:,}; more and smaller reductions also overlap better",
        gain=Gain(
            memory_bytes=won,
            at_most=False,
            basis=f"DeepSpeed's ledger with {SMALLER_BUCKET:,} elements, {'resident' if kept else 'at the peak'}",
        ),
    )


def ranks_differ(analysis: Analysis) -> Iterator[Finding]:
    """Ranks that hold different amounts, between steps or at the peak.

    Cost: largest minus smallest, of whichever differs more.
    """
    memories = [m for m in (analysis.memory.ranks if analysis.memory else ()) if m.resident_bytes]
    if len(memories) < 2:
        return
    found = []
    for name, sizes in (("resident", [m.resident_bytes for m in memories]), ("peak", [m.peak_bytes for m in memories])):
        known = [size or 0 for size in sizes]
        if None not in sizes and max(known) - min(known) > DIFFERENCE_RATIO * max(known):
            found.append((max(known) - min(known), name, known))
    if not found:
        return
    cost, name, known = max(found)
    high, low = memories[known.index(max(known))], memories[known.index(min(known))]
    yield Finding(
        code="memory_differs_between_ranks",
        claim=f"Ranks hold different amounts of memory: {format_bytes(cost)} more "
        f"{'between steps' if name == 'resident' else 'at the peak'} on rank {high.rank} than on rank {low.rank}.",
        evidence=_where(high, low, name),
        numbers={"difference_bytes": cost, "largest_bytes": max(known), "smallest_bytes": min(known)},
        cost_bytes=cost,
    )


def fragmentation(analysis: Analysis) -> Iterator[Finding]:
    """Memory that the allocator has reserved, and that is free even at the peak.

    Cost: reserved − allocated at the instant of the peak, on the rank with the most. Gain at most that.
    """
    known = [m for m in (analysis.memory.ranks if analysis.memory else ()) if m.peak_bytes and m.peak_reserved_bytes]
    worst = max(known, key=_lost, default=None)
    if worst is None or _lost(worst) < FRAGMENTATION_RATIO * (worst.peak_reserved_bytes or 0):
        return
    cost, reserved = _lost(worst), worst.peak_reserved_bytes or 0
    yield Finding(
        code="fragmentation",
        claim=f"The allocator keeps {format_bytes(cost)} more of the device than even the peak needs.",
        evidence=f"At the peak of rank {worst.rank} {format_bytes(worst.peak_bytes)} of the reserved "
        f"{format_bytes(reserved)} are allocated; the rest is free: it fitted no request, or is left from the start.",
        numbers={"reserved_bytes": reserved, "peak_bytes": worst.peak_bytes or 0, "lost_bytes": cost},
        cost_bytes=cost,
        knob="environment PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        gain=Gain(memory_bytes=cost, basis="all that is reserved and not allocated at the peak"),
    )


def outlives_the_step(analysis: Analysis) -> Iterator[Finding]:
    """Activations that are still there after the step: a loss, logits or a graph that the program holds on to.

    Cost: their bytes on the rank with the most. Gain the same.
    """
    memories = analysis.memory.ranks if analysis.memory else ()
    worst = max(memories, key=_left_over, default=None)
    if worst is None or not worst.peak_bytes or _left_over(worst) < LEFTOVER_RATIO * worst.peak_bytes:
        return
    cost = _left_over(worst)
    yield Finding(
        code="activations_outlive_step",
        claim=f"{format_bytes(cost)} that forward or backward allocated are still live after the step.",
        evidence=f"Of {format_bytes(worst.resident_bytes)} between steps on rank {worst.rank} they belong to nothing "
        "that the engine holds.",
        numbers={"left_over_bytes": cost},
        cost_bytes=cost,
        knob="drop references to losses, logits and outputs before the next step (loss.detach())",
        gain=Gain(memory_bytes=cost, at_most=True, basis="what is left over"),
    )


def _highest(analysis: Analysis) -> RankMemory | None:
    memories = analysis.memory.ranks if analysis.memory else ()
    return max(memories, key=lambda memory: memory.peak_bytes or 0, default=None)


def _lost(memory: RankMemory) -> int:
    return (memory.peak_reserved_bytes or 0) - (memory.peak_bytes or 0)


def _left_over(memory: RankMemory) -> int:
    return by_owner(memory.resident).get(Owner.ACTIVATIONS, 0)


def _where(high: RankMemory, low: RankMemory, name: str) -> str:
    more, less = (by_owner(m.resident if name == "resident" else m.peak) for m in (high, low))
    differences = {owner: more.get(owner, 0) - less.get(owner, 0) for owner in {**more, **less}}
    owner = max(differences, key=lambda key: abs(differences[key]))
    return (
        f"Most of it is {owner.value}: {format_bytes(more.get(owner, 0))} against {format_bytes(less.get(owner, 0))}."
    )


def _with_smaller_bucket(manifest: RunManifest) -> tuple[EngineLedger, EngineLedger] | None:
    """The ledger as it is, and with a smaller bucket; ``None`` where there is none, or the bucket is small."""
    if manifest.ds_config is None or manifest.stage is None or not manifest.ranks:
        return None
    try:
        settings = read_settings(manifest.ds_config, manifest.stage)
        changed = read_settings(with_changes(manifest.ds_config, {_KNOB: SMALLER_BUCKET}), manifest.stage)
    except LedgerError:
        return None
    if settings.reduce_bucket_size <= SMALLER_BUCKET:
        return None
    shapes, device = decoder_shapes(manifest.model), manifest.ranks[0].device
    activations = decoder_activations(manifest.model, manifest.micro_batch, manifest.sequence, settings.param_bytes)
    now, then = (
        deepspeed_ledger(shapes, choice, manifest.world_size, device=device, activations=activations)
        for choice in (settings, changed)
    )
    return now, then


RULES = (large_bucket, ranks_differ, fragmentation, outlives_the_step)
