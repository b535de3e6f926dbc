"""In which phase of a step an all-gather was called: by the labels of the engine's calls, else by torch's own marks.

Without labels: backward inside of autograd's operators; step behind the optimizer's annotation (or behind the last
backward of the step window), until compute is launched behind the first all-gather there; forward otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.gathers.calls import Calls, Order
from zerotrace.analysis.gathers.submissions import PHASES
from zerotrace.analysis.labelled import LabelSpans
from zerotrace.ingest.steps import steps_at
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.labels import LabelEvent, Phase
from zerotrace.model import StepWindow
from zerotrace.tables import BoolArray, codes_and_names, ints

_FORWARD, _BACKWARD, _STEP = (PHASES.index(phase) for phase in Phase)

#: How the names of the operators and annotations begin that tell phases apart.
BACKWARD_OPERATOR = "autograd::engine::evaluate_function"
OPTIMIZER_STEP = "Optimizer.step#"


class BackwardOperators(Struct, frozen=True, eq=False):
    """The operators by which autograd runs the backward pass. Columns have one entry an operator.

    Attributes:
        start: nanoseconds.
        end: nanoseconds.
        tid: thread.
    """

    start: Int64Array
    end: Int64Array
    tid: Int64Array

    @classmethod
    def of_all(cls, parts: Sequence[BackwardOperators]) -> BackwardOperators:
        """Those of several tables."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in cls.__struct_fields__))


def backward_operators(events: pa.Table, counted: BoolArray) -> BackwardOperators:
    """The operators of the backward pass.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        counted: which of the rows are looked at; shape ``(num_rows,)``.
    """
    rows = np.flatnonzero(_annotated(events, BACKWARD_OPERATOR) & counted)
    start = ints(events, "start_ns")[rows]
    return BackwardOperators(start, start + ints(events, "dur_ns")[rows], ints(events, "tid")[rows])


def phases_of(
    events: pa.Table,
    calls: Calls,
    labels: LabelSpans,
    windows: Sequence[StepWindow],
    order: Order,
    backward: BackwardOperators,
) -> Int64Array:
    """The phase of each call, as an index into ``PHASES``; absent where nothing tells it.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        calls: calls of all-gathers, sorted by time.
        labels: whatever labels there are.
        windows: the rank's step windows.
        order: calls for the device.
        backward: operators of the backward pass.
    """
    engine = labels.of(LabelEvent.PHASE)
    if len(engine):
        known = [engine.labels[i].phase if i != ABSENT else None for i in engine.around(calls.time).tolist()]
        return np.array([ABSENT if phase is None else PHASES.index(phase) for phase in known], dtype=np.int64)
    optimizer = np.flatnonzero(_annotated(events, OPTIMIZER_STEP))
    if not backward.start.size and not optimizer.size:
        return np.full(calls.time.shape, ABSENT, dtype=np.int64)
    is_backward = _inside(backward, calls)
    begins = np.sort(ints(events, "start_ns")[optimizer])
    if not optimizer.size:
        begins = _last_of_windows(np.sort(backward.end), windows)
    is_step = ~is_backward & _behind(begins, calls, windows, order)
    return np.where(is_backward, _BACKWARD, np.where(is_step, _STEP, _FORWARD)).astype(np.int64)


def _annotated(events: pa.Table, prefix: str) -> BoolArray:
    """Host annotations and operators of that name."""
    codes, names = codes_and_names(events, "name")
    chosen = np.array([*(name.startswith(prefix) for name in names), False])[codes]
    cats, distinct = codes_and_names(events, "cat")
    on_host = np.array([*(not cat.startswith("gpu_") for cat in distinct), False])[cats]
    return np.asarray(chosen & on_host, dtype=bool)


def _inside(backward: BackwardOperators, calls: Calls) -> BoolArray:
    """Calls that lie in one of the operators, on its thread."""
    inside = np.zeros(calls.time.shape, dtype=bool)
    for thread in np.unique(backward.tid).tolist():
        here = calls.tid == thread
        if here.any():
            mine = backward.tid == thread
            inside[here] = Intervals.union(backward.start[mine], backward.end[mine]).holds(calls.time[here])
    return inside


def _last_of_windows(ends: Int64Array, windows: Sequence[StepWindow]) -> Int64Array:
    """The last of the moments in each window that has one."""
    last = np.searchsorted(ends, [window.end_ns for window in windows]) - 1
    return np.unique(ends[last[last >= 0]])


def _behind(begins: Int64Array, calls: Calls, windows: Sequence[StepWindow], order: Order) -> BoolArray:
    """Calls in the window of one of these moments, behind it, before compute is launched behind the first of them."""
    behind = np.zeros(calls.time.shape, dtype=bool)
    begin = np.searchsorted(begins, calls.time, side="right") - 1
    window, home = steps_at(tuple(windows), calls.time), steps_at(tuple(windows), begins)
    launched = np.append(order.launched, np.iinfo(np.int64).max)
    for number in np.unique(begin[begin >= 0]).tolist():
        mine = np.flatnonzero((begin == number) & (window == home[number]))
        if mine.size:
            behind[mine] = calls.time[mine] < launched[np.searchsorted(launched, calls.time[mine[0]])]
    return behind
