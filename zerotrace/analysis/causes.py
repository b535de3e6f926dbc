"""Why time is lost: what holds compute back while communication is exposed, and what idle time waits for.

    exposed = blocking_queued + blocking_sync + shadow
    idle    = host_bound + stalled + tail + unlinked

Both are sets of instants, so each part is an :class:`Intervals` (or a length) and the sums close to the nanosecond.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import StepWindow
from zerotrace.tables import BoolArray

# The launch of a row whose launch is not in the trace.
_NEVER = np.iinfo(np.int64).max


class DeviceRows(Struct, frozen=True, eq=False):
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


class Pieces(Struct, frozen=True, eq=False):
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


class Blocking(Struct, frozen=True):
    """Exposed communication by what a faster collective would win.

    At each instant the next compute kernel to start decides. *queued*: its launch call had returned, so the device
    was held back; *sync*: it had not, and its thread was inside a synchronising call, so the host waited for the
    device; what is in neither is *shadow*: the host was busy elsewhere, and a faster collective wins nothing.
    """

    queued: Intervals
    sync: Intervals


class IdleCauses(Struct, frozen=True, eq=False):
    """The idle time of one device by cause, over all its windows.

    In a gap before the device row that starts at its end, whose launch call returned at L: up to L the device was
    *host_bound*, after L *stalled* (launched, but held back by dependencies or queue). *unlinked* are the gaps before
    rows without a launch in the trace, and *tail* is what follows the last row of a window: what lies behind
    ``tail_begins`` counts as that, whatever the gap would be for the next window.

    Attributes:
        host_bound: when the device was host-bound.
        stalled: when it was stalled.
        unlinked: when nobody knows which.
        begins: start of each window, shape ``(n,)``.
        tail_begins: start of each window's tail; its end where there is none.
        ends: end of each window.
    """

    host_bound: Intervals
    stalled: Intervals
    unlinked: Intervals
    begins: Int64Array
    tail_begins: Int64Array
    ends: Int64Array

    @property
    def tail_ns(self) -> Int64Array:
        """Length of each window's tail."""
        return self.ends - self.tail_begins

    def of_windows(self, cause: Intervals) -> Int64Array:
        """Length of one of the causes, or of a part of it, in each window ahead of its tail."""
        return cause.within(self.begins, self.tail_begins)


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


def idle_causes(busy: Intervals, rows: DeviceRows, windows: Sequence[StepWindow]) -> IdleCauses:
    """Splits the idle time of one device.

    Args:
        busy: the device's busy time.
        rows: rows of the same device.
        windows: step windows, at least one.
    """
    begins = np.array([window.start_ns for window in windows], dtype=np.int64)
    ends = np.array([window.end_ns for window in windows], dtype=np.int64)
    # Gaps are as long as the trace has them; a window sees the part of each that lies in it.
    end = busy.starts
    start = np.concatenate(([begins.min()], busy.ends))[: end.size]
    launched = _launched(rows, end)
    linked = launched != _NEVER
    turn = np.clip(launched, start, end)
    # The busy time that ends last before a window's end, or the window's start, is where its tail begins.
    member = np.searchsorted(busy.starts, ends, side="left") - 1
    last = np.where(member < 0, begins, np.minimum(np.append(busy.ends, 0)[member], ends))
    return IdleCauses(
        host_bound=Intervals.union(start[linked], turn[linked]),
        stalled=Intervals.union(turn[linked], end[linked]),
        unlinked=Intervals.union(start[~linked], end[~linked]),
        begins=begins,
        tail_begins=np.maximum(last, begins),
        ends=ends,
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
