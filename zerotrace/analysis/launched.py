"""Steps by launch: each row of a device, whole, in the step in which it was launched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.launches import Launches, on_device
from zerotrace.analysis.partition import DeviceTime, TimedRows, unknown_step
from zerotrace.ingest.steps import NO_STEP, steps_at
from zerotrace.intervals import Int64Array, Intervals, unions_of_groups
from zerotrace.model import Category, StepPartition, StepWindow
from zerotrace.tables import BoolArray, ints


class LaunchedTime(Struct, frozen=True, eq=False):
    """The time of one device by the step that launched its rows. Columns have one entry a step window.

    Attributes:
        device: device index on the host.
        compute: nanoseconds in which compute that the step launched runs.
        comm: the same of communication.
        copy: the same of copies.
        overlapped: the part of the communication beside any compute of the device.
        covered: the part of the copies beside any compute or communication.
    """

    device: int | None
    compute: Int64Array
    comm: Int64Array
    copy: Int64Array
    overlapped: Int64Array
    covered: Int64Array

    def __add__(self, other: LaunchedTime) -> LaunchedTime:
        """The time of the device in both of two parts of the trace that share no instant."""
        names = ("compute", "comm", "copy", "overlapped", "covered")
        return LaunchedTime(self.device, **{name: getattr(self, name) + getattr(other, name) for name in names})


def launched_time(
    events: pa.Table, time: DeviceTime, windows: Sequence[StepWindow], launches: Launches, begin: int, end: int
) -> LaunchedTime:
    """The time of a device by launch, as far as it lies in ``[begin, end)``.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        time: time of the device in ``events``.
        windows: the rank's step windows.
        launches: launches of ``events``.
        begin: nanoseconds.
        end: nanoseconds.
    """
    number_of = {window.step: number for number, window in enumerate(windows)}
    step, timed = steps_at(tuple(windows), launches.start), TimedRows.of(events)
    rows = np.flatnonzero(_of_device(events, time.device) & (step != NO_STEP))
    distinct, which = np.unique(step[rows], return_inverse=True)
    group = np.array([number_of[value] for value in distinct.tolist()], dtype=np.int64)[which]
    own = {}
    for category in Category:
        mine = timed.is_of[category][rows]
        start, finish = np.maximum(timed.start[rows[mine]], begin), np.minimum(timed.end[rows[mine]], end)
        own[category] = unions_of_groups(start, finish, group[mine])
    compute, comm, copy = (own[category] for category in (Category.COMPUTE, Category.COMM, Category.COPY))
    return LaunchedTime(
        device=time.device,
        compute=_summed(compute, len(windows)),
        comm=_summed(comm, len(windows)),
        copy=_summed(copy, len(windows)),
        overlapped=_summed(comm, len(windows), time.compute),
        covered=_summed(copy, len(windows), time.compute | time.comm),
    )


def launch_steps(
    rank: int, launched: Iterable[LaunchedTime], windows: Sequence[StepWindow]
) -> tuple[StepPartition, ...]:
    """Takes every step of a rank apart, with each row, whole, in the step in which it was launched.

    A step's rows may then run beside another step's, so ``idle_ns`` and the causes of it have no meaning and are
    ``None``.

    Args:
        rank: global rank.
        launched: time of each device.
        windows: the rank's step windows.
    """
    return tuple(part for time in launched for part in _by_launch(rank, time, windows))


def launched_exposed(
    events: pa.Table, time: DeviceTime, windows: Sequence[StepWindow], launches: Launches, begin: int, end: int
) -> dict[int, Intervals]:
    """The exposed communication that each step launched, by step: what :func:`launch_steps` measures.

    Arguments as of :func:`launched_time`. Steps that have none are left out.
    """
    step, timed = steps_at(tuple(windows), launches.start), TimedRows.of(events)
    rows = np.flatnonzero(_of_device(events, time.device) & timed.is_of[Category.COMM])
    rows = rows[np.argsort(step[rows], kind="stable")]
    of_window = np.array([window.step for window in windows], dtype=np.int64)
    low, high = (np.searchsorted(step[rows], of_window, side=side).tolist() for side in ("left", "right"))
    found = {}
    for window, first, last in zip(windows, low, high):
        comm = Intervals.union(timed.start[rows[first:last]], timed.end[rows[first:last]]).clip(begin, end)
        if len(comm):
            found[window.step] = comm - time.compute.around(comm)
    return found


def _of_device(events: pa.Table, device: int | None) -> BoolArray:
    return np.asarray(on_device(events) & (ints(events, "device") == device), dtype=bool)


def _by_launch(rank: int, time: LaunchedTime, windows: Sequence[StepWindow]) -> Iterator[StepPartition]:
    known = (time.compute + time.comm + time.copy > 0).tolist()
    columns: Mapping[str, list[int]] = {
        "compute_ns": time.compute.tolist(),
        "comm_ns": time.comm.tolist(),
        "overlapped_ns": time.overlapped.tolist(),
        "exposed_ns": (time.comm - time.overlapped).tolist(),
        "copy_only_ns": (time.copy - time.covered).tolist(),
    }
    for number, window in enumerate(windows):
        if not known[number]:
            yield unknown_step(rank, time.device, window)
            continue
        yield StepPartition(
            rank=rank,
            device=time.device,
            step=window.step,
            start_ns=window.start_ns,
            span_ns=window.span_ns,
            idle_ns=None,
            **{name: column[number] for name, column in columns.items()},
        )


def _summed(
    members: tuple[Int64Array, Int64Array, Int64Array], num_groups: int, beside: Intervals | None = None
) -> Int64Array:
    """Length of the union of each group, or of that part of it which lies in a set."""
    start, end, group = members
    found = np.zeros(num_groups, dtype=np.int64)
    np.add.at(found, group, end - start if beside is None else beside.within(start, end))
    return found
