"""What could not be matched, and why: said by rank, never passed over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.matching import Matches, Reason
from zerotrace.ingest.steps import NO_STEP
from zerotrace.intervals import Int64Array
from zerotrace.model import STEP_ALL, Diagnostic, Level
from zerotrace.units import NS_PER_US

_MAX_NOTES = 8
_NAMED = 8

_LOST = "records were lost, or the profilers did not start and stop at the same step"

_WHY = {
    Reason.NOT_A_MEMBER: (
        "belong to groups of which it is no member: the numbers of ranks were mixed up",
        "rank numbers come from distributedInfo, else from file names; correct them and analyze again",
    ),
    Reason.PEERS_MISSING: (
        "have no other member among these traces",
        "copy the traces of the other ranks into the folder",
    ),
    Reason.UNTOLD: (
        "may be of several groups of equal name and size, or do not say with whom: the trace does not tell",
        "newer torch versions write the members of each group into the trace",
    ),
}


def unmatched(rows: CollectiveRows, matches: Matches) -> Iterator[Diagnostic]:
    """One diagnostic a rank and reason: rows without a partner, and collectives that lack a member's record.

    Args:
        rows: rows of all ranks.
        matches: which of them are one collective.
    """
    for reason in Reason:
        lonely = matches.reason == reason
        if reason is not Reason.MATCHED and lonely.any():
            yield from _capped(_of_reason(rows, matches, reason, np.flatnonzero(lonely)), "ranks")
    yield from _capped(_lacking(rows, matches), "ranks")


def _of_reason(rows: CollectiveRows, matches: Matches, reason: Reason, lonely: Int64Array) -> Iterator[Diagnostic]:
    for rank in np.unique(rows.rank[lonely]).tolist():
        mine = lonely[rows.rank[lonely] == rank]
        why, hint = _WHY.get(reason, (_without(rank, matches, mine), _LOST))
        if reason is Reason.APART:
            why, hint = _apart(matches.apart_ns.get(rank)), "records were lost on several ranks, or clocks differ"
        time_us = int((rows.end - rows.start)[mine].sum()) / NS_PER_US
        yield Diagnostic(
            code="rank_not_in_group" if reason is Reason.NOT_A_MEMBER else "unmatched_collective",
            level=Level.WARNING,
            count=mine.size,
            message=f"rank {rank}: {_counted(mine.size)}{_which(rows, mine)} of {time_us:.0f} µs {why}; not paired, "
            "counted as transfer",
            hint=hint,
        )


def _without(rank: int, matches: Matches, mine: Int64Array) -> str:
    peers = sorted({peer for group in np.unique(matches.groups.of_row[mine]).tolist()
                    for peer in matches.groups.ranks[group]} - {rank})  # fmt: skip
    return f"without a record on rank {_listed(peers)}"


def _apart(median_ns: float | None) -> str:
    """The lowest rank has no distance to itself."""
    by = f", {abs(median_ns) / NS_PER_US:.0f} µs {'later' if median_ns > 0 else 'earlier'}" if median_ns else ""
    return f"run at another time than those that their order pairs them with{by}"


def _lacking(rows: CollectiveRows, matches: Matches) -> Iterator[Diagnostic]:
    """Ranks without a record of collectives that other members were matched in."""
    matched = np.flatnonzero(matches.collective != ABSENT)
    if not matched.size:
        return
    group = np.zeros(matches.count, dtype=np.int64)
    group[matches.collective[matched]] = matches.groups.of_row[matched]
    found = np.bincount(matches.collective[matched], minlength=matches.count)
    short = found < matches.groups.num_here[group]
    if not short.any():
        return
    inside = matched[short[matches.collective[matched]]]
    num_short = np.bincount(group[short], minlength=len(matches.groups.ranks))
    for rank in sorted({r for g in np.flatnonzero(num_short).tolist() for r in matches.groups.ranks[g]}):
        mine = inside[rows.rank[inside] == rank]
        there = np.isin(group, [g for g, ranks in enumerate(matches.groups.ranks) if rank in ranks]) & short
        there[matches.collective[mine]] = False
        missed = np.flatnonzero(there)
        refused = (rows.rank == rank) & np.isin(matches.reason, (Reason.APART, Reason.NOT_A_MEMBER))
        if missed.size <= refused.sum():
            continue  # there are records, of which it is said above why they do not count
        of_others = inside[np.isin(matches.collective[inside], missed)]
        _, first = np.unique(matches.collective[of_others], return_index=True)
        yield Diagnostic(
            code="unmatched_collective",
            level=Level.WARNING,
            count=missed.size,
            message=f"rank {rank}: no record of {_counted(missed.size)}{_which(rows, of_others[first])} that other "
            "members of the group have; matched without it, so that arrival, wait and skew are lower bounds",
            hint=_LOST,
        )


def _which(rows: CollectiveRows, some: Int64Array) -> str:
    """Which collectives: their Seq, else what and in which steps."""
    seqs = list(dict.fromkeys(seq for seq in rows.seq[some].tolist() if seq != ABSENT))
    if seqs:
        return f" (Seq {_listed(seqs)})"
    codes = np.unique(rows.name.codes[some])
    names = ", ".join(rows.name.distinct[code] for code in codes[:3].tolist() if code >= 0)
    steps = [step for step in np.unique(rows.step[some]).tolist() if step not in (NO_STEP, STEP_ALL)]
    return f" ({names}{f', step {_listed(steps)}' if steps else ''})"


def _counted(count: int) -> str:
    return f"{count} collective{'' if count == 1 else 's'}"


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers[:_NAMED])) + (" and others" if len(numbers) > _NAMED else "")


def _capped(notes: Iterator[Diagnostic], noun: str) -> Iterator[Diagnostic]:
    yield from islice(notes, _MAX_NOTES)
    rest = list(notes)
    if rest:
        yield Diagnostic(
            code=rest[0].code,
            level=Level.WARNING,
            count=sum(note.count for note in rest),
            message=f"the same of {len(rest)} more {noun}: {sum(note.count for note in rest)} collectives",
            hint="the rows without a number in collectives.parquet",
        )
