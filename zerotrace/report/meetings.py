"""Matched collectives for the timeline: who waits in each for how long, and what its members share."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from zerotrace.report.rows import Ints
from zerotrace.tables import ints, optional_ints

#: Columns of ``COLLECTIVES`` that the timeline needs.
MEETING_COLUMNS: tuple[str, ...] = (
    "collective", "rank", "event", "group_size", "size_bytes", "wait_ns", "skew_ns", "transfer_ns", "last_rank",
    "num_members", "busbw_gbps",
)  # fmt: skip

_SHARED = ("group_size", "size_bytes", "skew_ns", "transfer_ns", "last_rank", "num_members")
_KB_A_GB = 1_000_000
_MAX = (1 << 48) - 1


class Meetings(Struct, frozen=True, eq=False):
    """The matched rows of a run.

    Attributes:
        columns: what the members of a collective share, by its number: 1 + value, 0 for unknown. Times in ns, sizes in
            bytes, the bus bandwidth in kB/s.
        number: number of the collective of each row, sorted by rank and event.
        wait: how long its rank waits in it, ns.
        rank: rank of each row.
        event: its place in the rank's trace.
    """

    columns: dict[str, Ints]
    number: Ints
    wait: Ints
    rank: Ints
    event: Ints

    @classmethod
    def read(cls, table: pa.Table | None) -> Meetings | None:
        """From the table ``collectives``; ``None`` where the run has none."""
        if table is None:
            return None
        table = table.filter(pc.is_valid(table["collective"]))
        number, rank, event = (ints(table, name) for name in ("collective", "rank", "event"))
        count = int(number.max()) + 1 if number.size else 0
        columns = {}
        for name in _SHARED:
            values, known = optional_ints(table, name)
            columns[name] = _shared(count, number[known], values[known])
        busbw = np.asarray(pc.fill_null(table["busbw_gbps"], -1.0).to_numpy(), dtype=np.float64)
        known = np.isfinite(busbw) & (busbw >= 0)
        columns["busbw_kb"] = _shared(count, number[known], np.rint(busbw[known] * _KB_A_GB).astype(np.int64))
        order = np.lexsort((event, rank))
        wait = np.clip(optional_ints(table, "wait_ns")[0], 0, _MAX)
        return cls(columns, number[order], wait[order], rank[order], event[order])

    def of_rows(self, rank: int, event: Ints) -> tuple[Ints, Ints]:
        """Number of the collective of each row, -1 for none, and its wait.

        Args:
            rank: the rows' rank.
            event: their places in its trace, shape ``(n,)``.

        Returns:
            Two arrays of shape ``(n,)``.
        """
        low, high = np.searchsorted(self.rank, (rank, rank + 1)).tolist()
        if low == high:
            return np.full(event.shape, -1, dtype=np.int64), np.zeros(event.shape, dtype=np.int64)
        place = low + np.minimum(np.searchsorted(self.event[low:high], event), high - low - 1)
        found = self.event[place] == event
        return np.where(found, self.number[place], -1), np.where(found, self.wait[place], 0)


def _shared(count: int, number: Ints, values: Ints) -> Ints:
    column = np.zeros(count, dtype=np.int64)
    column[number] = np.clip(values + 1, 0, _MAX)
    return column
