"""What a reader should know of the clocks: offsets between hosts, what they leave, and ends that do not agree."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from zerotrace.analysis.clocks import end_differences
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.grouping import extremes, medians
from zerotrace.analysis.matching import Matches
from zerotrace.analysis.pairing import HOST_JITTER_NS, ends_together
from zerotrace.intervals import Int64Array
from zerotrace.model import ClockReport, Diagnostic, HostClock, Level
from zerotrace.units import NS_PER_US

#: An offset that is smaller than this, or than three times what it leaves, moves no figure.
_NO_OFFSET_NS = 10_000
_RESIDUALS = 3

#: A rank whose ends lie further off than this, and than five times their own spread, has another clock.
_BIAS_NS = 50_000
# A thread of the host notices an end when it is woken, on a busy machine always later than its peers.
_HOST_BIAS_NS = 1_000_000
_SPREADS = 5

_NAMED_RANKS = 8
_NAMED_HOSTS = 4

# Fewer ends of a rank's collectives do not tell its clock from chance.
_FEW_ENDS = 4


def report_clocks(rows: CollectiveRows, matches: Matches) -> tuple[ClockReport, tuple[Diagnostic, ...]]:
    """Compares the ends of matched collectives, on the clock of the lowest rank's host.

    Args:
        rows: rows of all ranks, each on its own clock.
        matches: which of them are one collective.

    Returns:
        The figures, and what weakens others.
    """
    clocks = matches.clocks
    together = np.where(ends_together(rows.name), matches.collective, ABSENT)
    aligned = rows.end - clocks.of_rows(rows.rank)
    ends = end_differences(rows.rank, aligned, together)
    rank, left = rows.rank[ends.row], ends.difference
    host = clocks.hosts(rank)
    hosts = []
    for number, name in enumerate(clocks.names):
        median, worst = _size(left[host == number])
        hosts.append(
            HostClock(
                host=name,
                ranks=tuple(r for r, h in sorted(clocks.of_rank.items()) if h == number),
                offset_ns=int(clocks.offset[number]) if clocks.known[number] else None,
                num_ends=int((host == number).sum()),
                residual_median_ns=median,
                residual_worst_ns=worst,
            )
        )
    median, worst = _size(left)
    report = ClockReport(hosts=tuple(hosts), num_ends=left.size, residual_median_ns=median, residual_worst_ns=worst)
    least_ns = _HOST_BIAS_NS if (rows.device[ends.row] == ABSENT).any() else _BIAS_NS
    biased = tuple(_other_clocks(rank, left, least_ns, several=clocks.num_hosts > 1))
    apart = () if biased else tuple(_members_apart(rows.start - (rows.end - aligned), aligned, together, median))
    return report, (*_offsets(report), *biased, *apart)


def _offsets(report: ClockReport) -> Iterator[Diagnostic]:
    first = report.hosts[0]
    for clock in report.hosts[1 : 1 + _NAMED_HOSTS]:
        ranks = _ranks(clock.ranks)
        if clock.offset_ns is None:
            yield Diagnostic(
                code="clock_unknown",
                level=Level.WARNING,
                message=f"no collective tells how far the clock of {clock.host} ({ranks}) is from that of "
                f"{_named(first.host)}; times of the two are compared as they are",
            )
            continue
        large = abs(clock.offset_ns) > max(_NO_OFFSET_NS, _RESIDUALS * (clock.residual_median_ns or 0))
        yield Diagnostic(
            code="clock_offset",
            level=Level.WARNING if large else Level.INFO,
            message=f"the clock of {clock.host} ({ranks}) is {_us(abs(clock.offset_ns))} "
            f"{'ahead of' if clock.offset_ns >= 0 else 'behind'} that of {_named(first.host)}, by "
            f"{clock.num_ends} ends of collectives; taken off where ranks are compared. "
            f"What is left: {_us(clock.residual_median_ns)} in the median, {_us(clock.residual_worst_ns)} at worst",
            hint="arrival, waiting and skew between these hosts are no better than what is left" if large else None,
        )
    yield from _of_many(report.hosts[1 + _NAMED_HOSTS :])


def _of_many(hosts: Sequence[HostClock]) -> Iterator[Diagnostic]:
    """One line for hosts beyond those that are named."""
    known = [clock.offset_ns for clock in hosts if clock.offset_ns is not None]
    if not hosts:
        return
    span = f"lie {_us(min(known))} to {_us(max(known))} ahead of the first host's" if known else "are not known"
    unknown = f", those of {len(hosts) - len(known)} are not known" if known and len(known) < len(hosts) else ""
    yield Diagnostic(
        code="clock_offset",
        level=Level.WARNING,
        count=len(hosts),
        message=f"the clocks of {len(hosts)} more hosts {span}{unknown}; taken off where ranks are compared",
        hint="each of them is in `clock` in analysis.json, and in the report under Method",
    )


def _other_clocks(rank: Int64Array, left: Int64Array, least_ns: int, *, several: bool) -> Iterator[Diagnostic]:
    """Ranks all of whose ends lie off by more than their spread explains."""
    ranks, which = np.unique(rank, return_inverse=True)
    which = which.reshape(-1)
    bias = medians(which, left, ranks.size)
    spread = medians(which, np.abs(left - bias[which]).astype(np.int64), ranks.size)
    enough = np.bincount(which, minlength=ranks.size) >= _FEW_ENDS  # of one, there is no spread
    far = np.flatnonzero(enough & (np.abs(bias) > np.maximum(least_ns, _SPREADS * spread)))
    if not far.size:
        return
    worst = far[np.argmax(np.abs(bias[far]))]
    where = "after alignment of the hosts" if several else "though no host name tells them apart"
    yield Diagnostic(
        code="clocks_disagree",
        level=Level.WARNING,
        count=int(far.size),
        message=f"{_ranks(ranks[far].tolist())}: collectives end up to {_us(abs(float(bias[worst])))} "
        f"{'later' if bias[worst] > 0 else 'earlier'} than on the lowest rank, {where}, with a spread of "
        f"{_us(float(spread[worst]))}: another clock. Waiting and skew of these ranks are off by as much",
        hint="ranks of several hosts need a host name in their traces for this to be taken off",
    )


def _members_apart(
    start: Int64Array, end: Int64Array, collective: Int64Array, residual: float | None
) -> Iterator[Diagnostic]:
    """Collectives of which one member is done before another has begun."""
    matched = np.flatnonzero(collective != ABSENT)
    if not matched.size:
        return
    count = int(collective.max()) + 1
    _, arrival = extremes(collective[matched], start[matched], count)
    first_end, _ = extremes(collective[matched], end[matched], count)
    here = np.bincount(collective[matched], minlength=count) > 1
    gap = np.where(here, arrival, 0) - np.where(here, first_end, 0)
    apart = gap > max(HOST_JITTER_NS, 10 * (residual or 0))
    if not apart.any():
        return
    yield Diagnostic(
        code="members_apart",
        level=Level.WARNING,
        count=int(apart.sum()),
        message=f"{int(apart.sum())} of {int(here.sum())} matched collectives end on one rank before the last rank "
        f"starts them, by up to {_us(float(gap.max()))}: more than the clocks explain "
        f"({_us(residual)} in the median)",
        hint="Seq numbers of different collectives may be the same, or a clock was set while the trace was taken",
    )


def _size(differences: Int64Array) -> tuple[float | None, int | None]:
    """Median and largest of the absolute values; ``None`` without any."""
    if not differences.size:
        return None, None
    size = np.abs(differences)
    return float(np.median(size)), int(size.max())


def _us(value_ns: float | None) -> str:
    return "–" if value_ns is None else f"{value_ns / NS_PER_US:,.1f}".removesuffix(".0").replace(",", "") + " µs"


def _named(host: str | None) -> str:
    return host or "the first host"


def _ranks(ranks: Sequence[int]) -> str:
    named = ", ".join(map(str, ranks[:_NAMED_RANKS])) + (" and others" if len(ranks) > _NAMED_RANKS else "")
    return f"rank{'' if len(ranks) == 1 else 's'} {named}"
