"""Why time is lost: what holds compute back while communication is exposed, and what idle time waits for.

    exposed = blocking_queued + blocking_sync + shadow
    idle    = host_bound + stalled + tail + unlinked

Both are sets of instants, so each part is an :class:`Intervals` (or a length) and the sums close to the nanosecond.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import StepWindow
from zerotrace.tables import BoolArray

# The launch of a row whose launch is not in the trace.
_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True, eq=False)
class DeviceRows:
    """The rows of one device and their launches, sorted by start. All columns have one entry a row.

    Attributes:
        start: start of the row.
        end: end of the row.
        stream: stream that it runs on.
        is_compute: whether it is a compute kernel.
        is_comm: whether it is communication.
        launch_start: when its launch call began.
        launch_end: when its launch call returned.
        launch_thread: which thread launched it; -1 if that is not in the trace.
    """

    start: Int64Array
    end: Int64Array
    stream: Int64Array
    is_compute: BoolArray
    is_comm: BoolArray
    launch_start: Int64Array
    launch_end: Int64Array
    launch_thread: Int64Array


@dataclass(frozen=True, eq=False)
class Pieces:
    """Exposed communication, cut so that one compute kernel is the next to start throughout each piece.

    Pieces before which no kernel starts, or one whose launch is not in the trace, are left out. Columns have one
    entry a piece.

    Attributes:
        start: start of the piece.
        launched: when the kernel's launch call had returned, held within the piece.
        end: end of the piece.
        kernel: the kernel, as a row of :class:`DeviceRows`.
    """

    start: Int64Array
    launched: Int64Array
    end: Int64Array
    kernel: Int64Array


@dataclass(frozen=True)
class Blocking:
    """Exposed communication by what a faster collective would win.

    At each instant the next compute kernel to start decides. *queued*: its launch call had returned, so the device
    was held back; *sync*: it had not, and its thread was inside a synchronising call, so the host waited for the
    device; what is in neither is *shadow*: the host was busy elsewhere, and a faster collective wins nothing.
    """

    queued: Intervals
    sync: Intervals


@dataclass(frozen=True)
class IdleCauses:
    """The idle time of one step by cause, nanoseconds.

    In a gap before the device row that starts at its end, whose launch call returned at L: up to L the device was
    *host_bound*, after L *stalled* (launched, but held back by dependencies or queue). *tail* is what follows the
    window's last row, *unlinked* the gaps before rows without a launch in the trace.
    """

    host_bound: Intervals
    """When the device was host-bound."""
    stalled_ns: int
    tail_ns: int
    unlinked_ns: int

    @property
    def host_bound_ns(self) -> int:
        """Idle until the launch call of the next row had returned."""
        return self.host_bound.length


def pieces_of(exposed: Intervals, rows: DeviceRows) -> Pieces:
    """Cuts exposed communication by the compute kernel that starts next.

    Args:
        exposed: communication of the device with no compute beside it.
        rows: rows of the same device.
    """
    kernels = np.flatnonzero(rows.is_compute)
    starts, ends = _cut(exposed, rows.start[kernels])
    following = np.searchsorted(rows.start[kernels], starts, side="right")
    known = following < kernels.size
    known[known] = rows.launch_thread[kernels[following[known]]] >= 0
    starts, ends, kernel = starts[known], ends[known], kernels[following[known]]
    return Pieces(starts, np.clip(rows.launch_end[kernel], starts, ends), ends, kernel)


def blocking(pieces: Pieces, rows: DeviceRows, sync_calls: tuple[Intervals, ...]) -> Blocking:
    """Tells for each exposed instant whether a faster collective would have let compute start earlier.

    Args:
        pieces: exposed communication of the device.
        rows: rows of the same device.
        sync_calls: when each launching thread is inside a synchronising call.
    """
    queued = Intervals.union(pieces.launched, pieces.end)
    thread = rows.launch_thread[pieces.kernel]
    sync = Intervals.empty()
    for i, calls in enumerate(sync_calls):
        mine = thread == i
        sync |= Intervals.union(pieces.start[mine], pieces.launched[mine]) & calls
    return Blocking(queued, sync)


def idle_causes(busy: Intervals, rows: DeviceRows, window: StepWindow) -> IdleCauses:
    """Splits the idle time of one step on one device.

    Args:
        busy: the device's busy time.
        rows: rows of the same device.
        window: the step.
    """
    gaps = Intervals.single(window.start_ns, window.end_ns) - busy.clip(window.start_ns, window.end_ns)
    is_tail = gaps.ends == window.end_ns
    tail = int((gaps.ends - gaps.starts)[is_tail].sum())
    start, end = gaps.starts[~is_tail], gaps.ends[~is_tail]
    launched = _launched(rows, end)
    linked = launched != _NEVER
    host_bound = Intervals.union(start[linked], np.clip(launched, start, end)[linked])
    return IdleCauses(
        host_bound=host_bound,
        stalled_ns=int((end - start)[linked].sum()) - host_bound.length,
        tail_ns=tail,
        unlinked_ns=int((end - start)[~linked].sum()),
    )


def host_bound(busy: Intervals, rows: DeviceRows, begin: int) -> Intervals:
    """When a device is idle and the row that it runs next has not been launched: time it waits for the host.

    Args:
        busy: the device's busy time.
        rows: rows of the same device, at least one.
        begin: where the time before the first row begins.
    """
    gaps = Intervals.single(begin, int(rows.end.max())) - busy
    launched = _launched(rows, gaps.ends)
    return Intervals.union(gaps.starts, np.where(launched == _NEVER, gaps.starts, np.minimum(launched, gaps.ends)))


def _launched(rows: DeviceRows, starts: Int64Array) -> Int64Array:
    """When the rows that start at these times had been launched, the earliest of several; else :data:`_NEVER`.

    Args:
        rows: rows of one device.
        starts: shape ``(n,)``; at each of them a row starts.
    """
    if not starts.size:
        return starts
    row_start, first = np.unique(rows.start, return_index=True)
    returned = np.where(rows.launch_thread >= 0, rows.launch_end, _NEVER)
    return np.asarray(np.minimum.reduceat(returned, first)[np.searchsorted(row_start, starts)], dtype=np.int64)


def _cut(intervals: Intervals, points: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Starts and ends of the members, cut at the points that lie inside of them."""
    member = np.searchsorted(intervals.starts, points, side="right") - 1
    inside = member >= 0
    inside[inside] = points[inside] > intervals.starts[member[inside]]
    inside[inside] = points[inside] < intervals.ends[member[inside]]
    cuts = np.unique(points[inside])
    return np.sort(np.concatenate((intervals.starts, cuts))), np.sort(np.concatenate((intervals.ends, cuts)))
