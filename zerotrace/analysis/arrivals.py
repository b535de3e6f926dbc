"""When the members of each collective came and went: who arrives last, who waits, how long the transfer takes."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.grouping import extremes
from zerotrace.analysis.matching import Matches
from zerotrace.intervals import Int64Array


class Arrivals(Struct, frozen=True, eq=False):
    """When the members of each collective came and went. Columns have one entry a collective but ``wait``.

    Attributes:
        num_members: rows that were found.
        arrival: latest start over the members, on the clock of the lowest rank's host.
        skew: arrival minus earliest start.
        transfer: shortest duration over the members.
        last_rank: who arrived last; absent where several did.
        wait: one entry a row: arrival minus the row's own start; absent for unmatched rows.
    """

    num_members: Int64Array
    arrival: Int64Array
    skew: Int64Array
    transfer: Int64Array
    last_rank: Int64Array
    wait: Int64Array


def arrivals(rows: CollectiveRows, matches: Matches) -> Arrivals:
    """Waiting and transfer of every matched collective.

    Args:
        rows: rows of all ranks, each on its own clock.
        matches: which of them are one collective, and how far the clocks are apart.
    """
    matched = np.flatnonzero(matches.collective != ABSENT)
    which = matches.collective[matched]
    start = rows.start[matched] - matches.clocks.of_rows(rows.rank[matched])
    earliest, arrival = extremes(which, start, matches.count)
    transfer, _ = extremes(which, (rows.end - rows.start)[matched], matches.count)
    is_last = start == arrival[which]
    num_last = np.bincount(which[is_last], minlength=matches.count)
    last_rank = np.full(matches.count, ABSENT, dtype=np.int64)
    last_rank[which[is_last]] = rows.rank[matched][is_last]
    last_rank[num_last > 1] = ABSENT
    wait = np.full(len(rows), ABSENT, dtype=np.int64)
    wait[matched] = arrival[which] - start
    return Arrivals(
        num_members=np.bincount(which, minlength=matches.count),
        arrival=arrival,
        skew=arrival - earliest,
        transfer=transfer,
        last_rank=last_rank,
        wait=wait,
    )
