"""The owners files that ``zerotrace capture`` writes beside snapshots: who holds which storage."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from zerotrace.errors import SnapshotError
from zerotrace.ingest.files import name_of
from zerotrace.model import Owner

#: Major version of the format that is read, see :mod:`zerotrace.capture.owners`.
OWNERS_VERSION = 1


class OwnedStorage(msgspec.Struct, frozen=True, gc=False):
    """One storage that the engine holds."""

    address: int
    bytes: int
    device: str
    owner: Owner
    holder: str
    num_tensors: int = 1


class UnlocatedStorage(msgspec.Struct, frozen=True, gc=False):
    """One storage that is there, but whose address nobody can tell: a bucket of torch's DDP."""

    bytes: int
    device: str
    owner: Owner
    holder: str


class Owners(msgspec.Struct, frozen=True):
    """What one rank's engine held after the last step of the memory window."""

    version: int
    rank: int
    device: str
    storages: list[OwnedStorage]
    allocated_bytes: int | None = None
    peak_bytes: int | None = None
    """``max_memory_allocated`` over the memory window."""
    reserved_bytes: int | None = None
    workspace_bytes: int | None = None
    """What the libraries' workspaces held before the window."""
    unlocated: list[UnlocatedStorage] = msgspec.field(default_factory=list)


def read_owners(path: Path) -> tuple[Owners, str]:
    """Reads an owners file.

    Returns:
        Its content, and the BLAKE2b-128 digest of the file.

    Raises:
        SnapshotError: ``unreadable``, ``owners_invalid`` or ``version_unknown``.
    """
    file = name_of(path)
    try:
        data = path.read_bytes()
        owners = msgspec.json.decode(data, type=Owners)
    except OSError as error:
        raise SnapshotError(
            f"{file}: cannot be read: {error.strerror}",
            code="unreadable",
            hint="check the path, and that the file may be read",
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise SnapshotError(
            f"{file}: no owners file: {error}",
            code="owners_invalid",
            hint="expected is rank_N.owners.json as `zerotrace capture` wrote it; capture again, or leave it out",
        ) from error
    if owners.version != OWNERS_VERSION:
        raise SnapshotError(
            f"{file}: version {owners.version} of the format, this zerotrace reads {OWNERS_VERSION}",
            code="version_unknown",
            hint="use the zerotrace that wrote it",
        )
    return owners, hashlib.blake2b(data, digest_size=16).hexdigest()
