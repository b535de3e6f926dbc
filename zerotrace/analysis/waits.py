"""What streams and host threads were made to wait for, as ``cuda_sync`` rows tell it.

``cudaStreamWaitEvent`` lets no later work of a stream start before an event, which stands for all work that its own
stream had been given when it was recorded. So a kernel waits for a collective if it was launched after a wait of its
stream, and the collective before the event was recorded: directly, or through a chain of streams. Kineto names the
stream and the record of the event only where CUPTI tells them (not from CUDA 12.9 on, pytorch/kineto#1552). Without
a name a wait may be for all that was launched before it.
"""

from __future__ import annotations

from bisect import bisect_left

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.launches import Launches
from zerotrace.ingest.classify import SYNC_CAT
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray, codes_and_names, ints, optional_ints

#: Names of ``cuda_sync`` rows, as Kineto writes them.
STREAM_WAIT, STREAM_SYNC, CONTEXT_SYNC = "Stream Wait Event", "Stream Sync", "Context Sync"

#: No stream, or none that is known.
NO_STREAM = -1

_NEVER = np.iinfo(np.int64).min


class SyncRows(Struct, frozen=True, eq=False):
    """The ``cuda_sync`` rows of one device, in the order of their start. Columns have one entry a row.

    Attributes:
        kind: name of the row, as an index into ``kinds``.
        kinds: the names.
        start: when the host made the call.
        stream: stream that waits, or is waited for by the host.
        correlation: id of the call; :data:`NO_STREAM` where it is not known.
        source: stream whose event is waited for; :data:`NO_STREAM` where that is not known.
        recorded: when that event was recorded; where that is not known, the row's own start.
    """

    kind: Int64Array
    kinds: list[str]
    start: Int64Array
    stream: Int64Array
    correlation: Int64Array
    source: Int64Array
    recorded: Int64Array

    def named(self, kind: str) -> BoolArray:
        """Rows of that name, shape ``(n,)``."""
        return np.asarray(self.kind == (self.kinds.index(kind) if kind in self.kinds else -2), dtype=bool)


class StreamWaits(Struct, frozen=True, eq=False):
    """How far the later work of each stream has to wait for the work of others.

    Attributes:
        sources: streams of communication, the columns of each horizon.
        times: stream -> when it was told to wait, rising; shape ``(n,)``.
        horizons: stream -> shape ``(n, num_sources)``: work that was launched on a source before this time has to
            end before what is launched on the stream from then on can start.
        num_waits: waits in the trace.
        num_named: of these, with the stream that they wait for.
    """

    sources: Int64Array
    times: dict[int, Int64Array]
    horizons: dict[int, Int64Array]
    num_waits: int
    num_named: int

    def horizon(self, stream: Int64Array, time: Int64Array, source: int) -> Int64Array:
        """How far work that is launched on ``stream`` at ``time`` waits for ``source``, shape ``(n,)``.

        Args:
            stream: shape ``(n,)``.
            time: shape ``(n,)``, nanoseconds.
            source: column of ``sources``.
        """
        found = np.full(stream.size, _NEVER, dtype=np.int64)
        for waiting, times in self.times.items():
            here = np.flatnonzero(stream == waiting)
            last = np.searchsorted(times, time[here], side="left") - 1
            here, last = here[last >= 0], last[last >= 0]
            found[here] = self.horizons[waiting][last, source]
        return found


class SyncCalls(Struct, frozen=True, eq=False):
    """Calls in which the host waits for the device and of which a ``cuda_sync`` row says for what.

    Columns have one entry a call.

    Attributes:
        start: when the call began.
        end: when it returned.
        pid: process that makes it.
        tid: thread that makes it.
        stream: stream that it waits for; :data:`NO_STREAM` where that is not known.
        everything: whether it waits for all streams of the device.
        recorded: when the work that it waits for had been launched: the record of its event, else its own start.
    """

    start: Int64Array
    end: Int64Array
    pid: Int64Array
    tid: Int64Array
    stream: Int64Array
    everything: BoolArray
    recorded: Int64Array


def read_sync_rows(events: pa.Table, device: int) -> SyncRows | None:
    """The synchronisation rows of a device; ``None`` where the trace has none.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        device: device index.
    """
    cat, cats = codes_and_names(events, "cat")
    if SYNC_CAT not in cats:
        return None
    rows = np.flatnonzero(cat == cats.index(SYNC_CAT))
    devices, on_device = optional_ints(events, "device")
    rows = rows[devices[rows] == device]
    if not rows.size:
        return None
    start = ints(events, "start_ns")
    rows = rows[np.argsort(start[rows], kind="stable")]
    kind, kinds = codes_and_names(events, "name")
    correlation, correlated = optional_ints(events, "correlation")
    source, has_source = optional_ints(events, "wait_on_stream")
    record, has_record = optional_ints(events, "wait_on_correlation")
    recorded, stated = start[rows], np.flatnonzero(has_record[rows])
    if stated.size:
        calls = np.flatnonzero(correlated & ~on_device)
        called = _by_id(correlation[calls], record[rows[stated]])
        recorded[stated[called >= 0]] = start[calls[called[called >= 0]]]
    return SyncRows(
        kind=kind[rows],
        kinds=kinds,
        start=start[rows],
        stream=ints(events, "stream")[rows],
        correlation=np.where(correlated[rows], correlation[rows], NO_STREAM),
        source=np.where(has_source[rows], source[rows], NO_STREAM),
        recorded=recorded,
    )


def find_waits(rows: SyncRows, sources: Int64Array) -> StreamWaits:
    """The waits of a device's streams.

    Args:
        rows: synchronisation rows of the device.
        sources: streams that carry communication.
    """
    waits = rows.named(STREAM_WAIT)
    time, stream, source = rows.start[waits], rows.stream[waits], rows.source[waits]
    named = source != NO_STREAM
    if named.any():
        times, horizons = _follow(time, stream, source, rows.recorded[waits], sources)
    else:
        times = {which: time[stream == which] for which in np.unique(stream).tolist()}
        horizons = {which: np.repeat(at[:, None], sources.size, axis=1) for which, at in times.items()}
    return StreamWaits(sources, times, horizons, int(time.size), int(named.sum()))


def find_sync_calls(rows: SyncRows, events: pa.Table, launches: Launches) -> SyncCalls:
    """The synchronising calls that have a ``cuda_sync`` row.

    Args:
        rows: synchronisation rows of the device.
        events: rows of :data:`zerotrace.schema.EVENTS`.
        launches: launches of ``events``.
    """
    calls = np.flatnonzero(launches.calls.waits)
    ids = optional_ints(events, "correlation")[0][launches.calls.row[calls]]
    place = _by_id(ids, np.where(rows.named(STREAM_WAIT), NO_STREAM, rows.correlation))
    found = np.flatnonzero((place >= 0) & (rows.correlation != NO_STREAM))
    call = calls[place[found]]
    begin = ints(events, "start_ns")[launches.calls.row[call]]
    source = rows.source[found]
    pid, tid = launches.threads[launches.calls.thread[call]].T
    return SyncCalls(
        start=begin,
        end=begin + ints(events, "dur_ns")[launches.calls.row[call]],
        pid=pid,
        tid=tid,
        stream=np.where(rows.named(STREAM_SYNC)[found], rows.stream[found], source),
        everything=rows.named(CONTEXT_SYNC)[found],
        recorded=np.where(source == NO_STREAM, begin, rows.recorded[found]),
    )


def _by_id(ids: Int64Array, wanted: Int64Array) -> Int64Array:
    """Position of each wanted id among ``ids``, -1 where it is not among them."""
    if not ids.size:
        return np.full(wanted.size, -1, dtype=np.int64)
    order = np.argsort(ids, kind="stable")
    place = order[np.minimum(np.searchsorted(ids[order], wanted), ids.size - 1)]
    return np.where(ids[place] == wanted, place, -1)


def _follow(
    time: Int64Array, stream: Int64Array, source: Int64Array, recorded: Int64Array, sources: Int64Array
) -> tuple[dict[int, Int64Array], dict[int, Int64Array]]:
    """Follows waits from stream to stream, in the order in which the host gave them.

    A wait takes over what the awaited stream itself had to wait for when its event was recorded.
    """
    column = {which: i for i, which in enumerate(sources.tolist())}
    times: dict[int, list[int]] = {}
    horizons: dict[int, list[Int64Array]] = {}
    for at, which, awaited, record in zip(time.tolist(), stream.tolist(), source.tolist(), recorded.tolist()):
        if awaited == NO_STREAM:
            reach = np.full(sources.size, at, dtype=np.int64)
        else:
            last = bisect_left(times.get(awaited, []), record) - 1
            reach = horizons[awaited][last].copy() if last >= 0 else np.full(sources.size, _NEVER, dtype=np.int64)
            if awaited in column:
                reach[column[awaited]] = max(reach[column[awaited]], record)
        so_far = horizons.setdefault(which, [])
        so_far.append(np.maximum(so_far[-1], reach) if so_far else reach)
        times.setdefault(which, []).append(at)
    return (
        {which: np.array(at, dtype=np.int64) for which, at in times.items()},
        {which: np.stack(reached) for which, reached in horizons.items()},
    )
