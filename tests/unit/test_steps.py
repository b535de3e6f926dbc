"""Which step a time lies in, against looking at every window for every time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zerotrace.ingest.steps import NO_STEP, steps_at
from zerotrace.model import StepWindow

Spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 12)), max_size=6)


@given(Spans, st.lists(st.integers(-3, 60), max_size=20))
def test_a_time_lies_in_the_last_window_that_holds_it(spans: list[tuple[int, int]], times: list[int]) -> None:
    windows = tuple(
        StepWindow(rank=0, step=10 + number, start_ns=start, end_ns=start + length)
        for number, (start, length) in enumerate(sorted(spans))
    )
    holding = [[w.step for w in windows if w.start_ns <= time < w.end_ns] for time in times]
    found = steps_at(windows, np.array(times, dtype=np.int64))
    assert found.tolist() == [steps[-1] if steps else NO_STEP for steps in holding]
