r"""The partition of a step: where each nanosecond of a rank's step goes.

    comm = overlapped + exposed            overlapped = |comm ∩ compute|      exposed = |comm \ compute|
    span = compute + exposed + copy_only + idle

All lengths are of unions, so two streams that compute at once count once. The identities are asserted for
every step: a figure that does not close is a defect of this module, never of the trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zerotrace.analysis.launches import launch_starts, on_device
from zerotrace.ingest.steps import steps_at
from zerotrace.intervals import Intervals
from zerotrace.model import Attribution, Category, StepPartition, StepWindow
from zerotrace.tables import equals, ints


@dataclass(frozen=True)
class DeviceTime:
    """What one device of a rank did, as unions over its streams; the host's threads in host mode."""

    device: int | None
    compute: Intervals
    comm: Intervals
    copy: Intervals

    @property
    def busy(self) -> Intervals:
        """Any of the three."""
        return self.compute | self.comm | self.copy


def device_times(events: pa.Table) -> tuple[DeviceTime, ...]:
    """The time of each device in a rank's event table; devices of one process are never merged.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
    """
    device = ints(events, "device")
    here = on_device(events)
    if not here.any():
        return (_device_time(events, None, np.ones(events.num_rows, dtype=bool)),)
    return tuple(_device_time(events, index, here & (device == index)) for index in np.unique(device[here]).tolist())


def partition_steps(
    rank: int, events: pa.Table, windows: Sequence[StepWindow], attribution: Attribution
) -> tuple[StepPartition, ...]:
    """Takes every step of a rank apart, on each of its devices.

    Args:
        rank: global rank.
        events: rows of :data:`zerotrace.schema.EVENTS`.
        windows: the rank's step windows.
        attribution: clipped to the host's windows, or whole rows by the step of their launch. By launch, a
            step's rows may run beside another step's, so ``idle_ns`` has no meaning and is ``None``.
    """
    if attribution is Attribution.LAUNCH:
        return tuple(_by_launch(rank, events, windows))
    return tuple(_clipped(rank, time, window) for time in device_times(events) for window in windows)


def outside_steps_ns(time: DeviceTime, windows: Sequence[StepWindow]) -> int:
    """Busy time of a device that lies in no step window: before the first, between, or after the last."""
    inside = Intervals.union([w.start_ns for w in windows], [w.end_ns for w in windows])
    return (time.busy - inside).length


def _device_time(events: pa.Table, index: int | None, rows: npt.NDArray[np.bool_]) -> DeviceTime:
    start = ints(events, "start_ns")
    end = start + ints(events, "dur_ns")
    unions: Mapping[Category, Intervals] = {
        category: Intervals.union(start[chosen], end[chosen])
        for category in Category
        for chosen in [rows & equals(events, "category", category.value)]
    }
    return DeviceTime(index, unions[Category.COMPUTE], unions[Category.COMM], unions[Category.COPY])


def _clipped(rank: int, time: DeviceTime, window: StepWindow) -> StepPartition:
    step = Intervals.single(window.start_ns, window.end_ns)
    compute = time.compute.clip(window.start_ns, window.end_ns)
    comm = time.comm.clip(window.start_ns, window.end_ns)
    copy = time.copy.clip(window.start_ns, window.end_ns)
    kernels = compute | comm
    busy = kernels | copy
    if not len(busy):
        return _unknown(rank, time.device, window)
    found = StepPartition(
        rank=rank,
        device=time.device,
        step=window.step,
        start_ns=window.start_ns,
        span_ns=window.span_ns,
        compute_ns=compute.length,
        comm_ns=comm.length,
        overlapped_ns=(comm & compute).length,
        exposed_ns=(comm - compute).length,
        copy_only_ns=(copy - kernels).length,
        idle_ns=(step - busy).length,
    )
    _assert_closes(found)
    return found


def _assert_closes(part: StepPartition) -> None:
    assert part.compute_ns is not None and part.exposed_ns is not None and part.overlapped_ns is not None
    assert part.copy_only_ns is not None and part.idle_ns is not None
    assert part.comm_ns == part.overlapped_ns + part.exposed_ns, part
    assert part.span_ns == part.compute_ns + part.exposed_ns + part.copy_only_ns + part.idle_ns, part


def _by_launch(rank: int, events: pa.Table, windows: Sequence[StepWindow]) -> Iterator[StepPartition]:
    launched = steps_at(tuple(windows), launch_starts(events))
    device, here = ints(events, "device"), on_device(events)
    for time in device_times(events):
        for window in windows:
            own = _device_time(events, time.device, here & (device == time.device) & (launched == window.step))
            if not len(own.busy):
                yield _unknown(rank, time.device, window)
                continue
            overlapped, exposed = own.comm & time.compute, own.comm - time.compute
            assert own.comm.length == overlapped.length + exposed.length
            yield StepPartition(
                rank=rank,
                device=time.device,
                step=window.step,
                start_ns=window.start_ns,
                span_ns=window.span_ns,
                compute_ns=own.compute.length,
                comm_ns=own.comm.length,
                overlapped_ns=overlapped.length,
                exposed_ns=exposed.length,
                copy_only_ns=(own.copy - (time.compute | time.comm)).length,
                idle_ns=None,
            )


def _unknown(rank: int, device: int | None, window: StepWindow) -> StepPartition:
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
