"""The ladder of stages: what each rung saves, in theory, by DeepSpeed's ledger, and as measured."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from msgspec import Struct

from zerotrace.errors import LedgerError
from zerotrace.ledger import decoder_shapes, deepspeed_ledger, paper_ledger, read_settings
from zerotrace.model import EngineLedger, LadderStep, PaperLedger, RunManifest


class Rung(Struct, frozen=True, kw_only=True):
    """One run of a ladder: its ledgers, and what was resident on the rank that held most."""

    paper: PaperLedger
    deepspeed: EngineLedger
    resident_bytes: int


def rung(manifest: RunManifest) -> Rung | None:
    """The rung of a run; ``None`` where DeepSpeed's ledger or its resident bytes are unknown."""
    resident = [rank.resident_bytes for rank in manifest.ranks if rank.resident_bytes is not None]
    if manifest.stage is None or manifest.ds_config is None or not resident:
        return None
    shapes = decoder_shapes(manifest.model)
    try:
        settings = read_settings(manifest.ds_config, manifest.stage)
    except LedgerError:
        return None
    return Rung(
        paper=paper_ledger(shapes, manifest.stage, manifest.world_size),
        deepspeed=deepspeed_ledger(shapes, settings, manifest.world_size, device=manifest.ranks[0].device),
        resident_bytes=max(resident),
    )


def ladder(rungs: Sequence[Rung]) -> tuple[LadderStep, ...]:
    """What each stage saves over the one below it among the runs given.

    The error is the difference between the measured and the predicted drop, as a part of what is resident at the
    lower stage.

    Args:
        rungs: runs of one model on one number of ranks, in any order; of several of one stage the first counts.

    Raises:
        ValueError: if models or numbers of ranks differ.
    """
    if len({(r.paper.num_params, r.paper.world_size) for r in rungs}) > 1:
        raise ValueError("a ladder is of one model on one number of ranks")
    by_stage = {r.paper.stage: r for r in reversed(rungs)}
    stages = sorted(by_stage)
    return tuple(_step(by_stage[low], by_stage[high]) for low, high in pairwise(stages))


def _step(low: Rung, high: Rung) -> LadderStep:
    measured = low.resident_bytes - high.resident_bytes
    told = low.deepspeed.bytes - high.deepspeed.bytes
    return LadderStep(
        from_stage=low.paper.stage,
        to_stage=high.paper.stage,
        paper_bytes=low.paper.bytes - high.paper.bytes,
        deepspeed_bytes=told,
        measured_bytes=measured,
        error_ratio=(measured - told) / low.resident_bytes if low.resident_bytes else None,
    )
