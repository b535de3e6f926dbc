"""Writes a whole run as one native Perfetto trace, rank by rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.export.packets import PacketFile, PacketSequence
from zerotrace.export.rank import COLLECTIVE_COLUMNS, EVENT_COLUMNS, GATHER_COLUMNS, RankTables, RankTracks
from zerotrace.export.times import shifts
from zerotrace.intervals import Int64Array
from zerotrace.model import Analysis, Attribution
from zerotrace.placing import new_file
from zerotrace.row_counts import require_rows
from zerotrace.schema import COLLECTIVES, GATHERS, MEMORY, TableSchema
from zerotrace.store import (
    analysis_folder,
    read_analysis,
    read_events,
    read_table,
    require_events,
    table_file,
)
from zerotrace.tables import ints


class Exported(Struct, frozen=True, kw_only=True):
    """What was written."""

    path: Path
    num_ranks: int
    num_slices: int
    num_bytes: int
    aligned: bool
    """Whether all ranks lie on one clock; false where they were more than 104 days apart, and begin together."""


def export_perfetto(folder: Path, target: Path, *, host: bool = True, replace: bool = False) -> Exported:
    """Writes all ranks of a stored analysis as one trace that Perfetto opens.

    Packets are written as they are made, with one rank's events in memory at a time.

    Args:
        folder: a run folder or its ``analysis`` folder.
        target: file to write, which appears whole or not at all.
        host: whether threads of the host are written, too.
        replace: whether a file of that name may be replaced.

    Raises:
        StoreError: no analysis is there, another version wrote it, a table is missing or damaged, or the file exists
            or cannot be written.
    """
    place = analysis_folder(folder)
    analysis = read_analysis(place)
    require_events(place, analysis)
    require_rows(place, analysis)
    shift, aligned = shifts(analysis, *_extent(place))
    collectives = _OfRanks.read(place, COLLECTIVES, COLLECTIVE_COLUMNS, analysis)
    gathers = _OfRanks.read(place, GATHERS, GATHER_COLUMNS, analysis)
    memory = _OfRanks.read(place, MEMORY, MEMORY.arrow().names, analysis)
    knows_waiting = any(part.exposed_wait_ns is not None for part in analysis.partition)
    with new_file(target, replace=replace) as stream:
        file, num_ranks = PacketFile(stream), 0
        for rank, events in read_events(place, list(EVENT_COLUMNS)):
            tables = RankTables(
                rank=rank,
                labels=_labels(analysis, rank),
                windows=[window for window in analysis.windows if window.rank == rank],
                events=events,
                collectives=collectives.rows(rank),
                by_launch=analysis.attribution is Attribution.LAUNCH,
                knows_waiting=knows_waiting,
                gathers=gathers.rows(rank),
                memory=memory.of(rank),
            )
            num_ranks += 1
            RankTracks(PacketSequence(file, num_ranks), tables, shift[rank]).write(host=host)
    return Exported(
        path=target,
        num_ranks=num_ranks,
        num_slices=file.num_slices,
        num_bytes=target.stat().st_size,
        aligned=aligned,
    )


def _extent(place: Path) -> tuple[dict[int, int], dict[int, int]]:
    """The first and the last time of each rank."""
    first, last = {}, {}
    for rank, events in read_events(place, ["start_ns", "dur_ns"]):
        start = ints(events, "start_ns")
        if start.size:
            first[rank] = int(start.min())
            last[rank] = int((start + ints(events, "dur_ns")).max())
        else:
            first[rank] = last[rank] = 0
    return first, last


def _labels(analysis: Analysis, rank: int) -> Sequence[str]:
    source = next(source for source in analysis.sources if source.rank == rank)
    return [label for label in (*dict.fromkeys(source.devices), source.host) if label]


class _OfRanks(Struct, frozen=True, eq=False):
    """A table in the order of ranks, by rank."""

    table: pa.Table | None
    ranks: Int64Array
    """Of each row, rising."""

    @classmethod
    def read(cls, place: Path, schema: TableSchema, columns: Sequence[str], analysis: Analysis) -> _OfRanks:
        """Reads a table; it may be missing only where the analysis wrote none."""
        path = table_file(place, schema)
        if path.name not in analysis.outputs and not path.is_file():
            return cls(None, np.empty(0, dtype=np.int64))
        table = read_table(place, schema, list(columns))
        return cls(table, ints(table, "rank"))

    def of(self, rank: int) -> pa.Table | None:
        """The rows of a rank; ``None`` where there is no table."""
        if self.table is None:
            return None
        low, high = np.searchsorted(self.ranks, (rank, rank + 1)).tolist()
        return self.table.slice(low, high - low)

    def rows(self, rank: int) -> Sequence[Mapping[str, Any]]:
        """The same row by row."""
        table = self.of(rank)
        return [] if table is None else table.to_pylist()
