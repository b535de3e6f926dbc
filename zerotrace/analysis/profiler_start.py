"""Waiting that is none of the training's: for a rank whose profiler started later than the others'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct

from zerotrace.analysis.arrivals import Arrivals
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.grouping import extremes
from zerotrace.analysis.matching import Matches
from zerotrace.intervals import Int64Array
from zerotrace.model import STEP_ALL, Diagnostic, Level, StepWindow
from zerotrace.tables import BoolArray
from zerotrace.units import NS_PER_US

#: Waiting of less than this part of a step is said, but leaves the step in the means.
_MATERIAL = 0.05

_NAMED_RANKS = 8


class ProfilerStart(Struct, frozen=True, eq=False):
    """Rows that wait for a rank which was not recording yet when they started.

    Starting a profiler takes milliseconds, and ranks do not start it at one moment: the last one is late for what
    the others have begun.

    Attributes:
        waits: shape ``(num_rows,)``; whether the row is one.
        steps: steps of which such waiting is a part that cannot be passed over.
    """

    waits: BoolArray
    steps: frozenset[int]
    notes: tuple[Diagnostic, ...]


def find_profiler_start(
    rows: CollectiveRows,
    matches: Matches,
    arrivals: Arrivals,
    first_ns: Mapping[int, int],
    windows: Sequence[StepWindow],
) -> ProfilerStart:
    """Finds waiting for a rank whose trace begins after the waiting did.

    Args:
        rows: rows of all ranks, each on its own clock.
        matches: which of them are one collective.
        arrivals: who arrives last.
        first_ns: start of the first event of each rank's trace, on its own clock.
        windows: step windows of all ranks.
    """
    last = np.append(arrivals.last_rank, ABSENT)[matches.collective]
    late = np.flatnonzero((last != ABSENT) & (arrivals.wait > 0))
    begins = np.array([first_ns[rank] for rank in last[late].tolist()], dtype=np.int64)
    begins -= matches.clocks.of_rows(last[late])
    late = late[begins > rows.start[late] - matches.clocks.of_rows(rows.rank[late])]
    waits = np.zeros(len(rows), dtype=bool)
    waits[late] = True
    span = {(window.rank, window.step): window.span_ns for window in windows}
    spans = [span.get(key, 0) for key in zip(rows.rank[late].tolist(), rows.step[late].tolist())]
    large = arrivals.wait[late] >= np.maximum(_MATERIAL * np.array(spans, dtype=np.float64), 1)
    steps = frozenset(step for step in rows.step[late][large].tolist() if step > STEP_ALL)
    return ProfilerStart(waits, steps, tuple(_notes(rows, arrivals, late, large, last[late])))


def _notes(
    rows: CollectiveRows, arrivals: Arrivals, late: Int64Array, large: BoolArray, last: Int64Array
) -> Iterator[Diagnostic]:
    ranks, which = np.unique(last, return_inverse=True)
    longest_ns, _ = extremes(which.reshape(-1), -arrivals.wait[late], ranks.size)
    for rank in ranks[np.argsort(longest_ns, kind="stable")][:_NAMED_RANKS].tolist():  # the worst first
        mine = late[last == rank]
        longest = mine[np.argmax(arrivals.wait[mine])]
        step = int(rows.step[longest])
        where = f" in step {step}" if step > STEP_ALL else ""
        waiting = sorted(set(rows.rank[mine].tolist()))
        who = f"rank {waiting[0]}" if len(waiting) == 1 else f"{len(waiting)} ranks"
        material = bool(large[last == rank].any())
        yield Diagnostic(
            code="profiler_start_skew",
            level=Level.WARNING if material else Level.INFO,
            count=mine.size,
            message=f"rank {rank}: its profiler started later, and {who} waited up to "
            f"{arrivals.wait[longest] / NS_PER_US:.0f} µs for it{where}. That is no waiting of the training: it counts "
            f"in no figure of who is late{', and the step in no mean if there are others' if material else ''}",
            hint="let all ranks pass a barrier after the profiler has started, or record a step before the first that "
            "counts",
        )
