"""One device's memory, measured: by owner between steps and at the peak, and over the history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.memory.naming import Names, name_blocks, part_of_holder, total_by_name
from zerotrace.analysis.memory.replay import (
    SEGMENT_ALLOC,
    SEGMENT_FREE,
    SEGMENT_MAP,
    SEGMENT_UNMAP,
    Lifetimes,
    replay,
)
from zerotrace.ingest.owners import OwnedStorage, UnlocatedStorage
from zerotrace.ingest.snapshot import Frame, Snapshot
from zerotrace.intervals import Int64Array
from zerotrace.model import MemoryCurve, OwnedBytes, Owner, OwnerCurve, RankMemory
from zerotrace.schema import MEMORY
from zerotrace.tables import int_array, ints

#: Points of a reduced timeline.
CURVE_POINTS = 120


class Measurement(Struct, frozen=True, kw_only=True, eq=False):
    """What a snapshot says: the figures, and the level of each owner after each event."""

    memory: RankMemory
    timeline: pa.Table
    """Rows of :data:`zerotrace.schema.MEMORY`."""

    @property
    def curve(self) -> MemoryCurve | None:
        """The timeline, reduced for a figure; ``None`` where there is no history."""
        return _curve(self.timeline, self.memory.rank or 0) if self.memory.num_events else None


def measure(
    snapshot: Snapshot,
    storages: Sequence[OwnedStorage] = (),
    rank: int | None = None,
    unlocated: Sequence[UnlocatedStorage] = (),
) -> Measurement:
    """Measures one device.

    Args:
        snapshot: the allocator's.
        storages: what the engine held at the same moment; none where there is no owners file.
        rank: for the tables.
        unlocated: what the engine held at places that nobody can tell.
    """
    lifetimes = replay(snapshot)
    names = name_blocks(snapshot, lifetimes, storages, unlocated)
    resident = total_by_name(lifetimes, names, lifetimes.alive)
    memory = RankMemory(
        rank=rank,
        device=snapshot.device,
        resident=resident,
        resident_bytes=snapshot.allocated_bytes,
        reserved_bytes=snapshot.reserved_bytes,
        fragmentation_bytes=snapshot.reserved_bytes - snapshot.allocated_bytes,
        rounding_bytes=sum(entry.bytes - entry.requested_bytes for entry in resident),
        num_events=lifetimes.num_events,
    )
    memory = _with_peak(memory, snapshot, lifetimes, names)
    return Measurement(memory=memory, timeline=_timeline(snapshot, lifetimes, names, rank))


def engine_alone(storages: Iterable[OwnedStorage | UnlocatedStorage]) -> tuple[OwnedBytes, ...]:
    """What an engine holds by owner, where there is no snapshot: on CPU, most bytes first."""
    found: dict[tuple[Owner, str], list[int]] = {}
    for storage in storages:
        found.setdefault((storage.owner, part_of_holder(storage.holder)), []).append(storage.bytes)
    entries = [
        OwnedBytes(owner=owner, part=part, bytes=sum(sizes), requested_bytes=sum(sizes), num_blocks=len(sizes))
        for (owner, part), sizes in found.items()
    ]
    return tuple(sorted(entries, key=lambda entry: (-entry.bytes, entry.owner.value, entry.part)))


def by_owner(entries: Iterable[OwnedBytes]) -> dict[Owner, int]:
    """Bytes of each owner, most first."""
    found: dict[Owner, int] = {}
    for entry in entries:
        found[entry.owner] = found.get(entry.owner, 0) + entry.bytes
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _with_peak(memory: RankMemory, snapshot: Snapshot, lifetimes: Lifetimes, names: Names) -> RankMemory:
    if not lifetimes.num_events:
        return memory
    levels = lifetimes.levels()
    event = int(levels.argmax()) - 1
    times = snapshot.event_time_ns
    return replace(
        memory,
        peak=total_by_name(lifetimes, names, lifetimes.live_at(event)),
        peak_bytes=int(levels.max()),
        peak_reserved_bytes=int(_reserved(snapshot)[event + 1]),
        peak_phase=_phase(snapshot.stacks[snapshot.event_stack[event]]) if event >= 0 else None,
        peak_after_ns=int(times[event] - times[0]) if event >= 0 and times[0] else None,
    )


def _phase(stack: Sequence[Frame]) -> str | None:
    """What the process was doing: nothing in Python means that autograd was at work, on its own thread."""
    for file, function, _ in stack:
        if "torch/optim/" in file or ("runtime/engine.py" in file and function in ("step", "_take_model_step")):
            return "step"
    functions = {function for _, function, _ in stack}
    if not stack or "backward" in functions:
        return "backward"
    return "forward" if "forward" in functions else None


def _curve(timeline: pa.Table, rank: int) -> MemoryCurve | None:
    times, levels = ints(timeline, "time_ns"), ints(timeline, "allocated_bytes")
    if not times.size or times[-1] <= times[0]:
        return None
    stretch = np.minimum((times - times[0]) * CURVE_POINTS // (times[-1] - times[0]), CURVE_POINTS - 1)
    # rows by stretch, the highest last; the last row of each stretch is its highest instant
    order = np.lexsort((levels, stretch))
    last = np.append(np.diff(stretch[order]) != 0, True)
    chosen = order[last]
    columns = {owner: ints(timeline, f"{owner.value}_bytes")[chosen] for owner in Owner}
    return MemoryCurve(
        rank=rank,
        after_ns=tuple((times[chosen] - times[0]).tolist()),
        owners=tuple(
            OwnerCurve(owner=owner, bytes=tuple(values.tolist())) for owner, values in columns.items() if values.any()
        ),
    )


def _timeline(snapshot: Snapshot, lifetimes: Lifetimes, names: Names, rank: int | None) -> pa.Table:
    """Bytes of each owner at the beginning, and after each event that changes anything."""
    allocated, reserved = lifetimes.levels(), _reserved(snapshot)
    changed = np.append(True, (np.diff(allocated) != 0) | (np.diff(reserved) != 0))
    times = np.append(snapshot.event_time_ns[:1], snapshot.event_time_ns) if lifetimes.num_events else np.zeros(1, int)
    columns: dict[str, Int64Array] = {
        "rank": np.full(allocated.size, -1 if rank is None else rank),
        "device": np.full(allocated.size, snapshot.device),
        "event": np.arange(-1, lifetimes.num_events),
        "time_ns": times,
        "allocated_bytes": allocated,
        "reserved_bytes": reserved,
        **{f"{owner.value}_bytes": lifetimes.levels(names.owned_by(owner)) for owner in Owner},
    }
    schema = MEMORY.arrow()
    arrays = [int_array(columns[field.name][changed], None, field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _reserved(snapshot: Snapshot) -> Int64Array:
    """Reserved bytes at the beginning and after each event, shape ``(num_events + 1,)``."""
    action = snapshot.event_action
    grows = np.isin(action, (SEGMENT_ALLOC, SEGMENT_MAP)).astype(np.int64)
    shrinks = np.isin(action, (SEGMENT_FREE, SEGMENT_UNMAP)).astype(np.int64)
    change = np.cumsum((grows - shrinks) * snapshot.event_bytes)
    total = int(change[-1]) if change.size else 0
    return snapshot.reserved_bytes - total + np.append(np.int64(0), change)
