"""The gathers of one rank, as far as they need no other rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.bandwidth import ELEMENT_BYTES
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.fsdp import FsdpSpans
from zerotrace.analysis.gathers.by_label import fsdp_submissions, labelled_submissions
from zerotrace.analysis.gathers.by_order import GatherRows, infer_kinds, inferred_submissions
from zerotrace.analysis.gathers.calls import Calls, ComputeLaunches, find_calls, order_of
from zerotrace.analysis.gathers.coordinator import Coordinator, coordinator_of
from zerotrace.analysis.gathers.phases import BackwardOperators, phases_of
from zerotrace.analysis.gathers.submissions import PHASES, Submissions
from zerotrace.analysis.gathers.times import GatherTimes, gather_times
from zerotrace.analysis.labelled import LabelSpans
from zerotrace.analysis.launches import Launches
from zerotrace.analysis.partition import DeviceSets
from zerotrace.ingest.steps import steps_at
from zerotrace.intervals import Int64Array
from zerotrace.labels import LabelEvent, Phase
from zerotrace.model import Attribution, StepWindow
from zerotrace.tables import BoolArray, optional_ints

_STEP = PHASES.index(Phase.STEP)


class RankGathers(Struct, frozen=True, eq=False):
    """The gathers of one rank, in the order of submission. Numbers that are unknown are absent.

    Attributes:
        found: what was submitted; one entry a gather.
        step: the step of each: in which it starts on the device, or in which it was submitted, as rows are attributed.
        times: how long each took, and how much of that was hidden.
        of_row: number of the gather of each of the rank's rows of communication.
        coordinator: the host's part.
    """

    found: Submissions
    step: Int64Array
    times: GatherTimes
    of_row: Int64Array
    coordinator: Coordinator

    def __len__(self) -> int:
        """Number of gathers."""
        return len(self.found)


class Sought(Struct, frozen=True, eq=False):
    """Where to look for the gathers of one rank.

    Attributes:
        labelled: labels of gathers.
        calls: the calls of all rows of communication.
        of_row: label around the call of each of them; absent where there is none.
        others: all-gathers without a label, sorted by the time of their call.
        device: the one that the gathers run on; absent in host mode.
    """

    labelled: LabelSpans
    calls: Calls
    of_row: Int64Array
    others: Int64Array
    device: int


class RankView(Struct, frozen=True, eq=False):
    """What is known of one rank before its gathers are.

    Attributes:
        events: rows of :data:`zerotrace.schema.EVENTS`: those of communication, labels, waits and synchronising calls.
        windows: the rank's step windows.
        labels: the rank's labels.
        fsdp: what FSDP2's annotations say; ``None`` where there are none.
        rows: the rank's rows of communication.
        sets: time of each device.
        compute: the compute rows of the device that the gathers run on.
        ends_beside: for each of ``rows``, whether compute runs right before its end on that device.
        backward: operators of the backward pass.
        host_bound: what the coordinator's time costs that device in each window; ``None`` in host mode.
    """

    events: pa.Table
    windows: Sequence[StepWindow]
    labels: LabelSpans
    fsdp: FsdpSpans | None
    rows: CollectiveRows
    sets: Sequence[DeviceSets]
    compute: ComputeLaunches
    ends_beside: BoolArray
    backward: BackwardOperators
    host_bound: Int64Array | None


def seek_gathers(
    events: pa.Table, launches: Launches, labels: LabelSpans, rows: CollectiveRows, *, has_links: bool
) -> Sought | None:
    """Where to look for gathers; ``None`` where nothing looks like stage 3.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        launches: launches of ``events``.
        labels: the rank's labels.
        rows: the rank's rows of communication.
        has_links: whether any row of the rank has a launch.
    """
    labelled, calls = labels.of(LabelEvent.GATHER), find_calls(events, launches, has_links=has_links)
    of_row = np.where(calls.time != ABSENT, labelled.around(calls.time, calls.pid, calls.tid), ABSENT)
    others = np.flatnonzero(calls.is_gather & (of_row == ABSENT) & (calls.time != ABSENT))
    others = others[np.argsort(calls.time[others], kind="stable")]
    without_coordinator = len(labels) > 0 and not len(labelled) and not len(labels.of(LabelEvent.FETCH))
    if without_coordinator or not (len(labelled) or others.size):
        return None
    device = _common(rows.device, np.flatnonzero(of_row != ABSENT) if len(labelled) else others)
    return Sought(labelled, calls, of_row, others, device)


def find_gathers(view: RankView, sought: Sought, attribution: Attribution) -> RankGathers | None:
    """The gathers of one rank; ``None`` where nothing looks like stage 3.

    Args:
        view: the rank.
        sought: where to look for them.
        attribution: how gathers are given to steps; one without a collective belongs where it was submitted.
    """
    labelled, calls, of_row, others = sought.labelled, sought.calls, sought.of_row.copy(), sought.others
    order = order_of(view.events, sought.device, view.compute)
    phase = phases_of(view.events, calls.take(others), view.labels, view.windows, order, view.backward)
    if len(labelled):
        # The coordinator's are labelled; what is not is the refresh of persisted parameters, or none of stage 3's.
        others, phase = others[phase == _STEP], phase[phase == _STEP]
    elif (phase == _STEP).all():
        return None  # all-gathers behind the optimizer alone: stages 1 and 2
    bare = _unlabelled(view, calls, others, phase)
    inference = infer_kinds(bare, order, _streams(view.events, calls, others))
    found = (
        labelled_submissions(labelled, view.labels.of(LabelEvent.FETCH), order)
        if view.fsdp is None
        else fsdp_submissions(labelled, view.fsdp, order)
    )
    of_row[others] = len(found) + np.arange(others.size)
    found = Submissions.concatenate(found, inferred_submissions(bare, inference, order))
    by_time = np.argsort(found.submit, kind="stable")
    found, of_row = found.take(by_time), np.append(np.argsort(by_time), ABSENT)[of_row]
    found = replace(found, elements=_elements(found, of_row, calls))
    timed = gather_times(len(found), of_row, view.rows, view.sets)
    when = np.where((timed.start == ABSENT) | (attribution is Attribution.LAUNCH), found.submit, timed.start)
    return RankGathers(
        found=replace(found, bytes=_bytes(found, of_row, view.rows)),
        step=steps_at(tuple(view.windows), when),
        times=timed,
        of_row=of_row,
        coordinator=coordinator_of(
            view.events, view.labels, view.windows, view.host_bound, inference.fetch_order(order)
        ),
    )


def _common(device: Int64Array, rows: Int64Array) -> int:
    """The device of most of the rows: a coordinator drives one."""
    known, count = np.unique(device[rows], return_counts=True)
    return int(known[np.argmax(count)]) if known.size else int(device[0]) if device.size else ABSENT


def _unlabelled(view: RankView, calls: Calls, chosen: Int64Array, phase: Int64Array) -> GatherRows:
    mine = calls.take(chosen)
    return GatherRows(
        time=mine.time,
        done=mine.done,
        ended=view.rows.end[chosen],
        phase=phase,
        step=steps_at(tuple(view.windows), mine.time),
        elements=mine.elements,
        ends_beside=view.ends_beside[chosen],
    )


def _streams(events: pa.Table, calls: Calls, chosen: Int64Array) -> frozenset[int]:
    stream, known = optional_ints(events, "stream")
    rows = calls.row[chosen]
    return frozenset(stream[rows[known[rows]]].tolist())


def _elements(found: Submissions, of_row: Int64Array, calls: Calls) -> Int64Array:
    """Elements of each gather: what its label says, else (FSDP2's annotations do not) what its collectives put out."""
    mine = np.flatnonzero(of_row != ABSENT)
    total, silent = (np.zeros(len(found), dtype=np.int64) for _ in range(2))
    np.add.at(total, of_row[mine], calls.elements[mine])
    np.add.at(silent, of_row[mine], calls.elements[mine] == ABSENT)
    known = (np.bincount(of_row[mine], minlength=len(found)) > 0) & (silent == 0)
    return np.where((found.elements == ABSENT) & known, total, found.elements)


def _bytes(found: Submissions, of_row: Int64Array, rows: CollectiveRows) -> Int64Array:
    """Bytes of each gather: what its label says, else elements times the width of what its collectives carry."""
    width = np.array([*(ELEMENT_BYTES.get(text, ABSENT) for text in rows.dtype.distinct), ABSENT])[rows.dtype.codes]
    mine = np.flatnonzero(of_row != ABSENT)
    low, high = np.full(len(found), np.iinfo(np.int64).max), np.full(len(found), ABSENT, dtype=np.int64)
    np.minimum.at(low, of_row[mine], width[mine])
    np.maximum.at(high, of_row[mine], width[mine])
    known = (low == high) & (high != ABSENT) & (found.elements != ABSENT)
    return np.where(found.bytes != ABSENT, found.bytes, np.where(known, found.elements * high, ABSENT))
