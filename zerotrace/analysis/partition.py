r"""The partition of a step: where each nanosecond of a rank's step goes.

    comm = overlapped + exposed            overlapped = |comm ∩ compute|      exposed = |comm \ compute|
    span = compute + exposed + copy_only + idle

All lengths are of unions, so two streams that compute at once count once. The identities are asserted for
every step: a figure that does not close is a defect of this module, never of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.causes import Blocking, DeviceRows, Pieces, blocking, idle_causes, pieces_of
from zerotrace.analysis.launches import Launches, on_device
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import Category, StepPartition, StepWindow
from zerotrace.tables import BoolArray, equals, ints


class DeviceTime(Struct, frozen=True):
    """What one device of a rank did, as unions over its streams; the host's threads in host mode."""

    device: int | None
    compute: Intervals
    comm: Intervals
    copy: Intervals

    @property
    def exposed(self) -> Intervals:
        """Communication with no compute beside it."""
        return self.comm - self.compute

    @property
    def busy(self) -> Intervals:
        """Any of the three."""
        return self.compute | self.comm | self.copy


def device_times(events: pa.Table, devices: Sequence[int | None] | None = None) -> tuple[DeviceTime, ...]:
    """The time of each device in a rank's event table; devices of one process are never merged.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        devices: which devices, ``None`` for the host's own time; by default those that have rows, else the host.
    """
    device, timed = ints(events, "device"), TimedRows.of(events)
    here = on_device(events)
    if devices is None:
        devices = np.unique(device[here]).tolist() or [None]
    return tuple(
        timed.device_time(
            index, np.arange(events.num_rows) if index is None else np.flatnonzero(here & (device == index))
        )
        for index in devices
    )


class DeviceSets(Struct, frozen=True, eq=False):
    """What is left to ask of one device once its steps are taken apart."""

    device: int | None
    comm: Intervals
    exposed: Intervals
    """The part of it with no compute beside it."""
    held: Blocking | None
    """The part of that which holds compute back; ``None`` for the host's own time."""

    @property
    def overlapped(self) -> Intervals:
        """Communication with compute beside it."""
        return self.comm - self.exposed


class DeviceCauses(Struct, frozen=True, eq=False):
    """What the launches of one device tell of its lost time."""

    time: DeviceTime
    rows: DeviceRows
    exposed: Intervals
    """Communication with no compute beside it."""
    busy: Intervals
    """Compute, communication or copies."""
    pieces: Pieces
    held: Blocking


def device_causes(events: pa.Table, time: DeviceTime, launches: Launches) -> DeviceCauses | None:
    """Why a device's time is lost; ``None`` for the host's own time, which has no launches to tell it by.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        time: time of the device in ``events``.
        launches: launches of ``events``.
    """
    if time.device is None:
        return None
    rows, exposed = device_rows(events, time.device, launches), time.exposed
    pieces = pieces_of(exposed, rows)
    return DeviceCauses(time, rows, exposed, time.busy, pieces, blocking(pieces, rows, launches.sync_calls))


def clip_steps(
    rank: int,
    times: Sequence[DeviceTime],
    causes: Sequence[DeviceCauses | None],
    windows: Sequence[StepWindow],
) -> tuple[StepPartition, ...]:
    """Takes every step of a rank apart, on each of its devices, with rows cut at the borders of the step windows.

    Args:
        rank: global rank.
        times: time of each device.
        causes: why the time of each of them is lost.
        windows: the rank's step windows.
    """
    return tuple(part for time, why in zip(times, causes) for part in _clipped(rank, time, why, windows))


def device_rows(events: pa.Table, device: int, launches: Launches) -> DeviceRows:
    """The rows of one device with their launches, sorted by start."""
    rows = np.flatnonzero(on_device(events) & (ints(events, "device") == device))
    start = ints(events, "start_ns")
    rows = rows[np.argsort(start[rows], kind="stable")]
    return DeviceRows(
        start=start[rows],
        end=start[rows] + ints(events, "dur_ns")[rows],
        stream=ints(events, "stream")[rows],
        is_compute=equals(events, "category", Category.COMPUTE.value)[rows],
        is_comm=equals(events, "category", Category.COMM.value)[rows],
        launch_start=launches.start[rows],
        launch_end=launches.end[rows],
        launch_thread=launches.thread[rows],
    )


def split_exposed(
    parts: Sequence[StepPartition], exposed_ns: Int64Array, transfer_ns: Int64Array
) -> Iterator[StepPartition]:
    """Splits the exposed communication of steps into transfer and waiting for a late rank.

    Args:
        parts: the steps.
        exposed_ns: their exposed communication; shape ``(n,)``.
        transfer_ns: how much of it lies where all members of a collective that runs had started.
    """
    for part, exposed, transfer in zip(parts, exposed_ns.tolist(), transfer_ns.tolist()):
        if not part.known:
            yield part
            continue
        split = replace(part, exposed_transfer_ns=transfer, exposed_wait_ns=exposed - transfer)
        _assert_sum(split, "exposed_ns", "exposed_transfer_ns", "exposed_wait_ns")
        yield split


def outside_steps_ns(time: DeviceTime, windows: Sequence[StepWindow], begin: int, end: int) -> int:
    """Busy time of a device in ``[begin, end)`` that lies in no step window."""
    inside = Intervals.union([w.start_ns for w in windows], [w.end_ns for w in windows])
    return (time.busy.clip(begin, end) - inside).length


class TimedRows(Struct, frozen=True, eq=False):
    """Start, end and category of every row of an event table, read once."""

    start: Int64Array
    end: Int64Array
    is_of: Mapping[Category, BoolArray]

    @classmethod
    def of(cls, events: pa.Table) -> TimedRows:
        """Those of :data:`zerotrace.schema.EVENTS`."""
        start = ints(events, "start_ns")
        categories = {category: equals(events, "category", category.value) for category in Category}
        return cls(start, start + ints(events, "dur_ns"), categories)

    def device_time(self, index: int | None, rows: Int64Array) -> DeviceTime:
        """What some rows of one device come to."""

        def union(category: Category) -> Intervals:
            chosen = rows[self.is_of[category][rows]]
            return Intervals.union(self.start[chosen], self.end[chosen])

        return DeviceTime(index, union(Category.COMPUTE), union(Category.COMM), union(Category.COPY))


def _clipped(
    rank: int, time: DeviceTime, why: DeviceCauses | None, windows: Sequence[StepWindow]
) -> Iterator[StepPartition]:
    """Every step of one device: each figure is the length of one set, taken in all windows at once."""
    begins, ends = _borders(windows)
    kernels = time.compute | time.comm
    figures = {
        "compute_ns": time.compute,
        "comm_ns": time.comm,
        "overlapped_ns": time.comm & time.compute,
        "exposed_ns": time.comm - time.compute,
        "copy_only_ns": time.copy - kernels,
    }
    columns = {name: points.within(begins, ends).tolist() for name, points in figures.items()}
    busy = (kernels | time.copy).within(begins, ends)
    columns["idle_ns"] = (ends - begins - busy).tolist()
    if why is not None:
        columns |= {name: column.tolist() for name, column in _causes(why, windows).items()}
    for number, (window, held) in enumerate(zip(windows, busy.tolist())):
        if not held:
            yield unknown_step(rank, time.device, window)
            continue
        found = StepPartition(
            rank=rank,
            device=time.device,
            step=window.step,
            start_ns=window.start_ns,
            span_ns=window.span_ns,
            **{name: column[number] for name, column in columns.items()},
        )
        _assert_closes(found)
        if why is not None:  # the host's time has no launches to tell its causes by
            _assert_sum(found, "exposed_ns", "blocking_queued_ns", "blocking_sync_ns", "shadow_ns")
            _assert_sum(found, "idle_ns", "host_bound_ns", "stalled_ns", "tail_ns", "unlinked_ns")
        yield found


def _causes(why: DeviceCauses, windows: Sequence[StepWindow]) -> dict[str, Int64Array]:
    """Why exposed and idle time is lost, in each window."""
    begins, ends = _borders(windows)
    idle, held = idle_causes(why.busy, why.rows, windows), why.held
    return {
        "blocking_queued_ns": (why.exposed & held.queued).within(begins, ends),
        "blocking_sync_ns": (why.exposed & held.sync).within(begins, ends),
        "shadow_ns": (why.exposed - held.queued - held.sync).within(begins, ends),
        "host_bound_ns": idle.of_windows(idle.host_bound),
        "stalled_ns": idle.of_windows(idle.stalled),
        "tail_ns": idle.tail_ns,
        "unlinked_ns": idle.of_windows(idle.unlinked),
    }


def _borders(windows: Sequence[StepWindow]) -> tuple[Int64Array, Int64Array]:
    begins = np.array([window.start_ns for window in windows], dtype=np.int64)
    return begins, np.array([window.end_ns for window in windows], dtype=np.int64)


def _assert_sum(part: StepPartition, whole: str, *pieces: str) -> None:
    # not an assert statement: it must hold under python -O too
    if getattr(part, whole) != sum(getattr(part, piece) for piece in pieces):
        raise AssertionError(f"{whole} is not the sum of {', '.join(pieces)}: {part}")


def _assert_closes(part: StepPartition) -> None:
    _assert_sum(part, "comm_ns", "overlapped_ns", "exposed_ns")
    _assert_sum(part, "span_ns", "compute_ns", "exposed_ns", "copy_only_ns", "idle_ns")


def unknown_step(rank: int, device: int | None, window: StepWindow) -> StepPartition:
    """A window without a device row is unknown, not 100 % idle: its records may have been lost."""
    return StepPartition(
        rank=rank,
        device=device,
        step=window.step,
        start_ns=window.start_ns,
        span_ns=window.span_ns,
        compute_ns=None,
        comm_ns=None,
        overlapped_ns=None,
        exposed_ns=None,
        copy_only_ns=None,
        idle_ns=None,
    )
