"""Measured memory held against the ledgers, owner by owner, until what is left has no name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zerotrace.model import (
    EngineLedger,
    LedgerLine,
    OwnedBytes,
    Owner,
    OwnerGap,
    PaperLedger,
    PeakLedger,
    RankMemory,
    Reconciliation,
)
from zerotrace.units import format_bytes

# A gap below this needs no words: flags, norms, a batch.
_SMALL_BYTES = 1 << 20


def reconcile_resident(
    memory: RankMemory, deepspeed: EngineLedger, paper: PaperLedger, *, words: Sequence[str] = ()
) -> Reconciliation:
    """What a rank holds between steps, beside the ledgers.

    Args:
        memory: measured, with owners.
        deepspeed: the resident lines are used.
        paper: of the same stage.
        words: sentences on the whole.
    """
    return _reconcile("resident", memory, memory.resident, deepspeed.lines, paper, words)


def reconcile_peak(memory: RankMemory, deepspeed: EngineLedger, paper: PaperLedger) -> Reconciliation | None:
    """What a rank held at its peak, beside the instant of the step's ledger that fits it best.

    Returns:
        ``None`` where no history was recorded.
    """
    if memory.peak_bytes is None or not memory.peak:
        return None
    instants = [peak for peak in deepspeed.peaks if (peak.instant == "step") == (memory.peak_phase == "step")]
    found = [_at(instant, memory, deepspeed, paper) for instant in instants]
    return min(found, key=_distance)


def _distance(found: Reconciliation) -> int:
    # workspaces are made when they are first needed, and tell no instant from another
    return sum(abs(gap.gap_bytes or 0) for gap in found.owners if gap.owner is not Owner.WORKSPACE)


def _at(instant: PeakLedger, memory: RankMemory, deepspeed: EngineLedger, paper: PaperLedger) -> Reconciliation:
    return _reconcile(instant.instant, memory, memory.peak, (*deepspeed.lines, *instant.lines), paper, ())


def _reconcile(
    instant: str,
    memory: RankMemory,
    measured: Sequence[OwnedBytes],
    lines: Sequence[LedgerLine],
    paper: PaperLedger,
    words: Sequence[str],
) -> Reconciliation:
    owners = [
        _gap(owner, [e for e in measured if e.owner is owner], [x for x in lines if x.owner is owner], paper, instant)
        for owner in Owner
    ]
    owners = [gap for gap in owners if gap.measured_bytes or gap.deepspeed_bytes or gap.paper_bytes]
    total = sum(entry.bytes for entry in measured)
    unexplained = sum(gap.unexplained_bytes for gap in owners)
    told = sum(gap.measured_bytes if gap.deepspeed_bytes is None else gap.deepspeed_bytes for gap in owners)
    return Reconciliation(
        rank=memory.rank or 0,
        instant=instant,
        measured_bytes=total,
        deepspeed_bytes=told,
        paper_bytes=paper.bytes,
        gap_bytes=total - told,
        owners=tuple(sorted(owners, key=lambda gap: (-gap.measured_bytes, gap.owner.value))),
        unexplained_bytes=unexplained,
        unexplained_ratio=unexplained / total if total else 0.0,
        words=tuple(words),
    )


def _gap(
    owner: Owner, measured: Sequence[OwnedBytes], lines: Sequence[LedgerLine], paper: PaperLedger, instant: str
) -> OwnerGap:
    """One owner's gap, split into the allocator's rounding and the rest."""
    held, asked = sum(entry.bytes for entry in measured), sum(entry.requested_bytes for entry in measured)
    told = round(sum(line.bytes for line in lines))
    told_rounding = sum(line.rounding_bytes for line in lines)
    # activations are in the paper of no stage, and in a ledger only for models that it knows
    unknown = owner is Owner.ACTIVATIONS and instant != "resident" and not lines
    rounding = (held - asked) - told_rounding
    rest = held - told - rounding
    words = _words(owner, rest, rounding, instant, unknown)
    late = owner is Owner.WORKSPACE and instant == "loss" and rest < 0
    gap = None if unknown else held - told
    unexplained = 0 if owner is Owner.ACTIVATIONS or late else abs(rest)
    unexplained = abs(held - told) if owner is Owner.OTHER else unexplained
    return OwnerGap(
        owner=owner,
        measured_bytes=held,
        deepspeed_bytes=None if unknown else told,
        paper_bytes=sum(line.bytes for line in paper.lines if line.owner is owner),
        gap_bytes=gap,
        unexplained_bytes=unexplained,
        explained_bytes=explained_bytes(gap, unexplained),
        words=words,
    )


def explained_bytes(gap: int | None, unexplained: int) -> int:
    """The part of a gap that has a name, with the sign of the gap; zero where there is none.

    Args:
        gap: ``measured − DeepSpeed's``; ``None`` where the ledger cannot tell.
        unexplained: the part without a name, without its sign.
    """
    size = max(abs(gap or 0) - unexplained, 0)
    return -size if (gap or 0) < 0 else size


def _words(owner: Owner, rest: int, rounding: int, instant: str, unknown: bool) -> str | None:
    parts = []
    if unknown:
        parts.append("outside ZeRO: measured by stack; the ledger does not know this model's activations")
    elif owner is Owner.ACTIVATIONS and instant == "resident" and rest > _SMALL_BYTES:
        parts.append(f"{format_bytes(rest)} outlive the step: the program holds on to a loss, logits or a graph")
    elif owner is Owner.ACTIVATIONS and abs(rest) > _SMALL_BYTES:
        more = "more" if rest > 0 else "less"
        parts.append(
            f"{format_bytes(abs(rest))} {more} than the estimate of what forward keeps: backward's temporaries"
        )
    if abs(rounding) > _SMALL_BYTES:
        more = "more" if rounding > 0 else "less"
        parts.append(
            f"{format_bytes(abs(rounding))} {more} of the allocator's rounding than fresh segments give: tensors took "
            "places that others had left"
        )
    return "; ".join(parts) or None


def differences_between_ranks(memories: Iterable[RankMemory]) -> tuple[int | None, int | None]:
    """Largest minus smallest resident bytes, and peak bytes, over ranks; ``None`` where fewer than two are known."""
    resident = [m.resident_bytes for m in memories if m.resident_bytes is not None]
    peak = [m.peak_bytes for m in memories if m.peak_bytes is not None]
    return _range(resident), _range(peak)


def _range(values: Sequence[int]) -> int | None:
    return max(values) - min(values) if len(values) > 1 else None
