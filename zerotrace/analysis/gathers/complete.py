"""The gathers of a run: each rank's, with what its peers and the whole run tell of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.gathers.rank import RankGathers
from zerotrace.analysis.gathers.submissions import KINDS
from zerotrace.analysis.gathers.times import Pieces
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.labels import GatherKind

_PREFETCH = KINDS.index(GatherKind.PREFETCH)


class CompleteGathers(Struct, frozen=True, eq=False):
    """One rank's gathers. Columns have one entry a gather, absent where unknown.

    Attributes:
        rank: global rank.
        own: what the rank alone tells.
        transfer: time after the last member of each collective had arrived; the rest of the gather is waiting.
        hidden_transfer: the part of it with compute beside it.
        late: 1 for prefetches that hold compute back, 0 for other gathers.
        cold: 1 for gathers of cold steps, 0 for others.
    """

    rank: int
    own: RankGathers
    transfer: Int64Array
    hidden_transfer: Int64Array
    late: Int64Array
    cold: Int64Array

    def __len__(self) -> int:
        """Number of gathers."""
        return len(self.own)


def complete_gathers(
    rank: int, own: RankGathers, rows: CollectiveRows, wait: Int64Array | None,
    comm: Mapping[int | None, Intervals], exposed: Mapping[int | None, Intervals],
    cold: Mapping[tuple[int, int], bool | None],
) -> CompleteGathers:  # fmt: skip
    """A rank's gathers, split into transfer and waiting, with the cold ones marked.

    Args:
        rank: global rank.
        own: its gathers.
        rows: its rows of communication.
        wait: how long each of them waited for the last member, absent where it found no partner; ``None`` where there
            is one rank.
        comm: communication of each device.
        exposed: the part of it with no compute beside it.
        cold: whether a rank's step is cold, see :mod:`zerotrace.analysis.gathers.cold`.
    """
    transfer, hidden = _transfer(own, rows, wait, comm, exposed)
    kind, blocking = own.found.kind, own.times.blocking
    late = np.where((kind == ABSENT) | (blocking == ABSENT), ABSENT, (kind == _PREFETCH) & (blocking > 0))
    of_step = {step: cold.get((rank, step), False) for step in np.unique(own.step).tolist()}
    marks = [ABSENT if of_step[step] is None else int(bool(of_step[step])) for step in own.step.tolist()]
    return CompleteGathers(rank, own, transfer, hidden, late.astype(np.int64), np.array(marks, dtype=np.int64))


def _transfer(
    own: RankGathers, rows: CollectiveRows, wait: Int64Array | None, comm: Mapping[int | None, Intervals],
    exposed: Mapping[int | None, Intervals],
) -> tuple[Int64Array, Int64Array]:  # fmt: skip
    count = len(own)
    unknown = np.full(count, ABSENT, dtype=np.int64)
    if wait is None:
        return unknown, unknown
    transfer, hidden = (np.zeros(count, dtype=np.int64) for _ in range(2))
    mine = np.flatnonzero(own.of_row != ABSENT)
    arrived = np.minimum(rows.start[mine] + np.maximum(wait[mine], 0), rows.end[mine])
    for device, bare in exposed.items():
        here = rows.device[mine] == (ABSENT if device is None else device)
        pieces = Pieces.of_rows(own.of_row[mine][here], arrived[here], rows.end[mine][here])
        whole = pieces.sums(count, comm[device])
        transfer += whole
        hidden += whole - pieces.sums(count, bare)
    known = own.times.num_collectives > 0
    known[own.of_row[mine[wait[mine] == ABSENT]]] = False
    return np.where(known, transfer, ABSENT), np.where(known, hidden, ABSENT)
