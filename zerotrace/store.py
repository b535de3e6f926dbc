"""Run folders on disk: manifests, Parquet tables, ``analysis.json``. Results appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from zerotrace.errors import StoreError
from zerotrace.model import ANALYSIS_VERSION, MANIFEST_VERSION, Analysis, RunManifest
from zerotrace.schema import EVENTS, TableSchema
from zerotrace.tables import column_array

MANIFEST_FILE = "manifest.json"
ANALYSIS_FOLDER = "analysis"
ANALYSIS_FILE = "analysis.json"
REPORT_FILE = "report.html"

_Stored = TypeVar("_Stored", RunManifest, Analysis)


def read_manifest(folder: Path) -> RunManifest | None:
    """The manifest of a run folder; ``None`` if it has none.

    Raises:
        StoreError: ``manifest_invalid`` or ``version_unknown``.
    """
    path = folder / MANIFEST_FILE
    return _read(path, RunManifest, MANIFEST_VERSION) if path.is_file() else None


def read_analysis(folder: Path) -> Analysis:
    """The figures that ``zerotrace analyze`` wrote.

    Args:
        folder: a run folder or its ``analysis`` folder.

    Raises:
        StoreError: ``no_analysis``, ``analysis_invalid`` or ``version_unknown``.
    """
    return _read(analysis_folder(folder) / ANALYSIS_FILE, Analysis, ANALYSIS_VERSION)


def analysis_folder(folder: Path) -> Path:
    """The folder that holds ``analysis.json``, given itself or its run folder.

    Raises:
        StoreError: ``no_analysis`` if neither holds one.
    """
    for candidate in (folder, folder / ANALYSIS_FOLDER):
        if (candidate / ANALYSIS_FILE).is_file():
            return candidate
    raise StoreError(f"{folder}: no analysis in it", code="no_analysis", hint=f"run `zerotrace analyze {folder}` first")


def read_table(folder: Path, schema: TableSchema) -> pa.Table:
    """One of the small tables (steps, partition) of an analysis folder."""
    return pq.read_table(folder / f"{schema.name}.parquet")


def read_events(folder: Path, columns: list[str] | None = None) -> Iterator[tuple[int, pa.Table]]:
    """The event tables of an analysis folder, rank by rank in rising order.

    Args:
        folder: an analysis folder.
        columns: columns of :data:`zerotrace.schema.EVENTS`; all of them by default.
    """
    ranks = sorted(int(path.name.removeprefix("rank=")) for path in (folder / EVENTS.name).glob("rank=*"))
    for rank in ranks:
        # The reader would otherwise add the folder's rank as a column of its own.
        yield rank, pq.read_table(events_file(folder, rank), columns=columns, partitioning=None)


def write_events(folder: Path, rank: int, table: pa.Table) -> None:
    """Writes one rank's events.

    Raises:
        StoreError: ``duplicate_rank`` if that rank's events are there already.
    """
    path = events_file(folder, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("xb") as stream:
            _write_parquet(table, stream)
    except FileExistsError as error:
        raise StoreError(f"two traces claim rank {rank}", code="duplicate_rank", hint=_DUPLICATE_HINT) from error


def write_table(folder: Path, schema: TableSchema, rows: Iterable[object]) -> None:
    """Writes a small table from dataclasses that have an attribute for each column of ``schema``."""
    items = sorted(rows, key=lambda item: [_nulls_first(getattr(item, name)) for name in schema.sort_by])
    arrays = [column_array([getattr(item, column.name) for item in items], column.type) for column in schema.columns]
    write_arrow(folder, schema, pa.Table.from_arrays(arrays, schema=schema.arrow()))


def write_arrow(folder: Path, schema: TableSchema, table: pa.Table) -> None:
    """Writes a table that is in the form and order of ``schema`` already."""
    with (folder / f"{schema.name}.parquet").open("xb") as stream:
        _write_parquet(table, stream)


def write_analysis(folder: Path, analysis: Analysis) -> None:
    """Writes ``analysis.json``: strict JSON, indented, one line a value."""
    text = msgspec.json.format(msgspec.json.encode(analysis), indent=1)
    (folder / ANALYSIS_FILE).write_bytes(text + b"\n")


def events_file(folder: Path, rank: int) -> Path:
    """Where one rank's events lie."""
    return folder / EVENTS.name / f"rank={rank}" / "part-0.parquet"


@contextmanager
def new_folder(target: Path, *, replace: bool, is_ours: str) -> Iterator[Path]:
    """A folder to fill, which takes its final name only when the block ends well.

    A killed run leaves the old folder whole and a hidden one beside it, never half a result.

    Args:
        target: final path; its parent is created.
        replace: whether a folder of that name may be replaced.
        is_ours: a file that shows that an old folder was written by zerotrace; no other folder is ever replaced.

    Raises:
        StoreError: ``exists`` if it may not be replaced, ``not_writable`` if the system refuses.
    """
    if target.exists() and not (replace and (target / is_ours).is_file()):
        hint = "give --force to replace it" if (target / is_ours).is_file() else "it holds something else"
        raise StoreError(f"{target} exists already", code="exists", hint=f"{hint}, or --out for another folder")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    except OSError as error:
        raise StoreError(
            f"{target.parent}: cannot be written: {error.strerror}",
            code="not_writable",
            hint="give --out for another folder",
        ) from error
    try:
        staging.chmod(0o777 & ~_umask())
        yield staging
        _put_in_place(staging, target)
    except OSError as error:
        raise StoreError(f"{target}: cannot be written: {error}", code="not_writable") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


_DUPLICATE_HINT = "keep one file a rank in the folder; copies and traces of other runs belong elsewhere"


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return value is not None, value


def _put_in_place(staging: Path, target: Path) -> None:
    if not target.exists():
        staging.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    target.rename(old / "was")
    staging.rename(target)
    shutil.rmtree(old, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write_parquet(table: pa.Table, stream: object) -> None:
    names = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]
    numbers = {field.name: "DELTA_BINARY_PACKED" for field in table.schema if pa.types.is_integer(field.type)}
    # Times and ids rise by little from row to row: their differences take a third of the space and less time.
    pq.write_table(table, stream, compression="zstd", use_dictionary=names, column_encoding=numbers)


def _read(path: Path, kind: type[_Stored], version: str) -> _Stored:
    noun = path.stem
    try:
        stored = msgspec.json.decode(path.read_bytes(), type=_Versioned)
    except msgspec.DecodeError as error:
        raise StoreError(f"{path}: {error}", code=f"{noun}_invalid", hint="capture or analyze again") from error
    if stored.schema_version.split(".")[0] != version.split(".")[0]:
        raise StoreError(
            f"{path}: version {stored.schema_version} of the format, this zerotrace reads {version}",
            code="version_unknown",
            hint="use the zerotrace that wrote it, or write it again with this one",
        )
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except msgspec.ValidationError as error:
        raise StoreError(f"{path}: {error}", code=f"{noun}_invalid", hint="capture or analyze again") from error


class _Versioned(msgspec.Struct):
    schema_version: str
