"""The host's side: the call behind each row of communication, and in what order one device was asked for things."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict, replace

from zerotrace.analysis.collectives import ABSENT, comm_rows
from zerotrace.analysis.kinds import kind_of
from zerotrace.analysis.launches import Launches
from zerotrace.analysis.waits import STREAM_WAIT
from zerotrace.intervals import Int64Array
from zerotrace.model import Category, CollectiveKind
from zerotrace.tables import BoolArray, codes_and_names, equals, ints, optional_ints


class Calls(Struct, frozen=True, eq=False):
    """Where rows of communication were called from. All columns have one entry a row of communication.

    Attributes:
        row: row of the event table.
        time: start of the call that launched it; absent where that is not in the trace.
        done: end of that call.
        pid: process of the call.
        tid: thread of the call.
        is_gather: all-gathers.
        elements: elements that the row puts out; absent where unknown.
    """

    row: Int64Array
    time: Int64Array
    done: Int64Array
    pid: Int64Array
    tid: Int64Array
    is_gather: BoolArray
    elements: Int64Array

    def take(self, rows: Int64Array) -> Calls:
        """The calls of some of the rows."""
        return Calls(**{name: column[rows] for name, column in asdict(self).items()})


def find_calls(events: pa.Table, launches: Launches, *, has_links: bool) -> Calls:
    """The calls of all rows of communication, in the order of the rows' start.

    gloo's rows have no launch: the n-th all-gather was called by the n-th ``c10d`` operator of that name, where there
    are equally many of both and none begins before its call.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        launches: launches of ``events``.
        has_links: whether any row of the rank has a launch.
    """
    row = comm_rows(events)
    names, distinct = codes_and_names(events, "name")
    collective, described = codes_and_names(events, "collective")
    named = np.where(collective[row] >= 0, _all_gathers(collective[row], described), _all_gathers(names[row], distinct))
    is_gather = np.asarray(named, dtype=bool)
    linked = launches.linked[row]
    time, done = (np.where(linked, side[row], ABSENT) for side in (launches.start, launches.end))
    pid, tid = launches.thread_ids(row)
    if not has_links:
        time, done, pid, tid = _by_order(events, row, is_gather, names, distinct)
    out, known = optional_ints(events, "out_elements")
    return Calls(
        row=row,
        time=time,
        done=done,
        pid=pid,
        tid=tid,
        is_gather=is_gather,
        elements=np.where(known[row], out[row], ABSENT),
    )


def _all_gathers(codes: Int64Array, distinct: list[str]) -> BoolArray:
    """Rows whose text names an all-gather."""
    used = np.unique(codes[codes >= 0]).tolist()
    return np.isin(codes, [code for code in used if kind_of(distinct[code]) is CollectiveKind.ALL_GATHER])


def _by_order(
    events: pa.Table, row: Int64Array, is_gather: BoolArray, names: Int64Array, distinct: list[str]
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:
    """Start, end, process and thread of the operator behind each row."""
    call = np.full(row.size, ABSENT, dtype=np.int64)
    operators = [
        code
        for code, text in enumerate(distinct)
        if text.startswith("c10d::") and kind_of(text) is CollectiveKind.ALL_GATHER
    ]
    callers = np.flatnonzero(np.isin(names, operators))
    start = ints(events, "start_ns")
    callers = callers[np.argsort(start[callers], kind="stable")]
    mine = np.flatnonzero(is_gather)
    if callers.size == mine.size and bool((start[callers] <= start[row[mine]]).all()):
        call[mine] = callers
    columns = (start, start + ints(events, "dur_ns"), ints(events, "pid"), ints(events, "tid"))
    time, done, pid, tid = (np.where(call >= 0, column[call], ABSENT) for column in columns)
    return time, done, pid, tid


class Order(Struct, frozen=True, eq=False):
    """What the host asked one device for, in the order in which it asked.

    Attributes:
        launched: launch of each compute row, rising; its own start where the launch is not in the trace.
        started: start of the same row on the device.
        stream: its stream; absent in host mode.
        waits: for each stream, when the host told it to wait for another one, rising.
        main: the stream with the most compute rows.
    """

    launched: Int64Array
    started: Int64Array
    stream: Int64Array
    waits: dict[int, Int64Array]
    main: int

    def without(self, stream: int | None) -> Order:
        """The same without the compute rows of a stream."""
        kept = self.stream != stream
        if stream is None or kept.all():
            return self
        return replace(self, launched=self.launched[kept], started=self.started[kept], stream=self.stream[kept])

    def first_start_after(self, time: Int64Array) -> Int64Array:
        """Start of the first compute row launched at or after each moment; absent where there is none."""
        following = np.searchsorted(self.launched, time)
        return np.append(self.started, ABSENT)[following]


class ComputeLaunches(Struct, frozen=True, eq=False):
    """The compute rows of one device; columns as in :class:`Order`."""

    launched: Int64Array
    started: Int64Array
    stream: Int64Array

    @classmethod
    def of_all(cls, parts: Sequence[ComputeLaunches]) -> ComputeLaunches:
        """Those of several tables, in the order in which they were launched."""
        launched, started, stream = (
            np.concatenate([getattr(part, name) for part in parts]) for name in cls.__struct_fields__
        )
        order = np.lexsort((started, stream, launched))
        return cls(launched[order], started[order], stream[order])


def compute_launches(events: pa.Table, device: int, launches: Launches, counted: BoolArray) -> ComputeLaunches:
    """The compute rows of a device.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        device: its index on the host; :data:`ABSENT` in host mode.
        launches: launches of ``events``.
        counted: which of the rows are looked at; shape ``(num_rows,)``.
    """
    rows = np.flatnonzero(counted & _here(events, device) & equals(events, "category", Category.COMPUTE.value))
    stream, known = optional_ints(events, "stream")
    return ComputeLaunches(
        launched=launches.start[rows],
        started=ints(events, "start_ns")[rows],
        stream=np.where(known[rows], stream[rows], ABSENT),
    )


def order_of(events: pa.Table, device: int, compute: ComputeLaunches) -> Order:
    """The order of calls for one device.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`: those of its waits at least.
        device: its index on the host; :data:`ABSENT` in host mode.
        compute: its compute rows, in the order in which they were launched.
    """
    streams, has_stream = optional_ints(events, "stream")
    waiting = np.flatnonzero(_here(events, device) & equals(events, "name", STREAM_WAIT) & has_stream)
    start = ints(events, "start_ns")
    waits = {
        number: np.sort(start[waiting[streams[waiting] == number]]) for number in np.unique(streams[waiting]).tolist()
    }
    known, count = np.unique(compute.stream, return_counts=True)
    return Order(
        launched=compute.launched,
        started=compute.started,
        stream=compute.stream,
        waits=waits,
        main=int(known[np.argmax(count)]) if known.size else ABSENT,
    )


def _here(events: pa.Table, device: int) -> BoolArray:
    """Rows of a device, or the host's own."""
    devices, has_device = optional_ints(events, "device")
    return np.asarray(has_device & (devices == device) if device != ABSENT else ~has_device, dtype=bool)
