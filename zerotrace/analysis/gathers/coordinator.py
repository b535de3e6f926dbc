"""What DeepSpeed's coordinator costs the host: its time, the idle time it leads to, and where it waits for the device.

The coordinator lets at most two fetches be pending: before it waits for the next one it synchronises the host with the
oldest, so that the host cannot run ahead.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.causes import idle_causes
from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.gathers.calls import Order
from zerotrace.analysis.labelled import LabelSpans
from zerotrace.analysis.partition import DeviceCauses
from zerotrace.ingest.classify import ANNOTATION_CATS
from zerotrace.ingest.steps import NO_STEP, steps_at
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.labels import LABEL_VERSION, LabelEvent
from zerotrace.model import StepWindow
from zerotrace.tables import codes_and_names, ints

_EVENT_SYNCHRONISE = "EventSynchronize"
_RELEASE = f"zt{LABEL_VERSION}:{LabelEvent.RELEASE.value} "


class Coordinator(Struct, frozen=True, eq=False):
    """The coordinator's part of each step; columns have one entry a step window, absent where unknown.

    Attributes:
        host: time inside of its fetches and releases.
        host_bound: idle time of the device, host-bound, that lies in them.
        num_forced: waits for a pending fetch.
        forced: time in them.
    """

    host: Int64Array
    host_bound: Int64Array
    num_forced: Int64Array
    forced: Int64Array


def coordinator_time(events: pa.Table, labels: LabelSpans) -> Intervals:
    """When the host is inside of fetches and releases; empty without labels of fetches.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`: the labels at least.
        labels: the rank's labels.
    """
    fetches = labels.of(LabelEvent.FETCH)
    return Intervals.union(fetches.start, fetches.end) | _releases(events) if len(fetches) else Intervals.empty()


def coordinator_bound(busy: Intervals, causes: DeviceCauses, windows: Sequence[StepWindow]) -> Int64Array:
    """Idle time of a device, host-bound, that lies in the coordinator's; one entry a window.

    Args:
        busy: what :func:`coordinator_time` says.
        causes: why time of the device is lost.
        windows: step windows.
    """
    if not windows:
        return np.zeros(0, dtype=np.int64)
    idle = idle_causes(causes.busy, causes.rows, windows)
    return idle.of_windows(idle.host_bound & busy)


def coordinator_of(
    events: pa.Table,
    labels: LabelSpans,
    windows: Sequence[StepWindow],
    host_bound: Int64Array | None,
    waited: Order | None,
) -> Coordinator:
    """The coordinator's part of each step.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        labels: the rank's labels; without those of fetches, only forced synchronisations can be told.
        windows: the rank's step windows.
        host_bound: what :func:`coordinator_bound` says of each window; ``None`` in host mode.
        waited: without labels, the calls for the device with only the waits of fetches among its waits; ``None`` where
            these are not known.
    """
    fetches = labels.of(LabelEvent.FETCH)
    unknown = np.full(len(windows), ABSENT, dtype=np.int64)
    start, end = _forced(events, fetches, waited)
    which = steps_at(tuple(windows), start)
    steps = np.array([window.step for window in windows], dtype=np.int64)
    found = host_bound is not None and (len(fetches) > 0 or waited is not None)
    order = np.argsort(steps)
    place = order[np.searchsorted(steps[order], which[which != NO_STEP])]
    num_forced, forced = np.zeros((2, steps.size), dtype=np.int64)
    np.add.at(num_forced, place, 1)
    np.add.at(forced, place, (end - start)[which != NO_STEP])
    host = unknown
    if len(fetches):
        begins, ends = (
            np.array([getattr(w, side) for w in windows], dtype=np.int64) for side in ("start_ns", "end_ns")
        )
        host = coordinator_time(events, labels).within(begins, ends)
    return Coordinator(
        host=host,
        host_bound=unknown if host_bound is None or not len(fetches) else host_bound,
        num_forced=num_forced if found else unknown,
        forced=forced if found else unknown,
    )


def _releases(events: pa.Table) -> Intervals:
    """When the coordinator gives parameters back. Only the time of these labels matters: they are not parsed."""
    codes, names = codes_and_names(events, "name")
    released = np.array([*(name.startswith(_RELEASE) for name in names), False])
    cats, distinct = codes_and_names(events, "cat")
    on_host = np.array([*(cat in ANNOTATION_CATS for cat in distinct), False])
    rows = np.flatnonzero(released[codes] & on_host[cats])
    start = ints(events, "start_ns")[rows]
    return Intervals.union(start, start + ints(events, "dur_ns")[rows])


def _forced(events: pa.Table, fetches: LabelSpans, waited: Order | None) -> tuple[Int64Array, Int64Array]:
    """Start and end of the calls by which the coordinator waits for a pending fetch."""
    codes, names = codes_and_names(events, "name")
    rows = np.flatnonzero(np.array([*(name.endswith(_EVENT_SYNCHRONISE) for name in names), False])[codes])
    start = ints(events, "start_ns")[rows]
    end = start + ints(events, "dur_ns")[rows]
    if len(fetches):
        mine = fetches.around(start) != ABSENT
    elif waited is not None:
        # What follows is a wait for gathers or the end of a fetch, and nothing is launched in between.
        waits = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *waited.waits.values()]))
        following = np.append(waits, np.iinfo(np.int64).max)[np.searchsorted(waits, end)]
        launched = np.append(waited.launched, np.iinfo(np.int64).max)[np.searchsorted(waited.launched, end)]
        mine = following < launched
    else:
        mine = np.zeros(rows.size, dtype=bool)
    return start[mine], end[mine]
