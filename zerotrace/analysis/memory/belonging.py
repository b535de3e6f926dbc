"""Whether the files of a memory window are of the rank and run that name them: what can be compared, is.

An owners file says which rank wrote it, what was allocated then, and where each storage lay; a snapshot has the blocks;
the manifest has the gauge of the timed window. Files that contradict one another are not used: what they would give
are figures of no rank.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zerotrace.ingest.owners import OwnedStorage, Owners
from zerotrace.ingest.snapshot import Snapshot
from zerotrace.model import Diagnostic, Level, RankRecord
from zerotrace.units import format_bytes

#: The gauge is that of other steps: what a program keeps from step to step may differ by this part of it.
GAUGE_TOLERANCE = 0.1

#: Owners file and snapshot are of one moment, and their totals the same.
_SAME_TOLERANCE = 0.01

#: Some storages are not the allocator's (shared with another process, or a library's): so much of their bytes.
_OUTSIDE_TOLERANCE = 0.1

_HINT = "put the files that this capture wrote back into the folder, or capture again"


class Believed(Struct, frozen=True, kw_only=True):
    """What is left of a rank's two files."""

    use_owners: bool
    use_snapshot: bool
    diagnostics: tuple[Diagnostic, ...] = ()


def check_files(
    record: RankRecord, owners: Owners | None, snapshot: Snapshot | None, owners_file: str, snapshot_file: str
) -> Believed:
    """Holds the files of one rank against the manifest, and against one another.

    A file that contradicts the manifest is not used. Where the two contradict each other alone, it is unknown which
    one is wrong, and neither is used.

    Args:
        record: the manifest's of the rank.
        owners: content of its owners file; ``None`` where there is none.
        snapshot: of the device with most allocated bytes; likewise.
        owners_file: name of the file.
        snapshot_file: name of the file.
    """
    notes: list[Diagnostic] = []
    use_owners, use_snapshot = owners is not None, snapshot is not None
    if owners is not None and owners.rank != record.rank:
        use_owners = False
        notes.append(_foreign(owners_file, f"written by rank {owners.rank}", record.rank))
        if snapshot is not None and lies_in(owners.storages, snapshot):
            use_snapshot = False
            notes.append(_foreign(snapshot_file, f"its blocks are those of rank {owners.rank}'s owners", record.rank))
    if use_snapshot and snapshot is not None and _misses(snapshot.allocated_bytes, record.resident_bytes):
        use_snapshot = False
        notes.append(_other_run(snapshot_file, snapshot.allocated_bytes, record))
    if use_owners and owners is not None and _misses(owners.allocated_bytes, record.resident_bytes):
        use_owners = False
        notes.append(_other_run(owners_file, owners.allocated_bytes, record))
    if use_owners and use_snapshot and owners is not None and snapshot is not None:
        conflict = find_conflict(owners, snapshot)
        if conflict is not None:
            use_owners = use_snapshot = False
            message = (
                f"{owners_file} and {snapshot_file} are not of one moment of one rank: {conflict}; neither is used"
            )
            notes.append(_warn("memory_files_contradict", message, owners_file))
    return Believed(use_owners=use_owners, use_snapshot=use_snapshot, diagnostics=tuple(notes))


def find_conflict(owners: Owners, snapshot: Snapshot) -> str | None:
    """Why an owners file and a snapshot cannot be of one moment of one rank: what was found, and what was expected.

    Returns:
        The sentence; ``None`` where nothing speaks against it.
    """
    kind, _, index = owners.device.partition(":")
    if kind != "cpu" and index.isdecimal() and int(index) != snapshot.device:
        return (
            f"the owners are those of {owners.device}, the snapshot is of device {snapshot.device}; expected the same"
        )
    allocated = owners.allocated_bytes
    if allocated is not None and abs(allocated - snapshot.allocated_bytes) > _SAME_TOLERANCE * allocated:
        return (
            f"{format_bytes(allocated)} were allocated when owners were listed, "
            f"{format_bytes(snapshot.allocated_bytes)} in the snapshot; expected the same"
        )
    here = _on_device(owners.storages, snapshot)
    total, inside = sum(storage.bytes for storage in here), _inside(here, snapshot)
    if total - inside > _OUTSIDE_TOLERANCE * total:
        return (
            f"{format_bytes(inside)} of the {format_bytes(total)} that have owners lie in live blocks of the snapshot; "
            "expected all of them"
        )
    return None


def lies_in(storages: Sequence[OwnedStorage], snapshot: Snapshot) -> bool:
    """Whether storages are those of a snapshot: most of their bytes lie in its live blocks."""
    here = _on_device(storages, snapshot)
    return bool(here) and _inside(here, snapshot) >= (1 - _OUTSIDE_TOLERANCE) * sum(s.bytes for s in here)


def _on_device(storages: Sequence[OwnedStorage], snapshot: Snapshot) -> list[OwnedStorage]:
    return [s for s in storages if s.device in (f"cuda:{snapshot.device}", f"xpu:{snapshot.device}")]


def _inside(storages: Sequence[OwnedStorage], snapshot: Snapshot) -> int:
    """Bytes of the storages that lie in a live block, whole."""
    order = np.argsort(snapshot.block_address, kind="stable")
    starts, sizes = snapshot.block_address[order], snapshot.block_bytes[order]
    if not storages or not order.size:
        return 0
    addresses = np.array([storage.address for storage in storages], dtype=np.int64)
    lengths = np.array([storage.bytes for storage in storages], dtype=np.int64)
    place = np.searchsorted(starts, addresses, side="right") - 1
    whole = (place >= 0) & (addresses + lengths <= starts[place] + sizes[place])
    return int(lengths[whole].sum())


def _misses(allocated: int | None, gauge: int | None) -> bool:
    return allocated is not None and gauge is not None and abs(allocated - gauge) > GAUGE_TOLERANCE * gauge


def _foreign(file: str, found: str, rank: int) -> Diagnostic:
    message = f"{file}: {found}; expected rank {rank}, for which the manifest names it; it is not used"
    return _warn("memory_of_another_rank", message, file)


def _other_run(file: str, allocated: int | None, record: RankRecord) -> Diagnostic:
    message = (
        f"{file}: {format_bytes(allocated)} were allocated; expected about {format_bytes(record.resident_bytes)}, the "
        f"manifest's gauge of rank {record.rank}: it is of another run or rank, and not used"
    )
    return _warn("memory_of_another_run", message, file)


def _warn(code: str, message: str, file: str) -> Diagnostic:
    return Diagnostic(code=code, level=Level.WARNING, file=file, message=message, hint=_HINT)
