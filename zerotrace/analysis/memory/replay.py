"""The allocator's history, replayed: when each block lived, and how many bytes it really took."""

from __future__ import annotations

from bisect import bisect_right, insort

import numpy as np
from msgspec import Struct

from zerotrace.ingest.snapshot import ACTIONS, Snapshot
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP = range(len(ACTIONS))

#: Sizes are rounded up to this, and small blocks split at it (``kMinBlockSize``).
MIN_BLOCK_BYTES = 512
#: Up to this a request is served from small segments; a large block is split only if more than this remains
#: (``kSmallSize``).
SMALL_BYTES = 1 << 20

#: ``start_event`` of what was allocated before the history began.
BEFORE = -1


class Lifetimes(Struct, frozen=True, kw_only=True, eq=False):
    """Every block that lived during the history, shape ``(n,)`` each."""

    address: Int64Array
    requested: Int64Array
    bytes: Int64Array
    """What the allocator gave: rounded up, and larger still where the rest was too small to split off."""
    start_event: Int64Array
    """Event that allocated it; :data:`BEFORE` if none did."""
    end_event: Int64Array
    """Event that freed it; the number of events if it is live at the end."""
    alloc_stack: Int64Array
    """Index into the snapshot's stacks; of a block from before the history what its last owner left, if anything."""
    free_stack: Int64Array
    alive: BoolArray
    """Whether it is live at the end."""
    num_events: int

    def live_at(self, event: int) -> BoolArray:
        """Which are live just after an event; ``BEFORE`` for the beginning."""
        return np.asarray((self.start_event <= event) & (self.end_event > event))

    def levels(self, chosen: BoolArray | None = None) -> Int64Array:
        """Allocated bytes at the beginning and after each event, shape ``(num_events + 1,)``.

        Args:
            chosen: which lifetimes to count; all by default.
        """
        picked = np.ones(self.bytes.size, dtype=bool) if chosen is None else chosen
        change = np.zeros(self.num_events + 1, dtype=np.int64)
        np.add.at(change, self.start_event[picked] + 1, self.bytes[picked])
        ended = picked & ~self.alive
        np.subtract.at(change, self.end_event[ended] + 1, self.bytes[ended])
        return np.cumsum(change)


def round_up(requested: Int64Array) -> Int64Array:
    """A request as the allocator rounds it: a multiple of 512 bytes, at least one."""
    return np.maximum(-(-requested // MIN_BLOCK_BYTES), 1) * MIN_BLOCK_BYTES


def replay(snapshot: Snapshot) -> Lifetimes:
    """Joins allocations and frees by address, and finds the size of every block.

    The size of a block that is live at the end stands in the snapshot. That of another follows from where it lay:
    the allocator takes a free stretch at its beginning and splits the rest off if that is more than 1 MiB (in small
    segments and expandable ones: if it is anything at all), and merges free neighbours at once. So a block reaches to
    the next live one, or to the end of its segment, unless more than 1 MiB lies between.
    """
    counted = np.flatnonzero((snapshot.event_action == ALLOC) | (snapshot.event_action == FREE_REQUESTED))
    order = counted[np.lexsort((counted, snapshot.event_address[counted]))]
    address, is_alloc = snapshot.event_address[order], snapshot.event_action[order] == ALLOC
    same_as_next = np.append(address[:-1] == address[1:], False) if order.size else np.empty(0, dtype=bool)
    freed_next = same_as_next & ~np.append(is_alloc[1:], False)
    num_events = snapshot.event_action.size

    allocs = np.flatnonzero(is_alloc)
    ends = np.where(same_as_next[allocs], order[np.minimum(allocs + 1, order.size - 1)], num_events)
    free_stack = np.where(freed_next[allocs], snapshot.event_stack[np.minimum(ends, max(num_events - 1, 0))], 0)
    # what is freed without an allocation before it was there when the history began
    orphans = np.flatnonzero(~is_alloc & ~np.append(False, freed_next[:-1] & is_alloc[:-1])[: order.size])
    untouched = ~np.isin(snapshot.block_address, address[allocs[ends == num_events]]) & snapshot.block_allocated

    joined = Lifetimes(
        address=np.concatenate([address[allocs], address[orphans], snapshot.block_address[untouched]]),
        requested=np.concatenate(
            [
                snapshot.event_bytes[order[allocs]],
                snapshot.event_bytes[order[orphans]],
                snapshot.block_requested[untouched],
            ]
        ),
        bytes=np.zeros(allocs.size + orphans.size + int(untouched.sum()), dtype=np.int64),
        start_event=np.concatenate([order[allocs], np.full(orphans.size + int(untouched.sum()), BEFORE)]),
        end_event=np.concatenate([ends, order[orphans], np.full(int(untouched.sum()), num_events)]),
        alloc_stack=np.concatenate(
            [
                snapshot.event_stack[order[allocs]],
                np.zeros(orphans.size, dtype=np.int64),
                snapshot.block_stack[untouched],
            ]
        ),
        free_stack=np.concatenate(
            [free_stack, snapshot.event_stack[order[orphans]], np.zeros(int(untouched.sum()), dtype=np.int64)]
        ),
        alive=np.concatenate([ends, np.zeros(orphans.size), np.full(int(untouched.sum()), num_events)]) == num_events,
        num_events=num_events,
    )
    joined.bytes[:] = _sizes(snapshot, joined)
    return joined


def _sizes(snapshot: Snapshot, lifetimes: Lifetimes) -> Int64Array:
    sizes = round_up(lifetimes.requested)
    in_snapshot = np.argsort(snapshot.block_address, kind="stable")
    places = np.searchsorted(snapshot.block_address[in_snapshot], lifetimes.address)
    places = in_snapshot[np.minimum(places, max(in_snapshot.size - 1, 0))] if in_snapshot.size else places
    known = lifetimes.alive.copy()
    if in_snapshot.size:
        known &= snapshot.block_address[places] == lifetimes.address
        sizes[known] = snapshot.block_bytes[places[known]]
    for index, size in _large_sizes(snapshot, lifetimes, sizes, ~known).items():
        sizes[index] = size
    return sizes


def _large_sizes(snapshot: Snapshot, lifetimes: Lifetimes, rounded: Int64Array, wanted: BoolArray) -> dict[int, int]:
    """Sizes of large blocks by walking through the history, with the live ones in the order of their addresses."""
    # a block that waits for a stream takes its place until that is done
    returned = _returned_at(snapshot, lifetimes)
    large = np.flatnonzero(rounded > SMALL_BYTES)
    steps = sorted(
        [(int(lifetimes.start_event[i]), 1, int(i)) for i in large if lifetimes.start_event[i] != BEFORE]
        + [(int(returned[i]), 0, int(i)) for i in large if returned[i] < lifetimes.num_events]
    )
    live = sorted(int(lifetimes.address[i]) for i in large if lifetimes.start_event[i] == BEFORE)
    segments = _Segments(snapshot)
    found: dict[int, int] = {}
    limit = snapshot.max_split_bytes
    for index in (int(i) for i in large if lifetimes.start_event[i] == BEFORE and wanted[i]):
        found[index] = _extent(int(lifetimes.address[index]), int(rounded[index]), live, segments, BEFORE, limit)
    for event, starts, index in steps:
        address = int(lifetimes.address[index])
        if not starts:
            place = bisect_right(live, address) - 1
            if place >= 0 and live[place] == address:
                del live[place]
            continue
        if wanted[index]:
            found[index] = _extent(address, int(rounded[index]), live, segments, event, limit)
        insort(live, address)
    return found


def _extent(address: int, rounded: int, live: list[int], segments: _Segments, event: int, limit: int | None) -> int:
    end, expandable = segments.end_of(address, event)
    if end is None or expandable:
        return rounded
    place = bisect_right(live, address)
    if place < len(live):
        end = min(end, live[place])
    rest = end - address - rounded
    splits = rest > SMALL_BYTES and (limit is None or rounded < limit)
    return rounded if splits or rest < 0 else rounded + rest


def _returned_at(snapshot: Snapshot, lifetimes: Lifetimes) -> Int64Array:
    """The event after which each block's place is free again: the first completed free of its address after its end."""
    completed = np.flatnonzero(snapshot.event_action == FREE_COMPLETED)
    order = completed[np.lexsort((completed, snapshot.event_address[completed]))]
    found = np.full(lifetimes.address.size, lifetimes.num_events, dtype=np.int64)
    if not order.size:
        return np.where(lifetimes.alive, found, lifetimes.end_event)
    # (address, event) as one sortable number: addresses by their rank
    distinct = np.unique(snapshot.event_address[order])
    stride = lifetimes.num_events + 1
    keys = np.searchsorted(distinct, snapshot.event_address[order]) * stride + order
    rank = np.searchsorted(distinct, lifetimes.address)
    wanted = rank * stride + np.minimum(lifetimes.end_event, lifetimes.num_events)
    place = np.searchsorted(keys, wanted)
    hit = place < keys.size
    same = hit.copy()
    same[hit] = snapshot.event_address[order[place[hit]]] == lifetimes.address[hit]
    found[same] = order[place[same]]
    found[lifetimes.alive] = lifetimes.num_events
    return found


class _Segments:
    """Where segments lay, at any event."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._spans: list[tuple[int, int, int, int, bool]] = []
        """Start, end, first and last event (exclusive) of each segment, and whether it is expandable."""
        num_events = snapshot.event_action.size
        begun: dict[int, int] = {}
        for event in np.flatnonzero(
            (snapshot.event_action == SEGMENT_ALLOC) | (snapshot.event_action == SEGMENT_FREE)
        ).tolist():
            address, size = int(snapshot.event_address[event]), int(snapshot.event_bytes[event])
            if snapshot.event_action[event] == SEGMENT_ALLOC:
                begun[address] = event
            else:
                self._spans.append((address, address + size, begun.pop(address, BEFORE), event, False))
        for start, size, expandable in zip(
            snapshot.segment_address.tolist(), snapshot.segment_bytes.tolist(), snapshot.segment_expandable.tolist()
        ):
            self._spans.append((start, start + size, begun.get(start, BEFORE), num_events, expandable))
        self._spans.sort()
        self._starts = [span[0] for span in self._spans]
        self._longest = max((end - start for start, end, *_ in self._spans), default=0)

    def end_of(self, address: int, event: int) -> tuple[int | None, bool]:
        """End of the segment that holds an address at an event, and whether it is expandable; ``None`` if unknown."""
        place = bisect_right(self._starts, address) - 1
        while place >= 0 and self._starts[place] > address - self._longest:
            _, end, first, last, expandable = self._spans[place]
            if address < end and first <= event < last:
                return end, expandable
            place -= 1
        return None, False
