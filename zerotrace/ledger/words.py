"""Where an engine's ledger and the paper's part, in sentences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from zerotrace.model import EngineLedger, LedgerLine, Owner, PaperLedger
from zerotrace.units import format_bytes

# What is below this part of the whole needs no sentence.
_MINOR = 0.005

_FORMULAS = {0: "16Ψ", 1: "4Ψ + 12Ψ/N", 2: "2Ψ + 14Ψ/N", 3: "16Ψ/N"}
_GRADIENTS = (Owner.GRADS, Owner.GRAD_PARTITION)


def compare_ledgers(
    paper: PaperLedger, deepspeed: EngineLedger, measured: Mapping[Owner, int] | None = None
) -> tuple[str, ...]:
    """Why a rank holds more or less between steps than the paper says.

    Args:
        paper: of the same stage, model and world size.
        deepspeed: what the engine holds.
        measured: bytes of each owner where they were measured; they take the place of the ledger's.
    """
    told = _by_owner(deepspeed.lines)
    held = told if measured is None else {owner: float(size) for owner, size in measured.items()}
    theory = _by_owner(paper.lines)
    total, more = sum(held.values()), sum(held.values()) - paper.bytes
    formula = _FORMULAS[paper.stage]
    direction = "more" if more > 0 else "less"
    sentences = [
        f"Between steps a rank {'holds' if measured is not None else 'will hold'} {format_bytes(total)}, "
        f"{format_bytes(abs(more))} {direction} than the paper's {formula} ({format_bytes(paper.bytes)})."
    ]
    sentences += _of_gradients(paper, held, theory)
    if deepspeed.engine != "deepspeed":
        sentences += _of_torch(paper, held, theory)
    elif paper.stage == 3:
        sentences += _of_stage_3(paper, held, theory)
    offloaded = sum(line.offloaded_bytes for line in deepspeed.lines)
    if offloaded:
        sentences.append(f"The configuration keeps {format_bytes(offloaded)} on the host or on disk instead.")
    workspace = held.get(Owner.WORKSPACE, 0)
    if workspace > _MINOR * total:
        sentences.append(f"Workspaces of matrix products take {format_bytes(workspace)}.")
    rounding = sum(line.rounding_bytes for line in deepspeed.lines)
    if measured is None and rounding > _MINOR * total:
        sentences.append(f"The allocator rounds separate tensors up: {format_bytes(rounding)}.")
    return tuple(sentences)


def _of_gradients(paper: PaperLedger, held: Mapping[Owner, float], theory: Mapping[Owner, float]) -> list[str]:
    here, there = sum(held.get(owner, 0) for owner in _GRADIENTS), theory.get(Owner.GRADS, 0)
    if here > 0.5 * there:
        if paper.stage != 3:
            return [f"Accumulated gradients stay between steps: {format_bytes(here)}."]
        return []
    counted = f"The paper counts gradients ({format_bytes(there)}), which are gone after the step that used them"
    if paper.stage == 2:
        return [f"{counted}: stages 1 and 2 hold the same between steps."]
    return [f"{counted}."]


def _of_stage_3(paper: PaperLedger, held: Mapping[Owner, float], theory: Mapping[Owner, float]) -> list[str]:
    bucket, shard = held.get(Owner.REDUCE_BUCKET, 0), held.get(Owner.GRAD_PARTITION, 0)
    if not bucket and not shard:
        return []
    without = paper.bytes - theory.get(Owner.GRADS, 0)
    over = sum(held.values()) - without
    kept = []
    if bucket:
        kept.append(f"the reduce bucket ({format_bytes(bucket)}, reduce_bucket_size)")
    if shard:
        kept.append(f"the flat gradient shard ({format_bytes(shard)})")
    sentence = f"Stage 3 keeps {' and '.join(kept)} between steps."
    if over > bucket + shard:
        sentence += (
            f" Against 14Ψ/N, theory with the gradients gone, that is {format_bytes(bucket + shard)} of "
            f"{format_bytes(over)} more, none of it all-gather buffers."
        )
    return [sentence]


def _of_torch(paper: PaperLedger, held: Mapping[Owner, float], theory: Mapping[Owner, float]) -> list[str]:
    """What torch's own engines hold otherwise than theory."""
    found = []
    buckets, params = held.get(Owner.REDUCE_BUCKET, 0), held.get(Owner.PARAMS, 0)
    if buckets:
        found.append(f"DDP keeps its buckets between steps, as large as the gradients: {format_bytes(buckets)}.")
    if paper.stage == 3 and not params:
        found.append(
            f"What FSDP2 shards are the master weights: there are no 16-bit parameters between steps, for which the "
            f"paper counts {format_bytes(theory.get(Owner.PARAMS, 0))}."
        )
    more = held.get(Owner.MASTER, 0) - theory.get(Owner.MASTER, 0)
    if paper.stage == 1 and more > _MINOR * theory.get(Owner.MASTER, 0):
        found.append(
            f"Whole parameters are dealt out to ranks, not equal shards: this rank keeps master weights and states of "
            f"{format_bytes(more)} more each than an equal share has."
        )
    return found


def _by_owner(lines: Iterable[LedgerLine]) -> dict[Owner, float]:
    found: dict[Owner, float] = {}
    for line in lines:
        found[line.owner] = found.get(line.owner, 0) + line.bytes
    return found
