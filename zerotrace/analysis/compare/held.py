"""The memory of a run by owner, between steps and at the peak, beside both ledgers."""

from __future__ import annotations

from collections.abc import Mapping

from zerotrace.analysis.captured import CapturedRun
from zerotrace.analysis.memory.measure import by_owner
from zerotrace.analysis.memory.report import memory_report
from zerotrace.model import HeldMemory, MemoryReport, Owner, OwnerBytes


def held_memory(run: CapturedRun) -> tuple[HeldMemory, HeldMemory]:
    """Resident and peak of a run.

    Owners are those of the rank that holds most between steps, and of the one that comes highest. The ledgers need
    no analysis: they follow from the manifest.
    """
    memory = run.analysis.memory if run.analysis else None
    if memory is None:
        memory, _ = memory_report(run.manifest, ())
    if memory is None:
        return HeldMemory(), HeldMemory()
    told = memory.deepspeed
    knows_peak = told is not None and told.activations_bytes is not None
    resident = _held(
        _fullest(memory), memory.paper.bytes if memory.paper else None, told.bytes if told is not None else None
    )
    return resident, _held(_highest(memory), None, told.peak_bytes if told is not None and knows_peak else None)


def _held(owners: Mapping[Owner, int], paper: float | None, deepspeed: int | None) -> HeldMemory:
    found = sorted(((owner, size) for owner, size in owners.items() if size), key=lambda item: -item[1])
    return HeldMemory(
        owners=tuple(OwnerBytes(owner=owner, bytes=size) for owner, size in found),
        owners_bytes=sum(size for _, size in found) if found else None,
        paper_bytes=paper,
        deepspeed_bytes=deepspeed,
    )


def _fullest(memory: MemoryReport) -> Mapping[Owner, int]:
    """Between steps, on the rank that holds most."""
    return max((by_owner(rank.resident) for rank in memory.ranks), key=lambda sizes: sum(sizes.values()), default={})


def _highest(memory: MemoryReport) -> Mapping[Owner, int]:
    """At the peak, on the rank that comes highest."""
    return max((by_owner(rank.peak) for rank in memory.ranks), key=lambda sizes: sum(sizes.values()), default={})
