"""One clock for all ranks: what is taken from the times of each."""

from __future__ import annotations

from collections.abc import Mapping

from zerotrace.model import Analysis

#: Perfetto's times are nanoseconds in 64 bits, but its page counts in doubles from the first of them: 104 days.
MAX_SPAN_NS = 1 << 53


def shifts(analysis: Analysis, first_ns: Mapping[int, int], last_ns: Mapping[int, int]) -> tuple[dict[int, int], bool]:
    """What to take from each rank's times, so that they lie on the clock of the first host.

    That is the offset of the rank's clock, as its collectives show it. Where ranks would then lie more than 104 days
    apart (one trace without a base time, say), each is moved to begin with the earliest; and none begins before zero.

    Args:
        analysis: knows the offsets.
        first_ns: the first time of each rank, on its own clock.
        last_ns: the last.

    Returns:
        The shift of each rank, and whether the clocks are aligned: false where the ranks were moved together by force.
    """
    offsets = {rank: analysis.clock.offset_of(rank) if analysis.clock else 0 for rank in first_ns}
    begins = {rank: first - offsets[rank] for rank, first in first_ns.items()}
    if not begins:
        return {}, True
    earliest = min(begins.values())
    aligned = max(last - offsets[rank] for rank, last in last_ns.items()) - earliest < MAX_SPAN_NS
    if not aligned:
        offsets = {rank: first - earliest for rank, first in first_ns.items()}
    below = min(0, earliest)
    return {rank: offset + below for rank, offset in offsets.items()}, aligned
