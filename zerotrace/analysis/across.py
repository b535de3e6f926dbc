"""What ranks tell of each other: who waits for whom, and how much of exposed communication is waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.arrivals import Arrivals, arrivals
from zerotrace.analysis.bandwidth import bandwidths, bytes_moved, unknown_types
from zerotrace.analysis.clock_report import report_clocks
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.matching import Matches, match
from zerotrace.analysis.partition import split_exposed
from zerotrace.analysis.profiler_start import ProfilerStart, find_profiler_start
from zerotrace.analysis.rank import RankAnalysis
from zerotrace.analysis.unmatched import unmatched
from zerotrace.ingest.columns import Texts
from zerotrace.ingest.steps import NO_STEP
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import ClockReport, Diagnostic, StepPartition, StepWindow
from zerotrace.schema import COLLECTIVES
from zerotrace.tables import float_array, int_array


class Meeting(Struct, frozen=True, eq=False):
    """The collectives of a run, matched over its ranks.

    Times in ``rows`` are on each rank's own clock. ``arrivals`` compares them on the clock of the lowest rank's
    host: what ``matches.clocks.of_rows(rows.rank)`` gives is taken off first.
    """

    rows: CollectiveRows
    matches: Matches
    arrivals: Arrivals
    clock: ClockReport
    profiler_start: ProfilerStart
    """Rows whose waiting is not the training's: no figure of who is late may count them."""
    notes: tuple[Diagnostic, ...]
    """What weakens figures that compare ranks."""

    def of_rank(self, rank: int) -> slice:
        """Where the rows of a rank lie: they are in the order of ranks."""
        low, high = np.searchsorted(self.rows.rank, (rank, rank + 1)).tolist()
        return slice(low, high)


def meet(
    analyses: Sequence[RankAnalysis], hosts: Mapping[int, str | None], windows: Sequence[StepWindow]
) -> Meeting | None:
    """Matches the collectives of all ranks; ``None`` where there is one rank, or no communication at all.

    Args:
        analyses: all ranks, in rising order.
        hosts: name of each rank's host; ``None`` where it is not known.
        windows: step windows of all ranks.
    """
    rows = CollectiveRows.concatenate([analysis.collectives for analysis in analyses])
    if len(analyses) < 2 or not len(rows):
        return None
    matches = match(rows, hosts)
    found = arrivals(rows, matches)
    first_ns = {analysis.rank: analysis.first_ns for analysis in analyses}
    started = find_profiler_start(rows, matches, found, first_ns, windows)
    clock, clock_notes = report_clocks(rows, matches)
    notes = (*clock_notes, *started.notes, *unmatched(rows, matches), *unknown_types(rows))
    return Meeting(rows, matches, found, clock, started, notes)


def transferring(analysis: RankAnalysis, meeting: Meeting) -> dict[int | None, Intervals]:
    """When a collective runs on a rank's device and all its members have started, for each of its devices.

    Args:
        analysis: one rank.
        meeting: all of them.
    """
    mine = meeting.of_rank(analysis.rank)
    start, end = meeting.rows.start[mine], meeting.rows.end[mine]
    arrived = start + np.maximum(meeting.arrivals.wait[mine], 0)
    device = meeting.rows.device[mine]
    found = {}
    for index in analysis.exposed:
        here = device == (ABSENT if index is None else index)
        rest = analysis.exposed[index] - Intervals.union(start[here], end[here])  # copies around a collective's kernel
        found[index] = Intervals.union(arrived[here], end[here]) | rest
    return found


def split_waiting(analysis: RankAnalysis, meeting: Meeting) -> tuple[StepPartition, ...]:
    """A rank's partition with exposed communication split into transfer and wait.

    A row that matched no other counts as transfer: nothing shows that it waited.

    Args:
        analysis: one rank.
        meeting: all of them.
    """
    parts = analysis.partition
    exposed, transfer = np.zeros((2, len(parts)), dtype=np.int64)
    begins = np.array([part.start_ns for part in parts], dtype=np.int64)
    ends = begins + np.array([part.span_ns for part in parts], dtype=np.int64)
    for device, transferring_now in transferring(analysis, meeting).items():
        here = [number for number, part in enumerate(parts) if part.device == device]
        exposed[here] = analysis.exposed[device].within(begins[here], ends[here])
        transfer[here] = (analysis.exposed[device] & transferring_now).within(begins[here], ends[here])
        for number in here if analysis.launched_exposed else ():
            launched = analysis.launched_exposed[device, parts[number].step]
            exposed[number], transfer[number] = launched.length, (launched & transferring_now).length
    return tuple(split_exposed(parts, exposed, transfer))


def collectives_table(meeting: Meeting, gather: Int64Array) -> pa.Table:
    """Every row of communication with what its collective says of it: :data:`zerotrace.schema.COLLECTIVES`.

    Args:
        meeting: the rows, matched.
        gather: number of each row's parameter gather; absent for rows of none.
    """
    rows, found = meeting.rows, meeting.arrivals
    which = meeting.matches.collective
    known = which != ABSENT
    size = bytes_moved(rows)
    transfer = _of_collective(found.transfer, which)
    algbw, busbw = bandwidths(rows, size, transfer, known)
    last = _of_collective(found.last_rank, which)
    clocks = meeting.matches.clocks
    offset, known_clock = clocks.of_rows(rows.rank), clocks.known[clocks.hosts(rows.rank)]
    everywhere = np.ones(len(rows), dtype=bool)
    integers = {
        "collective": (which, known),
        "rank": (rows.rank, everywhere),
        "device": (rows.device, rows.device != ABSENT),
        "event": (rows.event, everywhere),
        "step": (rows.step, rows.step != NO_STEP),
        "group_size": (rows.size, rows.size != ABSENT),
        "seq": (rows.seq, rows.seq != ABSENT),
        "size_bytes": (size, size != ABSENT),
        "start_ns": (rows.start, everywhere),
        "end_ns": (rows.end, everywhere),
        "arrival_ns": (_of_collective(found.arrival, which), known),
        "wait_ns": (found.wait, known),
        "skew_ns": (_of_collective(found.skew, which), known),
        "transfer_ns": (transfer, known),
        "last_rank": (last, known & (last != ABSENT)),
        "num_members": (_of_collective(found.num_members, which), known),
        "gather": (gather, gather != ABSENT),
        "clock_offset_ns": (offset, known_clock),
        "profiler_start_ns": (found.wait, meeting.profiler_start.waits),
    }
    by = np.where(known, meeting.matches.by_order, -1).astype(np.int32)
    texts = {
        "name": rows.name,
        "group": rows.group,
        "dtype": rows.dtype,
        "phase": rows.phase,
        "matched_by": Texts(by, ["Seq", "order"]),
    }
    ratios = {"algbw_gbps": algbw, "busbw_gbps": busbw}
    schema = COLLECTIVES.arrow()
    arrays = []
    for field in schema:
        if field.name in integers:
            values, present = integers[field.name]
            arrays.append(int_array(values, present, field.type))
        elif field.name in texts:
            arrays.append(texts[field.name].arrow())
        else:
            arrays.append(float_array(ratios[field.name]))
    return pa.Table.from_arrays(arrays, schema=schema)


def _of_collective(values: Int64Array, which: Int64Array) -> Int64Array:
    """The value of each row's collective; whatever for rows without one."""
    return np.append(values, ABSENT)[which]
