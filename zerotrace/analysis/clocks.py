"""The clocks of hosts: how far they lie apart, told by collectives, which end on all members at one moment.

The offset of a host is the median, over matched collectives, of the difference between the ends on that host and on
the lowest rank. It is taken from times only where ranks of different hosts are compared: within one host all devices
are on one clock.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.grouping import is_first, medians, numbered
from zerotrace.analysis.pairing import JITTER_NS, Candidates
from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray

# Ends that give the same offset within this agree on it; and a second offset must have less than half as many.
_VOTE_WIDTH_NS = 20_000
_MAX_LOST = 64

# Clocks that drift leave ends this many times as far from each other as in the median.
_SLACK = 4


class HostClocks(Struct, frozen=True, eq=False):
    """The offset of every host of a run to the host of its lowest rank.

    Attributes:
        of_rank: the number of each rank's host; ranks whose host is not known are with the lowest rank.
        names: the hosts, the lowest rank's first.
        offset: shape ``(num_hosts,)``; how far each clock is ahead, nanoseconds. 0 where unknown.
        known: shape ``(num_hosts,)``.
    """

    of_rank: Mapping[int, int]
    names: tuple[str | None, ...]
    offset: Int64Array
    known: BoolArray

    @property
    def num_hosts(self) -> int:
        """Number of hosts."""
        return len(self.names)

    def hosts(self, rank: Int64Array) -> Int64Array:
        """The number of each row's host. Shape as ``rank``."""
        distinct, which = np.unique(rank, return_inverse=True)
        return np.array([self.of_rank[key] for key in distinct.tolist()], dtype=np.int64)[which.reshape(-1)]

    def of_rows(self, rank: Int64Array) -> Int64Array:
        """The offset of each row's clock. Shape as ``rank``."""
        return self.offset[self.hosts(rank)]


class EndDifferences(Struct, frozen=True, eq=False):
    """How far members of matched collectives end apart. All columns have one entry a row but the lowest ranks'.

    Attributes:
        row: the row.
        reference: the row of the collective's lowest rank.
        difference: end of the one minus end of the other, each on its own clock.
    """

    row: Int64Array
    reference: Int64Array
    difference: Int64Array


def hosts_of(hosts: Mapping[int, str | None]) -> HostClocks:
    """The hosts of a run before anything is known of their clocks.

    Args:
        hosts: name of each rank's host; ``None`` where the trace does not say.
    """
    ranks = sorted(hosts)
    names: list[str | None] = list(dict.fromkeys(hosts[rank] for rank in ranks if hosts[rank] is not None))
    lowest = hosts[ranks[0]]
    if lowest is None:
        names.insert(0, None)
    number: dict[str | None, int] = {name: i for i, name in enumerate(names)}
    return HostClocks(
        of_rank={rank: number.get(hosts[rank], 0) for rank in ranks},
        names=tuple(names),
        offset=np.zeros(len(names), dtype=np.int64),
        known=np.arange(len(names)) == 0,
    )


def end_differences(rank: Int64Array, end: Int64Array, collective: Int64Array) -> EndDifferences:
    """Compares each member's end with that of the lowest rank.

    Args:
        rank: rank of each row.
        end: end of each row.
        collective: a number that the rows of one collective share; absent for unmatched rows.
    """
    matched = np.flatnonzero(collective != ABSENT)
    order = matched[np.lexsort((rank[matched], collective[matched]))]
    first = is_first(collective[order])
    reference = order[np.flatnonzero(first)[np.cumsum(first) - 1]]
    row, reference = order[~first], reference[~first]
    return EndDifferences(row, reference, end[row] - end[reference])


def measure(clocks: HostClocks, rows: Candidates, collective: Int64Array) -> HostClocks:
    """The offsets of all hosts that matched collectives connect.

    Args:
        clocks: the hosts.
        rows: rows on their ranks' own clocks.
        collective: as in :func:`end_differences`.
    """
    if clocks.num_hosts == 1:
        return clocks
    ends = end_differences(rows.rank, rows.end, collective)
    host, other = clocks.hosts(rows.rank[ends.reference]), clocks.hosts(rows.rank[ends.row])
    apart = host != other
    pair, sure = (host * clocks.num_hosts + other)[apart], rows.ends_together[ends.row[apart]]
    difference = ends.difference[apart]
    # A root may be done early: such collectives count only where two hosts have no others.
    pair_has_sure = np.isin(pair, np.unique(pair[sure]))
    used = sure | ~pair_has_sure
    pair, difference = pair[used], difference[used]
    which, count = numbered(pair)
    if not pair.size:
        return clocks
    median = medians(which, difference, count)
    edges = sorted(
        (-weight, code, value)
        for weight, code, value in zip(np.bincount(which).tolist(), np.unique(pair).tolist(), median.tolist())
    )
    return _connected(clocks, [(*divmod(code, clocks.num_hosts), round(value)) for _, code, value in edges])


def slack(clocks: HostClocks, rows: Candidates, collective: Int64Array) -> int:
    """How far times of one moment may differ between ranks, nanoseconds: more between hosts, whose clocks drift.

    Args:
        clocks: the hosts' clocks.
        rows: rows on their ranks' own clocks.
        collective: as in :func:`end_differences`.
    """
    ends = end_differences(rows.rank, rows.end - clocks.of_rows(rows.rank), collective)
    apart = clocks.hosts(rows.rank[ends.row]) != clocks.hosts(rows.rank[ends.reference])
    apart &= rows.ends_together[ends.row]
    return JITTER_NS + (int(_SLACK * np.median(np.abs(ends.difference[apart]))) if apart.any() else 0)


def vote(clocks: HostClocks, rows: Candidates) -> HostClocks:
    """Offsets of hosts that no matched collective connects, by the difference that most ends of equal looks share.

    Args:
        clocks: the hosts, some of them measured.
        rows: rows of devices on their ranks' own clocks.
    """
    hosts = clocks.hosts(rows.rank)
    edges = []
    for host in np.flatnonzero(~clocks.known).tolist():
        here, there = (np.flatnonzero((hosts == h) & ~rows.host & rows.ends_together) for h in (0, host))
        if not here.size or not there.size:
            continue
        here, there = (some[rows.rank[some] == _most_frequent(rows.rank[some])] for some in (here, there))
        found = _shared_difference(rows, here, there)
        if found is not None:
            edges.append((0, host, found))
    return _connected(clocks, edges)


def _shared_difference(rows: Candidates, here: Int64Array, there: Int64Array) -> int | None:
    """The one difference between ends of equal looks that clearly more pairs share than any other."""
    votes = []
    for shift in range(-_MAX_LOST, _MAX_LOST + 1):
        # the n-th of one with the n-th of the other, shifted by how many records one may have lost before it
        ours, theirs = here[max(-shift, 0) :], there[max(shift, 0) :]
        both = min(ours.size, theirs.size)
        ours, theirs = ours[:both], theirs[:both]
        alike = (rows.look[ours] == rows.look[theirs]) & (rows.group[ours] == rows.group[theirs])
        votes.append((rows.end[theirs] - rows.end[ours])[alike])
    ordered = np.sort(np.concatenate(votes))
    if not ordered.size:
        return None
    reach = np.searchsorted(ordered, ordered + _VOTE_WIDTH_NS, side="right") - np.arange(ordered.size)
    best = int(np.argmax(reach))
    winner = int(np.median(ordered[best : best + int(reach[best])]))
    rivals = reach[np.abs(ordered - winner) > 2 * _VOTE_WIDTH_NS]
    enough = max(3, min(here.size, there.size) // 2)
    return winner if reach[best] >= enough and 2 * int(rivals.max(initial=0)) < reach[best] else None


def _connected(clocks: HostClocks, edges: list[tuple[int, int, int]]) -> HostClocks:
    """Offsets of all hosts that edges ``(host, other, other − host)`` connect to a known one, in their order."""
    offset, known = clocks.offset.copy(), clocks.known.copy()
    while True:
        useful = next(((a, b, apart) for a, b, apart in edges if known[a] != known[b]), None)
        if useful is None:
            return HostClocks(clocks.of_rank, clocks.names, offset, known)
        a, b, apart = useful
        if known[a]:
            offset[b], known[b] = offset[a] + apart, True
        else:
            offset[a], known[a] = offset[b] - apart, True


def _most_frequent(rank: Int64Array) -> int:
    distinct, count = np.unique(rank, return_counts=True)
    return int(distinct[np.argmax(count)])
