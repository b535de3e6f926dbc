"""What ranks tell of each other: who waits for whom, and how much of exposed communication is waiting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from zerotrace.analysis.arrivals import Arrivals, arrivals
from zerotrace.analysis.bandwidth import bandwidths, bytes_moved
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.matching import Matches, match
from zerotrace.analysis.partition import split_exposed
from zerotrace.analysis.rank import RankAnalysis
from zerotrace.ingest.steps import NO_STEP
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import Diagnostic, Level, StepPartition
from zerotrace.schema import COLLECTIVES
from zerotrace.tables import float_array, int_array


@dataclass(frozen=True, eq=False)
class Meeting:
    """The collectives of a run, matched over its ranks."""

    rows: CollectiveRows
    matches: Matches
    arrivals: Arrivals


def meet(analyses: Sequence[RankAnalysis]) -> Meeting | None:
    """Matches the collectives of all ranks; ``None`` where there is one rank, or no communication at all."""
    rows = CollectiveRows.concatenate([analysis.collectives for analysis in analyses])
    if len(analyses) < 2 or not len(rows):
        return None
    matches = match(rows, len(analyses))
    return Meeting(rows, matches, arrivals(rows, matches))


def split_waiting(analysis: RankAnalysis, meeting: Meeting) -> tuple[StepPartition, ...]:
    """A rank's partition with exposed communication split into transfer and wait.

    A row that matched no other counts as transfer: nothing shows that it waited.

    Args:
        analysis: one rank.
        meeting: all of them.
    """
    rank = analysis.collectives.rank[:1]
    mine = np.flatnonzero(meeting.rows.rank == rank[0]) if rank.size else np.empty(0, dtype=np.int64)
    start, end = meeting.rows.start[mine], meeting.rows.end[mine]
    arrived = start + np.maximum(meeting.arrivals.wait[mine], 0)
    parts = []
    for part in analysis.partition:
        here = meeting.rows.device[mine] == (ABSENT if part.device is None else part.device)
        transferring = Intervals.union(arrived[here], end[here])
        parts.append(split_exposed(part, analysis.exposed[part.device], transferring))
    return tuple(parts)


def unmatched(meeting: Meeting) -> Iterator[Diagnostic]:
    """One diagnostic a rank whose collectives found no partner."""
    lonely = meeting.matches.collective == ABSENT
    for rank in np.unique(meeting.rows.rank[lonely]).tolist():
        rows = meeting.rows.take(lonely & (meeting.rows.rank == rank))
        time_us = int((rows.end - rows.start).sum()) / 1000
        named = ", ".join(dict.fromkeys(str(seq) for seq in rows.seq.tolist()[:8] if seq != ABSENT))
        which = f" (Seq {named})" if named else ""
        yield Diagnostic(
            code="unmatched_collective",
            level=Level.WARNING,
            count=len(rows),
            message=f"rank {rank}: {len(rows)} collectives{which} of {time_us:.0f} µs have no partner on the other "
            "ranks; counted as transfer",
            hint="records were lost, or the profilers did not start and stop at the same step",
        )


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
    }
    texts = {"name": rows.name, "group": rows.group, "dtype": rows.dtype, "phase": rows.phase}
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
