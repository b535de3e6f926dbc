"""The memory ledger of a run: measured, on paper, and the difference by name."""

from __future__ import annotations

from collections.abc import Sequence

from zerotrace.analysis.memory.measure import by_owner
from zerotrace.analysis.memory.reconcile import reconcile_peak, reconcile_resident
from zerotrace.analysis.memory.torch_run import torch_ledger_of
from zerotrace.errors import LedgerError
from zerotrace.ledger import (
    Shapes,
    compare_ledgers,
    decoder_activations,
    decoder_shapes,
    deepspeed_ledger,
    paper_ledger,
    read_settings,
)
from zerotrace.model import (
    EngineLedger,
    MemoryCurve,
    MemoryReport,
    Owner,
    PaperLedger,
    ProfiledMemory,
    RankMemory,
    Reconciliation,
    RunManifest,
)


def memory_report(
    manifest: RunManifest | None,
    ranks: Sequence[RankMemory],
    profiled: Sequence[ProfiledMemory] = (),
    curve: MemoryCurve | None = None,
    paper: PaperLedger | None = None,
    contradiction: str | None = None,
) -> tuple[MemoryReport | None, str | None]:
    """Puts the memory ledger of a run together.

    Args:
        manifest: ``None`` for traces that came without one.
        ranks: measured memory, by rank.
        profiled: what the traces themselves tell.
        curve: the memory window of the rank that comes highest.
        paper: for traces without a manifest, where stage, Ψ and world size are known all the same.
        contradiction: why the manifest's stage cannot be the trace's; then no ledger is drawn up.

    Returns:
        The report; or ``None`` and the reason.
    """
    if manifest is None:
        if not profiled and paper is None:
            return None, "the traces have no manifest, which would name snapshots and hold the gauges"
        return MemoryReport(paper=paper, profiled=tuple(profiled), reason=_NO_MANIFEST), None
    theory = _paper(manifest) if contradiction is None else None
    held, refused = _ledger(manifest) if contradiction is None else (None, f"no ledger, since {contradiction}")
    with_owners = [memory for memory in ranks if memory.resident and _is_named(memory)]
    resident = peak = None
    if held is not None and theory is not None and with_owners:
        resident = _resident(with_owners, held, theory)
        peak = _peak(with_owners, held, theory)
    return (
        MemoryReport(
            ranks=tuple(ranks),
            paper=theory,
            deepspeed=held,
            resident=resident,
            peak=peak,
            curve=curve,
            profiled=tuple(profiled),
            reason=refused or _why_not_by_owner(manifest, ranks) or _why_not_named(ranks, with_owners),
        ),
        None,
    )


def _is_named(memory: RankMemory) -> bool:
    """Whether blocks have owners to be held against a ledger: without an owners file, stacks may tell few."""
    unnamed = by_owner(memory.resident).get(Owner.OTHER, 0)
    return memory.owners_file is not None or unnamed <= _MAX_UNNAMED * (memory.resident_bytes or 0)


def _why_not_named(ranks: Sequence[RankMemory], named: Sequence[RankMemory]) -> str | None:
    if named or not any(memory.resident for memory in ranks):
        return None
    return (
        "most of what is resident was allocated before the history began, and no owners file names it: it is not held "
        "against the ledgers"
    )


#: Without an owners file, what stacks leave without a name may be this part of what is resident.
_MAX_UNNAMED = 0.1

_NO_MANIFEST = "the traces have no manifest, so that there is no snapshot to tell owners by"


def theory_alone(stage: int | None, num_params: int | None, world_size: int | None) -> PaperLedger | None:
    """The paper's ledger of traces without a manifest, as far as their stage, Ψ and world size are told."""
    if stage is None or num_params is None or world_size is None:
        return None
    return paper_ledger(Shapes(num_params=num_params), stage, world_size)


def _paper(manifest: RunManifest) -> PaperLedger | None:
    """Of the stage, or of the one that shards the same states; on one device, what nothing shards."""
    scheme = manifest.sharing
    if scheme is None and manifest.world_size > 1:
        return None
    return paper_ledger(decoder_shapes(manifest.model), scheme.stage if scheme else 0, manifest.world_size)


def _ledger(manifest: RunManifest) -> tuple[EngineLedger | None, str | None]:
    if manifest.stage is None:
        return torch_ledger_of(manifest), None
    if manifest.ds_config is None:
        return None, None
    try:
        settings = read_settings(manifest.ds_config, manifest.stage)
    except LedgerError as error:
        return None, f"DeepSpeed's ledger cannot be drawn up: {error}"
    model = manifest.model
    device = "cpu" if manifest.device == "cpu" else manifest.ranks[0].device if manifest.ranks else None
    activations = decoder_activations(model, manifest.micro_batch, manifest.sequence, settings.param_bytes)
    return (
        deepspeed_ledger(decoder_shapes(model), settings, manifest.world_size, device=device, activations=activations),
        None,
    )


def _resident(memories: Sequence[RankMemory], held: EngineLedger, theory: PaperLedger) -> Reconciliation:
    memory = max(memories, key=lambda m: sum(entry.bytes for entry in m.resident))
    words = compare_ledgers(theory, held, by_owner(memory.resident))
    return reconcile_resident(memory, held, theory, words=words)


def _peak(memories: Sequence[RankMemory], held: EngineLedger, theory: PaperLedger) -> Reconciliation | None:
    return reconcile_peak(max(memories, key=lambda m: m.peak_bytes or 0), held, theory)


def _why_not_by_owner(manifest: RunManifest, ranks: Sequence[RankMemory]) -> str | None:
    if any(memory.peak for memory in ranks):
        return None
    if not any(memory.resident for memory in ranks):
        if any(record.owners_file or record.snapshot_file for record in manifest.ranks):
            return (
                "the files of the memory window are missing, cannot be read, or are not this run's (see the warnings)"
            )
        return "the capture had no memory window"
    if manifest.device == "cpu":
        return "torch keeps no history of a CPU's memory: shown is what the engine holds, and the peak is unknown"
    return "the snapshots hold no history, so that the peak is unknown"
