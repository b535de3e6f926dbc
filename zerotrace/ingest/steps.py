"""Step windows: where the profiler's steps lie on a rank's host clock."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from zerotrace.intervals import Int64Array
from zerotrace.model import STEP_ALL, StepWindow

_PROFILER_STEP = re.compile(r"^ProfilerStep\s*#\s*(\d{1,9})$")

#: ``step`` of a time that lies in no window, inside numpy arrays.
NO_STEP = -2


def step_number(name: str) -> int | None:
    """The step that an annotation opens, or ``None`` if it is no ProfilerStep."""
    match = _PROFILER_STEP.match(name)
    return int(match[1]) if match else None


def outermost_windows(rank: int, marks: Iterable[tuple[int, int, int]]) -> tuple[StepWindow, ...]:
    """One window a step number.

    Args:
        rank: global rank.
        marks: ``(step, start_ns, end_ns)`` of each host annotation ``ProfilerStep#N``. A framework may open the
            same step on several threads; the outermost counts.

    Returns:
        Windows sorted by start.
    """
    longest: dict[int, tuple[int, int]] = {}
    for step, start, end in marks:
        known = longest.get(step)
        if known is None or end - start > known[1] - known[0]:
            longest[step] = (start, end)
    windows = [StepWindow(rank=rank, step=step, start_ns=a, end_ns=b) for step, (a, b) in longest.items() if b > a]
    return tuple(sorted(windows, key=lambda window: window.start_ns))


def whole_trace_window(rank: int, start_ns: int, end_ns: int) -> StepWindow:
    """The one window ``all`` of a trace without ProfilerStep."""
    return StepWindow(rank=rank, step=STEP_ALL, start_ns=start_ns, end_ns=end_ns)


def steps_at(windows: tuple[StepWindow, ...], times: Int64Array) -> Int64Array:
    """The step in whose window each time lies; :data:`NO_STEP` outside of all of them.

    Args:
        windows: sorted by start.
        times: shape ``(n,)``, nanoseconds.

    Returns:
        Shape ``(n,)``. Where windows overlap, the later one counts.
    """
    found = np.full(times.shape, NO_STEP, dtype=np.int64)
    for window in windows:
        found[(times >= window.start_ns) & (times < window.end_ns)] = window.step
    return found
