"""What the page draws by rank and step, and the figures of every rank, as bytes.

For each figure one column of ``num_steps × num_columns`` values, step by step: 1 + value in ns, 0 where it is unknown,
six bytes each (see :mod:`zerotrace.report.blob`). A column of the map is a rank, or a device where ranks have several.
The figures of every rank follow as UTF-8 JSON, one list a column: what the page saves as CSV.
"""

from __future__ import annotations

import json

import numpy as np
from msgspec import Struct

from zerotrace.analysis.ranks.figures import step_cells
from zerotrace.model import Analysis, RankFigures, RankOverview
from zerotrace.report.blob import Blob, Column
from zerotrace.report.embed import gzip_base64

_MAX = (1 << 48) - 1


class RankMap(Struct, frozen=True, kw_only=True):
    """Header and bytes of the map."""

    ranks: tuple[int, ...]
    """Rank of each column."""
    devices: tuple[int | None, ...]
    steps: tuple[int, ...]
    figures: dict[str, Column]
    table: Column
    data: str
    """Base64 of gzip."""


def encode_map(analysis: Analysis, overview: RankOverview) -> RankMap:
    """The values of every rank in the steps that are drawn.

    Args:
        analysis: its partition and collectives, whole.
        overview: says which figures and steps are drawn.
    """
    places = {(one.rank, one.device): column for column, one in enumerate(overview.ranks)}
    cells, blob = step_cells(analysis), Blob()
    columns = {}
    for figure in overview.map_figures:
        values = np.zeros((len(overview.map_steps), len(places)), dtype=np.int64)
        for line, step in enumerate(overview.map_steps):
            for one in cells[figure].get(step, ()):
                column = places.get((one.rank, one.device))
                if column is not None:
                    values[line, column] = min(int(one.value) + 1, _MAX)
        columns[figure.value] = blob.append(values.ravel(), 6)
    return RankMap(
        ranks=tuple(one.rank for one in overview.ranks),
        devices=tuple(one.device for one in overview.ranks),
        steps=overview.map_steps,
        figures=columns,
        table=blob.append_bytes(_table(overview)),
        data=gzip_base64(blob.getvalue()),
    )


def _table(overview: RankOverview) -> bytes:
    """The figures of every rank as ``[names, column, column ...]``."""
    names = RankFigures.__struct_fields__
    columns = [[getattr(one, name) for one in overview.ranks] for name in names]
    return json.dumps([names, *columns], separators=(",", ":")).encode()
