"""Step windows: where the profiler's steps lie on a rank's host clock."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np

from zerotrace.intervals import Int64Array
from zerotrace.model import STEP_ALL, Diagnostic, Level, StepWindow

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


def doubtful_windows(
    windows: Sequence[StepWindow], marks: Iterable[tuple[int, int, int]], file: str
) -> Iterator[Diagnostic]:
    """What is odd about step windows: one step annotated in two places, or windows that share time.

    Args:
        windows: as :func:`outermost_windows` gives them.
        marks: what they were made of.
        file: name of the trace, for messages.
    """
    kept = {window.step: window for window in windows}
    apart = sorted({s for s, a, b in marks if s in kept and (b <= kept[s].start_ns or a >= kept[s].end_ns)})
    if apart:
        yield Diagnostic(
            code="step_annotated_twice",
            level=Level.WARNING,
            file=file,
            count=len(apart),
            message=f"{file}: ProfilerStep {', '.join(map(str, apart[:8]))} is annotated more than once, apart from "
            "each other; the longest window of each number counts, the others are left out",
            hint="the step counter was restarted, or two cycles of the profiler's schedule share one trace",
        )
    shared = [later.step for first, later in pairwise(windows) if later.start_ns < first.end_ns]
    if shared:
        yield Diagnostic(
            code="steps_overlap",
            level=Level.WARNING,
            file=file,
            count=len(shared),
            message=f"{file}: step windows overlap (step {', '.join(map(str, shared[:8]))} begins before the one "
            "ahead of it ends): device time there counts in both",
            hint="open one ProfilerStep at a time",
        )


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
    if not windows:
        return found
    start, end, step = np.array([(w.start_ns, w.end_ns, w.step) for w in windows], dtype=np.int64).T
    place = np.searchsorted(start, times, side="right") - 1
    inside = (place >= 0) & (times < np.maximum.accumulate(end)[place])
    # The last window that has begun may have ended in another one, which has not.
    ended = np.flatnonzero(inside & (times >= end[place]))
    while ended.size:
        place[ended] -= 1
        ended = ended[times[ended] >= end[place[ended]]]
    found[inside] = step[place[inside]]
    return found
