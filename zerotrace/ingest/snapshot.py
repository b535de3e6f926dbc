"""Allocator snapshots to columns: what ``torch.cuda.memory._snapshot()`` returned, as a pickle on disk.

Sizes and states follow ``c10/cuda/CUDACachingAllocator.cpp`` and ``torch/csrc/cuda/memory_snapshot.cpp`` of torch 2.4
to 2.13: a *segment* is what the driver gave, a *block* a part of it; an *event* of the history has the size that was
requested, a block the one that was given.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from zerotrace.errors import SnapshotError
from zerotrace.ingest.files import name_of
from zerotrace.ingest.pickles import FEWER_STEPS, TAKE_AGAIN, PickleLimits, load_plain
from zerotrace.ingest.unpack import GZIP_MAGIC, BadGzipError, TooLargeError, UnpackLimits, gunzip
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray

_CHECK_PATH = "check the path, and that the file may be read"

#: Events of the history that say how much is allocated or reserved, by their code in :attr:`Snapshot.event_action`.
ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap")

# C++ frames, which snapshots with stacks="all" have too, say where torch is and not whose a block is.
_PYTHON_ENDS = (".py", ">")

# Sums of sizes, and times in nanoseconds, stay within int64.
_MAX_SUM = 1 << 61
_MAX_TIME_US = 1 << 52
_MAX_DEVICE = 1 << 15

#: A Python frame: source file from its package on, function, line.
Frame = tuple[str, str, int]


class Snapshot(Struct, frozen=True, kw_only=True, eq=False):
    """One device's memory as its process saw it. Addresses and sizes are int64 bytes, shape ``(n,)`` a group."""

    device: int
    segment_address: Int64Array
    segment_bytes: Int64Array
    segment_expandable: BoolArray
    block_address: Int64Array
    """Live blocks only: allocated, or freed and waiting for a stream."""
    block_bytes: Int64Array
    block_requested: Int64Array
    block_allocated: BoolArray
    """False where the block is freed and waits for a stream."""
    block_stack: Int64Array
    """Index into ``stacks``."""
    event_action: Int64Array
    """Index into :data:`ACTIONS`, oldest first."""
    event_address: Int64Array
    event_bytes: Int64Array
    event_time_ns: Int64Array
    """Nanoseconds since the Unix epoch, to the microsecond; 0 where the writer did not say."""
    event_stack: Int64Array
    stacks: tuple[tuple[Frame, ...], ...]
    """The distinct Python stacks, innermost frame first; the first one is empty."""
    max_split_bytes: int | None = None
    """``max_split_size`` of the allocator's settings; ``None`` where blocks of any size are split."""

    @property
    def allocated_bytes(self) -> int:
        """Σ allocated blocks: what ``memory_allocated`` says."""
        return int(self.block_bytes[self.block_allocated].sum())

    @property
    def reserved_bytes(self) -> int:
        """Σ segments: what ``memory_reserved`` says."""
        return int(self.segment_bytes.sum())


def read_snapshot(path: Path, limits: PickleLimits | None = None) -> tuple[list[Snapshot], str]:
    """Reads a snapshot file without running anything of it.

    Args:
        path: a pickle of ``torch.cuda.memory._snapshot()``, gzipped or not.
        limits: how large it may be.

    Returns:
        The snapshot of each device that holds anything, most allocated bytes first, and the BLAKE2b-128 digest of
        the file as it lies on disk.

    Raises:
        SnapshotError: ``unreadable``, ``pickle_refused``, ``pickle_too_large``, ``pickle_invalid``, or
            ``snapshot_invalid`` for a sound pickle of something else.
    """
    limits = limits or PickleLimits()
    file = name_of(path)
    data = _read(path, limits)
    digest = hashlib.blake2b(data, digest_size=16).hexdigest()
    content = load_plain(_unpacked(data, file, limits), file, limits)
    try:
        devices = _by_device(content)
        found = [_Reader(content, limits).device(device) for device in devices]
    except (KeyError, TypeError, ValueError, OverflowError, IndexError, AttributeError, _OddPart) as error:
        raise SnapshotError(
            f"{file}: no allocator snapshot: {_what_is_wrong(content, error)}",
            code="snapshot_invalid",
            hint="expected is what torch.cuda.memory._snapshot() returns: a dict with segments and device_traces",
        ) from error
    if not found:
        raise SnapshotError(
            f"{file}: a snapshot without segments: nothing was allocated",
            code="snapshot_invalid",
            hint="take it in the process that trains, after a step",
        )
    return sorted(found, key=lambda snapshot: -snapshot.allocated_bytes), digest


class _OddPart(Exception):  # noqa: N818 - never leaves this module
    """A part that no snapshot has."""


def _what_is_wrong(content: Any, error: Exception) -> str:
    """The first thing that is not as torch writes it."""
    if not isinstance(content, Mapping):
        return f"it holds {'nothing' if content is None else f'one {type(content).__name__}'} where a dict is expected"
    if isinstance(error, KeyError):
        return f"{error.args[0]} is missing" + ("" if error.args[0] == "segments" else " in a part of it")
    if isinstance(error, _OddPart):
        return str(error)
    return "a part of it is of another kind than torch writes"


def _read(path: Path, limits: PickleLimits) -> bytes:
    file = name_of(path)
    try:
        size = path.stat().st_size
        if not path.is_file():
            raise SnapshotError(f"{file}: no regular file", code="unreadable", hint=_CHECK_PATH)
        if size > limits.file_bytes:
            raise SnapshotError(
                f"{file}: too large for a snapshot: {size:,} bytes, at most {limits.file_bytes:,}",
                code="pickle_too_large",
                hint=FEWER_STEPS,
            )
        return path.read_bytes()
    except OSError as error:
        raise SnapshotError(f"{file}: cannot be read: {error.strerror}", code="unreadable", hint=_CHECK_PATH) from error


def _unpacked(data: bytes, file: str, limits: PickleLimits) -> bytes:
    if not data.startswith(GZIP_MAGIC):
        return data
    try:
        return gunzip(data, UnpackLimits(unpacked_bytes=limits.unpacked_bytes, ratio=None))
    except TooLargeError as error:
        raise SnapshotError(
            f"{file}: too large for a snapshot: {error}", code="pickle_too_large", hint=FEWER_STEPS
        ) from error
    except EOFError as error:
        raise SnapshotError(
            f"{file}: truncated: the gzip stream has no end", code="pickle_invalid", hint=TAKE_AGAIN
        ) from error
    except BadGzipError as error:
        raise SnapshotError(
            f"{file}: not a sound gzip file: {error}", code="pickle_invalid", hint=TAKE_AGAIN
        ) from error


def _by_device(content: Any) -> list[int]:
    devices = sorted({segment["device"] for segment in content["segments"]})
    if devices and not 0 <= devices[0] <= devices[-1] <= _MAX_DEVICE:
        raise _OddPart("the number of a device in it is none")
    return devices


class _Reader:
    """Walks a snapshot to a fixed depth, on a budget: where parts are shared, a walk is longer than the file."""

    def __init__(self, content: Mapping[str, Any], limits: PickleLimits) -> None:
        self._content = content
        self._budget = 16 * limits.num_containers  # of frames, which are many
        self._stacks: list[tuple[Frame, ...]] = [()]
        self._by_content: dict[tuple[Frame, ...], int] = {(): 0}
        self._by_identity: dict[tuple[int, ...], int] = {}

    def device(self, device: int) -> Snapshot:
        segments = [segment for segment in self._content["segments"] if segment["device"] == device]
        self._spend(len(segments))
        blocks = [block for segment in segments for block in self._blocks(segment)]
        traces = self._content.get("device_traces") or []
        entries = traces[device] if device < len(traces) else []
        self._spend(len(entries))
        numbers = {name: code for code, name in enumerate(ACTIONS)}
        events = [entry for entry in entries if entry["action"] in numbers]
        max_split = (self._content.get("allocator_settings") or {}).get("max_split_size", -1)
        return Snapshot(
            device=device,
            segment_address=_int64([segment["address"] for segment in segments]),
            segment_bytes=_sizes([segment["total_size"] for segment in segments]),
            segment_expandable=np.array([bool(segment.get("is_expandable")) for segment in segments], dtype=bool),
            block_address=_int64([address for address, _ in blocks]),
            block_bytes=_sizes([block["size"] for _, block in blocks]),
            block_requested=_sizes([block.get("requested_size", block["size"]) for _, block in blocks]),
            block_allocated=np.array([block["state"] == "active_allocated" for _, block in blocks], dtype=bool),
            block_stack=_int64([self._stack(block.get("frames")) for _, block in blocks]),
            event_action=_int64([numbers[entry["action"]] for entry in events]),
            event_address=_int64([entry["addr"] for entry in events]),
            event_bytes=_sizes([entry["size"] for entry in events]),
            event_time_ns=_times([entry.get("time_us", 0) for entry in events]) * 1000,
            event_stack=_int64([self._stack(entry.get("frames")) for entry in events]),
            stacks=tuple(self._stacks),
            max_split_bytes=max_split if isinstance(max_split, int) and max_split > 0 else None,
        )

    def _blocks(self, segment: Mapping[str, Any]) -> list[tuple[int, Mapping[str, Any]]]:
        """Address and content of the live blocks of a segment. Old snapshots leave addresses out: blocks adjoin."""
        blocks: Sequence[Mapping[str, Any]] = segment["blocks"]
        self._spend(len(blocks))
        address, found = segment["address"], []
        for block in blocks:
            address = block.get("address", address)
            if block["state"] != "inactive":
                found.append((address, block))
            address += block["size"]
        return found

    def _stack(self, frames: Sequence[Mapping[str, Any]] | None) -> int:
        if not frames:
            return 0
        self._spend(len(frames))
        # the writer repeats frames far more often than it writes new ones
        identity = tuple(map(id, frames))
        known = self._by_identity.get(identity)
        if known is not None:
            return known
        python = (frame for frame in frames if str(frame["filename"]).endswith(_PYTHON_ENDS))
        stack = tuple((str(frame["filename"]), str(frame["name"]), int(frame["line"])) for frame in python)
        number = self._by_content.setdefault(stack, len(self._stacks))
        if number == len(self._stacks):
            self._stacks.append(stack)
        self._by_identity[identity] = number
        return number

    def _spend(self, count: int) -> None:
        self._budget -= count
        if self._budget < 0:
            raise _OddPart("it has more parts than a snapshot")


def _int64(values: Sequence[Any]) -> Int64Array:
    # a float would be rounded in silence
    if not {int}.issuperset(map(type, values)):
        raise _OddPart("a size or an address in it is no whole number")
    return np.array(values, dtype=np.int64)


def _sizes(values: Sequence[Any]) -> Int64Array:
    sizes = _int64(values)
    if values and (min(values) < 0 or sum(values) > _MAX_SUM):
        raise _OddPart("a size in it is negative, or together they are of no memory that there is")
    return sizes


def _times(values: Sequence[Any]) -> Int64Array:
    times = _int64(values)
    if values and not 0 <= min(values) <= max(values) <= _MAX_TIME_US:
        raise _OddPart("a time in it is none")
    return times
