"""The gathers of all ranks of a run: columns for the tables and figures, or the reason why there are none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.across import Meeting
from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.gathers.cold import cold_steps
from zerotrace.analysis.gathers.complete import CompleteGathers, complete_gathers
from zerotrace.analysis.gathers.config import zero_config
from zerotrace.analysis.gathers.figures import gather_report
from zerotrace.analysis.reading import RankReading
from zerotrace.analysis.wire import LedgerRequest
from zerotrace.intervals import Int64Array
from zerotrace.model import Analysis, Diagnostic, GatherReport, Level


class RunGathers(Struct, frozen=True, eq=False):
    """The gathers of a run.

    Attributes:
        parts: those of each rank that has some, in the order of ranks.
        report: their figures; ``None`` where there are none.
        reason: why there are none, one sentence; ``None`` where there are some.
        diagnostics: what weakens the figures.
    """

    parts: tuple[CompleteGathers, ...]
    report: GatherReport | None
    reason: str | None
    diagnostics: tuple[Diagnostic, ...] = ()


def run_gathers(readings: Sequence[RankReading], meeting: Meeting | None, told: LedgerRequest) -> RunGathers:
    """Puts the gathers of all ranks together.

    Args:
        readings: every rank.
        meeting: the collectives of all ranks; ``None`` where there is one.
        told: what manifest and options say of the run.
    """
    scheme = told.scheme
    if scheme is not None and scheme.stage < 3:
        name = scheme.name if told.engine is not None else f"ZeRO stage {scheme.stage}"
        reason = f"{name} keeps whole parameters on every rank: no module waits for a gather."
        return RunGathers((), None, reason)
    unread = sum(reading.analysis.num_unread_labels for reading in readings)
    own = {reading.source.rank: found for reading in readings if (found := reading.analysis.gathers) is not None}
    if not any(len(found) for found in own.values()):
        why = ": the traces hold no label of one, and no all-gather that was launched outside of the optimizer step"
        if unread:
            why = f"; labels that could not be read, malformed or later: {unread}"
        return RunGathers((), None, f"No gather of parameters was found{why}.")
    cold = cold_steps(own, zero_config(told.manifest))
    parts = tuple(
        complete_gathers(
            reading.source.rank,
            own[reading.source.rank],
            reading.analysis.collectives,
            None if meeting is None else meeting.arrivals.wait[meeting.of_rank(reading.source.rank)],
            reading.analysis.comm,
            reading.analysis.exposed,
            cold,
        )
        for reading in readings
        if reading.source.rank in own
    )
    windows = [window for reading in readings for window in reading.windows]
    report = gather_report(parts, windows)
    return RunGathers(parts, report and replace(report, num_unread_labels=unread), None, tuple(_diagnostics(parts)))


def with_gathers(analysis: Analysis, found: RunGathers) -> Analysis:
    """The analysis with the figures of its gathers, or the reason why there are none."""
    notes = (*analysis.diagnostics, *found.diagnostics)
    return replace(analysis, gathers=found.report, no_gathers=found.reason, diagnostics=notes)


def gather_of_rows(found: RunGathers, meeting: Meeting) -> Int64Array:
    """The number of the gather of each row of the meeting; absent for rows of none."""
    numbers = np.full(len(meeting.rows), ABSENT, dtype=np.int64)
    for part in found.parts:
        numbers[meeting.of_rank(part.rank)] = part.own.of_row
    return numbers


def _diagnostics(parts: Sequence[CompleteGathers]) -> Iterator[Diagnostic]:
    empty = sum(int((part.own.times.num_collectives == 0).sum()) for part in parts)
    if empty:
        yield Diagnostic(
            code="gathers_without_collective",
            level=Level.INFO,
            count=empty,
            message=f"{empty} labelled gathers have no collective in the trace: their times are unknown, and in no sum",
            hint="expected where one rank holds all parameters; else records were lost",
        )
