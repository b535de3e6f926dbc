"""Blocking time a second time: by what streams and calls had to wait for, beside what launches tell.

By launches, exposed time is queued when the next compute kernel had been launched, and sync when its thread was
inside a synchronising call. Both take it that what runs meanwhile is what is waited for. The ``cuda_sync`` rows say
whether it is: queued time is confirmed while a collective runs for which the kernel had to wait, sync time while one
runs for which the call had to wait. Whatever cannot have waited, since it began or returned before the collective
had ended, is not confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.causes import DeviceRows, Pieces
from zerotrace.analysis.launches import Launches, on_device
from zerotrace.analysis.partition import DeviceCauses
from zerotrace.analysis.waits import NO_STREAM, StreamWaits, SyncCalls, find_sync_calls, find_waits, read_sync_rows
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import BlockingCheck, BlockingEvidence, Category, StepPartition
from zerotrace.tables import BoolArray, equals, ints
from zerotrace.units import format_ns, format_ratio


class RankEvidence(Struct, frozen=True, kw_only=True):
    """What the waits of one rank say of its blocking time."""

    num_waits: int
    num_named_waits: int
    steps: tuple[BlockingEvidence, ...]


class Waiting(Struct, frozen=True, eq=False):
    """What the streams and the host were made to wait for on one device, over the whole trace."""

    waits: StreamWaits
    calls: SyncCalls


def find_waiting(events: pa.Table, device: int | None, launches: Launches) -> Waiting | None:
    """The waits of one device; ``None`` where the trace has no ``cuda_sync`` rows.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        device: device index; ``None`` for the host, which waits for itself alone.
        launches: launches of ``events``.
    """
    rows = None if device is None else read_sync_rows(events, device)
    if rows is None:
        return None
    comm = on_device(events) & (ints(events, "device") == device) & equals(events, "category", Category.COMM.value)
    waits = find_waits(rows, np.unique(ints(events, "stream")[comm]))
    return Waiting(waits, find_sync_calls(rows, events, launches))


def blocking_evidence(
    why: DeviceCauses, waiting: Waiting, launches: Launches, partition: Sequence[StepPartition]
) -> Iterator[BlockingEvidence]:
    """Compares both readings for each step on one device.

    Args:
        why: what launches tell of the device while the steps last.
        waiting: its waits.
        launches: launches of the same rows.
        partition: steps by the host's windows.
    """
    rows, device = why.rows, why.time.device
    queued = why.held.queued & _confirmed_queued(why.pieces, rows, waiting.waits)
    sync, recorded = _confirmed_sync(why.pieces, rows, waiting, launches)
    sync, unrecorded = why.held.sync & sync, why.held.sync - recorded
    for part in partition:
        if part.device != device or device is None or part.blocking_queued_ns is None or part.blocking_sync_ns is None:
            continue
        yield BlockingEvidence(
            rank=part.rank,
            device=device,
            step=part.step,
            queued_ns=part.blocking_queued_ns,
            queued_confirmed_ns=_inside(queued, part),
            sync_ns=part.blocking_sync_ns,
            sync_confirmed_ns=_inside(sync, part),
            sync_unrecorded_ns=_inside(unrecorded, part),
        )


def check_blocking(found: Sequence[RankEvidence]) -> BlockingCheck | None:
    """Both readings over all ranks, with what the comparison says; ``None`` where no trace has ``cuda_sync`` rows."""
    steps = tuple(step for evidence in found for step in evidence.steps)
    if not steps:
        return None
    num_waits = sum(evidence.num_waits for evidence in found)
    num_named = sum(evidence.num_named_waits for evidence in found)
    blocking_ns = sum(step.blocking_ns for step in steps)
    ratio = sum(step.confirmed_ns for step in steps) / blocking_ns if blocking_ns else None
    return BlockingCheck(
        sentence=_sentence(steps, ratio),
        num_waits=num_waits,
        num_named_waits=num_named,
        confirmed_ratio=ratio,
        steps=steps,
    )


def _sentence(steps: Sequence[BlockingEvidence], ratio: float | None) -> str:
    if ratio is None:
        return "No communication holds compute back, by launches and by the waits of streams alike."
    reasons = {
        "in which the kernel had been launched but waited for no collective": sum(s.queued_free_ns for s in steps),
        "inside calls of which CUDA records no wait (asynchronous copies, allocation)": sum(
            s.sync_unrecorded_ns for s in steps
        ),
        "inside calls that waited for something else": sum(s.sync_elsewhere_ns for s in steps),
    }
    rest = ", and ".join(f"{format_ns(time)} {words}" for words, time in reasons.items() if time)
    total = format_ns(sum(step.blocking_ns for step in steps))
    return (
        f"The waits that streams and calls were given confirm {format_ratio(ratio)} of the {total} of blocking time"
        + (f"; the rest is {rest}." if rest else ".")
    )


def _confirmed_queued(pieces: Pieces, rows: DeviceRows, waits: StreamWaits) -> Intervals:
    """When a collective runs for which the next kernel has to wait."""
    confirmed = Intervals.empty()
    held = np.flatnonzero(pieces.end > pieces.launched)
    start, end, kernel = pieces.launched[held], pieces.end[held], pieces.kernel[held]
    for source, stream in enumerate(waits.sources.tolist()):
        comm = _on_stream(rows, stream)
        which, other = _pairs(start, end, rows.start[comm], rows.end[comm])
        other, after = comm[other], kernel[which]
        reach = waits.horizon(rows.stream[after], rows.launch_start[after], source)
        told = (reach > rows.launch_start[other]) & (rows.start[after] >= rows.end[other])
        holds = (rows.stream[after] == stream) | told
        confirmed |= _common(start, end, rows.start[other], rows.end[other], which, holds)
    return confirmed


def _confirmed_sync(
    pieces: Pieces, rows: DeviceRows, waiting: Waiting, launches: Launches
) -> tuple[Intervals, Intervals]:
    """When the launching thread is in a call that waits for a running collective, and in one that is recorded."""
    thread, calls = rows.launch_thread[pieces.kernel], waiting.calls
    confirmed, recorded = Intervals.empty(), Intervals.empty()
    for i, (pid, tid) in enumerate(launches.threads.tolist()):
        held = Intervals.union(pieces.start[thread == i], pieces.launched[thread == i])
        mine = np.flatnonzero((calls.pid == pid) & (calls.tid == tid))
        if not len(held) or not mine.size:
            continue
        recorded |= held & Intervals.union(calls.start[mine], calls.end[mine])
        confirmed |= held & _waiting_for_comm(rows, waiting.waits, calls, mine)
    return confirmed, recorded


def _waiting_for_comm(rows: DeviceRows, waits: StreamWaits, calls: SyncCalls, mine: Int64Array) -> Intervals:
    confirmed = Intervals.empty()
    for source, stream in enumerate(waits.sources.tolist()):
        comm = _on_stream(rows, stream)
        which, other = _pairs(calls.start[mine], calls.end[mine], rows.start[comm], rows.end[comm])
        call, other = mine[which], comm[other]
        launched = rows.launch_start[other]
        reach = waits.horizon(calls.stream[call], calls.recorded[call], source)
        on_it = (calls.stream[call] == stream) | (calls.stream[call] == NO_STREAM)
        told = np.where(on_it | calls.everything[call], calls.recorded[call], reach) > launched
        holds = told & (calls.end[call] >= rows.end[other])
        confirmed |= _common(calls.start[mine], calls.end[mine], rows.start[other], rows.end[other], which, holds)
    return confirmed


def _on_stream(rows: DeviceRows, stream: int) -> Int64Array:
    return np.flatnonzero(rows.is_comm & (rows.stream == stream))


def _pairs(
    start: Int64Array, end: Int64Array, other_start: Int64Array, other_end: Int64Array
) -> tuple[Int64Array, Int64Array]:
    """Every interval with each of the others that shares time with it.

    Args:
        start: shape ``(n,)``.
        end: shape ``(n,)``.
        other_start: shape ``(m,)``, rising; rows of one stream, which run one after another.
        other_end: shape ``(m,)``.

    Returns:
        Indices into the first and into the others, one entry a pair.
    """
    first = np.searchsorted(np.maximum.accumulate(other_end), start, side="right")
    count = np.maximum(np.searchsorted(other_start, end, side="left") - first, 0)
    which = np.repeat(np.arange(start.size), count)
    within = np.arange(which.size) - np.repeat(np.cumsum(count) - count, count)
    return which, first[which] + within


def _common(
    start: Int64Array,
    end: Int64Array,
    other_start: Int64Array,
    other_end: Int64Array,
    which: Int64Array,
    chosen: BoolArray,
) -> Intervals:
    """The time that chosen pairs share."""
    begin, finish = np.maximum(start[which], other_start), np.minimum(end[which], other_end)
    return Intervals.union(begin[chosen], finish[chosen])


def _inside(intervals: Intervals, part: StepPartition) -> int:
    return intervals.clip(part.start_ns, part.start_ns + part.span_ns).length
