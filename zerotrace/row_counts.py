"""How many rows the tables of an analysis have: a table that lost some is not drawn as if it were whole."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from zerotrace.errors import StoreError
from zerotrace.model import Analysis
from zerotrace.schema import EVENTS
from zerotrace.store import ANALYSIS_FILE

_Read = TypeVar("_Read")

_AGAIN = "analyze again with --force"


def count_rows(folder: Path) -> dict[str, int]:
    """Rows of every table of an analysis folder, by its place there. Only footers are read.

    Raises:
        StoreError: ``table_invalid``.
    """
    return {path.relative_to(folder).as_posix(): _num_rows(path) for path in sorted(folder.rglob("*.parquet"))}


def count_timed(folder: Path) -> int:
    """Events of all ranks that have a category: rows of device time, in host mode of host time.

    Args:
        folder: an analysis folder.
    """
    # not through a dataset, which would bring pandas along
    tables = (_open(path, lambda file: file.read(["category"])) for path in (folder / EVENTS.name).rglob("*.parquet"))
    return sum(table.num_rows - table["category"].null_count for table in tables)


def require_rows(folder: Path, analysis: Analysis) -> None:
    """Checks that the tables that are there have as many rows as were written.

    That a table is there at all is for whoever reads it. An analysis of an older version does not say how many rows
    it wrote.

    Args:
        folder: an analysis folder.
        analysis: what it holds.

    Raises:
        StoreError: ``rows_differ`` names the first table that has more rows or fewer; ``table_invalid``.
    """
    if not analysis.row_counts:
        return
    for name, found in count_rows(folder).items():
        # events are read by what is there: those of a further rank would be drawn with the others
        expected = analysis.row_counts.get(name, 0 if name.startswith(f"{EVENTS.name}/") else found)
        if found != expected:
            raise StoreError(
                f"{folder / name}: {found:,} rows, where {ANALYSIS_FILE} says that {expected:,} were written",
                code="rows_differ",
                hint=f"put back the table that belongs to this {ANALYSIS_FILE}, or {_AGAIN}",
            )


def _num_rows(path: Path) -> int:
    return _open(path, lambda file: int(file.metadata.num_rows))


def _open(path: Path, read: Callable[[pq.ParquetFile], _Read]) -> _Read:
    try:
        # an open file: pyarrow takes no path that is not UTF-8
        with path.open("rb") as stream:
            return read(pq.ParquetFile(stream))
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path}: {error}", code="table_invalid", hint=_AGAIN) from error
