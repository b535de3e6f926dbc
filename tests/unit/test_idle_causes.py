"""Idle time by cause in several windows at once, against each nanosecond looked at alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zerotrace.analysis.causes import DeviceRows, idle_causes
from zerotrace.intervals import Intervals
from zerotrace.model import StepWindow

ROWS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 9), st.integers(-20, 30), st.booleans()), min_size=1, max_size=8
)
WINDOWS = st.lists(st.tuples(st.integers(-5, 50), st.integers(1, 40)), min_size=1, max_size=4)


@given(ROWS, WINDOWS)
def test_each_idle_nanosecond_has_the_cause_of_the_row_that_ends_it(
    found: list[tuple[int, int, int, bool]], spans: list[tuple[int, int]]
) -> None:
    ordered = sorted(found)
    start, length, lead, linked = (np.array(column, dtype=np.int64) for column in zip(*ordered))
    returned = start - lead
    anything = np.zeros(start.size, dtype=bool)
    rows = DeviceRows(
        start=start,
        end=start + length,
        stream=np.zeros_like(start),
        is_compute=~anything,
        is_comm=anything,
        launch_start=returned - 1,
        launch_end=returned,
        launch_thread=np.where(linked == 1, 0, -1),
    )
    windows = [StepWindow(rank=0, step=i, start_ns=a, end_ns=a + b) for i, (a, b) in enumerate(spans)]
    busy = Intervals.union(rows.start, rows.end)
    idle = idle_causes(busy, rows, windows)
    got = [idle.of_windows(cause).tolist() for cause in (idle.host_bound, idle.stalled, idle.unlinked)] + [
        idle.tail_ns.tolist()
    ]
    for number, window in enumerate(windows):
        count = dict.fromkeys(("host_bound", "stalled", "unlinked", "tail"), 0)
        for moment in range(window.start_ns, window.end_ns):
            if not busy.holds(np.array([moment]))[0]:
                count[cause_of(moment, window.end_ns, rows)] += 1
        if busy.clip(window.start_ns, window.end_ns):
            assert [column[number] for column in got] == list(count.values())


def cause_of(moment: int, end: int, rows: DeviceRows) -> str:
    """Why the device is idle at a moment, by the first row that starts behind it and inside of the window."""
    behind = rows.start[(rows.start > moment) & (rows.start < end)]
    if not behind.size:
        return "tail"
    ending = (rows.start == behind.min()) & (rows.launch_thread >= 0)
    if not ending.any():
        return "unlinked"
    return "host_bound" if moment < rows.launch_end[ending].min() else "stalled"
