"""What weakens the figures of a run, counted in one place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.bounds import DeviceDoubt
from zerotrace.analysis.diagnostics import RANK_FAILED
from zerotrace.analysis.launches import Launches, on_device
from zerotrace.ingest.steps import NO_STEP, steps_at
from zerotrace.intervals import Int64Array
from zerotrace.model import ClockReport, Diagnostic, RankSummary, StepWindow, TraceSource, Trust
from zerotrace.tables import BoolArray, codes_and_names, distinct_values, ints, optional_ints

#: Calls that launch kernels; that for a function of the host is none.
_LAUNCH, _OF_HOST = "Launch", "LaunchHostFunc"

_DROPPED = frozenset({"events_dropped", "duplicate_events"})


class RankCounts(Struct, frozen=True, kw_only=True):
    """What weakens the figures of one rank."""

    num_launches: int
    num_launches_without_kernel: int
    num_kernels_without_launch: int
    num_clipped: int


class RowCounts(Struct, frozen=True, eq=False):
    """The same of some of its rows.

    Attributes:
        called: correlation ids of calls that launch something.
        linked: correlation ids of rows that have a launch.
        num_anonymous: calls that launch something and have no id.
        num_unlinked: rows without a launch.
        first_unlinked: position in the trace of the first of them; ``None`` where there is none.
        num_clipped: rows that a step's border cuts.
    """

    called: Int64Array
    linked: Int64Array
    num_anonymous: int
    num_unlinked: int
    first_unlinked: int | None
    num_clipped: int


def count_rows(events: pa.Table, launches: Launches, windows: Sequence[StepWindow], counted: BoolArray) -> RowCounts:
    """Counts launches and rows that lack each other, and rows that a step's border cuts.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        launches: launches of ``events``.
        windows: the rank's step windows; launches outside of them do not count.
        counted: which of the rows; shape ``(num_rows,)``.
    """
    start, here = ints(events, "start_ns"), on_device(events) & counted
    codes, names = codes_and_names(events, "name")
    launching = [code for code, name in enumerate(names) if _LAUNCH in name and _OF_HOST not in name]
    calls = launches.calls.row[np.isin(codes[launches.calls.row], launching)]
    calls = calls[counted[calls]]
    calls = calls[steps_at(tuple(windows), start[calls]) != NO_STEP]
    ids, known = optional_ints(events, "correlation")
    unlinked = ints(events, "event")[here & ~launches.linked]
    return RowCounts(
        called=distinct_values(ids[calls[known[calls]]]),
        linked=distinct_values(ids[here & launches.linked]),
        num_anonymous=int((~known[calls]).sum()),
        num_unlinked=int(unlinked.size),
        first_unlinked=int(unlinked.min()) if unlinked.size else None,
        num_clipped=_num_cut(start[here], start[here] + ints(events, "dur_ns")[here], windows),
    )


def count_rank(parts: Sequence[RowCounts]) -> RankCounts:
    """Sums up the counts of all rows of a rank."""
    # A runtime call may make a driver call of the same correlation: it is launched by the earlier of the two.
    called, linked = (
        distinct_values(np.concatenate([getattr(part, name) for part in parts])) for name in ("called", "linked")
    )
    anonymous = sum(part.num_anonymous for part in parts)
    return RankCounts(
        num_launches=int(called.size) + anonymous,
        num_launches_without_kernel=int(np.setdiff1d(called, linked, assume_unique=True).size) + anonymous,
        num_kernels_without_launch=sum(part.num_unlinked for part in parts),
        num_clipped=sum(part.num_clipped for part in parts),
    )


def _num_cut(start: Int64Array, end: Int64Array, windows: Sequence[StepWindow]) -> int:
    """How many rows have the border of a step between their start and their end."""
    borders = np.sort(np.array([(window.start_ns, window.end_ns) for window in windows], dtype=np.int64).ravel())
    first_behind, first_not_before = np.searchsorted(borders, start, "right"), np.searchsorted(borders, end, "left")
    return int((first_not_before > first_behind).sum())


def sum_up_trust(
    sources: Sequence[TraceSource],
    counts: Iterable[RankCounts | None],
    doubts: Iterable[DeviceDoubt],
    ranks: Sequence[RankSummary],
    diagnostics: Sequence[Diagnostic],
    *,
    num_unmatched: int | None,
    clock: ClockReport | None,
    dilation_ratio: float | None,
) -> Trust:
    """The trust section of a result.

    Args:
        sources: traces that were read.
        counts: of each rank; ``None`` in host mode.
        doubts: kernels of unknown class, of all devices.
        ranks: mean steps.
        diagnostics: of the run.
        num_unmatched: rows of collectives without a partner; ``None`` where a single rank was read.
        clock: how the ranks' clocks agree.
        dilation_ratio: profiled / unprofiled step.
    """
    known = [count for count in counts if count is not None]
    shares = [min(r.bounds.unclassified_ns / r.compute_ns, 1.0) for r in ranks if r.bounds is not None and r.compute_ns]
    world = max((source.world_size for source in sources if source.world_size), default=0)
    num_failed = sum(note.code == RANK_FAILED for note in diagnostics)
    return Trust(
        unclassified_ratio=max(shares, default=0.0),
        unclassified_names=tuple(dict.fromkeys(name for doubt in doubts for name in doubt.names)),
        num_launches=sum(c.num_launches for c in known) if known else None,
        num_launches_without_kernel=sum(c.num_launches_without_kernel for c in known) if known else None,
        num_kernels_without_launch=sum(c.num_kernels_without_launch for c in known) if known else None,
        num_dropped=sum(note.count for note in diagnostics if note.code in _DROPPED),
        num_clipped=sum(c.num_clipped for c in known),
        num_missing_ranks=max(world - len(sources), 0) if world else num_failed or None,
        num_unmatched=num_unmatched,
        clock_residual_median_ns=clock.residual_median_ns if clock else None,
        clock_residual_worst_ns=clock.residual_worst_ns if clock else None,
        dilation_ratio=dilation_ratio,
    )
