"""Run folders on disk: manifests, Parquet tables, ``analysis.json``. Results appear whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from zerotrace.errors import StoreError
from zerotrace.links import LINK_HINT, leads_out
from zerotrace.model import ANALYSIS_VERSION, MANIFEST_VERSION, Analysis, Check, Comparison, RunManifest
from zerotrace.model.consistency import contradictions
from zerotrace.schema import EVENTS, TABLES_VERSION, TableSchema
from zerotrace.tables import column_array

MANIFEST_FILE = "manifest.json"
ANALYSIS_FOLDER = "analysis"
ANALYSIS_FILE = "analysis.json"
REPORT_FILE = "report.html"
EVENTS_PART = "part-0.parquet"
_INCOMING = ".incoming"
_MAX_RANK_DIGITS = 10

_Stored = TypeVar("_Stored", RunManifest, Analysis)


def read_manifest(folder: Path) -> RunManifest | None:
    """The manifest of a run folder; ``None`` if it has none.

    Raises:
        StoreError: ``manifest_invalid``, ``manifest_contradicts``, ``version_unknown``, or ``link_refused`` for a link
            that leads out of the folder.
    """
    path = folder / MANIFEST_FILE
    if leads_out(path):
        raise StoreError(
            f"{path}: a link that leads out of the folder; it was not followed", code="link_refused", hint=LINK_HINT
        )
    if not path.is_file():
        return None
    manifest = _read(path, RunManifest, MANIFEST_VERSION)
    wrong = list(contradictions(manifest))
    if wrong:
        more = f" (and {len(wrong) - 1} more like it)" if len(wrong) > 1 else ""
        raise StoreError(
            f"{path}: contradicts itself: {wrong[0]}{more}",
            code="manifest_contradicts",
            hint="restore the manifest as `zerotrace capture` wrote it, or " + _AGAIN["manifest"],
        )
    return manifest


def require_manifest(folder: Path) -> RunManifest:
    """The manifest of a run folder.

    Raises:
        StoreError: ``no_manifest``, ``manifest_invalid``, ``manifest_contradicts`` or ``version_unknown``.
    """
    if folder.is_file():
        raise StoreError(
            f"{folder}: a file; expected the folder of a capture",
            code="no_manifest",
            hint=f"give {folder.parent}" if folder.name == MANIFEST_FILE else _GIVE_FOLDER,
        )
    manifest = read_manifest(folder)
    if manifest is None:
        raise StoreError(
            f"{folder}: no capture's folder, {MANIFEST_FILE} is not in it"
            if folder.is_dir()
            else f"{folder}: there is no such folder",
            code="no_manifest",
            hint=_GIVE_FOLDER,
        )
    return manifest


def read_analysis(folder: Path) -> Analysis:
    """The figures that ``zerotrace analyze`` wrote.

    Args:
        folder: a run folder or its ``analysis`` folder.

    Raises:
        StoreError: ``no_analysis``, ``analysis_invalid`` or ``version_unknown``.
    """
    return _read(analysis_folder(folder) / ANALYSIS_FILE, Analysis, ANALYSIS_VERSION)


#: What reading, adding up or drawing a record raises where it is not what zerotrace writes.
CONTRADICTED = (
    TypeError, ValueError, AttributeError, LookupError, ArithmeticError, AssertionError, pa.ArrowException
)  # fmt: skip


@contextmanager
def doubting(*folders: Path) -> Iterator[None]:
    """Makes one error of what goes wrong in the block because stored records contradict themselves.

    What zerotrace writes is consistent. A record that was changed since may be anything that its types allow: null
    where another field says that there is a figure, numbers beyond int64.

    Args:
        folders: where the records lie that the block reads.

    Raises:
        StoreError: ``record_contradicts``.
    """
    try:
        yield
    except CONTRADICTED as error:
        named = ", ".join(map(str, folders))
        raise StoreError(
            f"{named}: what is stored there contradicts itself ({type(error).__name__}: {str(error)[:200]})",
            code="record_contradicts",
            hint="analyze again with --force; if nobody changed it, this is a fault of zerotrace: -vv shows where",
        ) from error


def has_analysis(folder: Path) -> bool:
    """Whether a run folder, or its ``analysis`` folder, holds an ``analysis.json``."""
    return any((path / ANALYSIS_FILE).is_file() for path in (folder, folder / ANALYSIS_FOLDER))


def analysis_folder(folder: Path) -> Path:
    """The folder that holds ``analysis.json``, given itself or its run folder.

    Raises:
        StoreError: ``no_analysis`` if neither holds one.
    """
    for candidate in (folder, folder / ANALYSIS_FOLDER):
        if (candidate / ANALYSIS_FILE).is_file():
            return candidate
    raise StoreError(f"{folder}: no analysis in it", code="no_analysis", hint=f"run `zerotrace analyze {folder}` first")


def read_table(folder: Path, schema: TableSchema, columns: list[str] | None = None) -> pa.Table:
    """One of the tables of an analysis folder that are one file.

    Args:
        folder: an analysis folder.
        schema: which one.
        columns: columns of it; all of them by default.

    Raises:
        StoreError: ``table_missing``, ``table_invalid`` or ``version_unknown``.
    """
    return _read_parquet(table_file(folder, schema), columns)


def read_tables(
    folder: Path,
    analysis: Analysis,
    wanted: Iterable[tuple[TableSchema, Sequence[str]]],
    ranks: Collection[int] | None = None,
) -> dict[str, pa.Table]:
    """Tables of an analysis folder by their names, without those that the analysis did not write.

    Args:
        folder: an analysis folder.
        analysis: what it holds.
        wanted: which tables, and which columns of each.
        ranks: whose rows to read; all by default. The tables need a column ``rank`` for it.

    Raises:
        StoreError: ``table_missing``, ``table_invalid`` or ``version_unknown``.
    """
    return {
        schema.name: _read_parquet(table_file(folder, schema), list(columns), ranks)
        for schema, columns in wanted
        if table_file(folder, schema).name in analysis.outputs or table_file(folder, schema).is_file()
    }


def table_file(folder: Path, schema: TableSchema) -> Path:
    """Where a table that is one file lies, if it was written."""
    return folder / f"{schema.name}.parquet"


def require_events(folder: Path, analysis: Analysis) -> None:
    """Checks that the events of every rank of an analysis are still there.

    Raises:
        StoreError: ``table_missing`` names what is not.
    """
    for source in analysis.sources:
        path = events_file(folder, source.rank)
        if not path.is_file():
            raise _missing(path)


def read_events(
    folder: Path, columns: list[str] | None = None, ranks: Collection[int] | None = None
) -> Iterator[tuple[int, pa.Table]]:
    """The event tables of an analysis folder, rank by rank in rising order.

    Args:
        folder: an analysis folder.
        columns: columns of :data:`zerotrace.schema.EVENTS`; all of them by default.
        ranks: whose events to read; all by default.

    Raises:
        StoreError: ``table_missing``, ``table_invalid`` or ``version_unknown``.
    """
    named = [path.name.removeprefix("rank=") for path in (folder / EVENTS.name).glob("rank=*")]
    for rank in sorted(int(name) for name in named if name.isdecimal() and len(name) <= _MAX_RANK_DIGITS):
        if ranks is None or rank in ranks:
            yield rank, _read_parquet(events_file(folder, rank), columns)


@contextmanager
def incoming_events(folder: Path) -> Iterator[None]:
    """Lets traces be read into :func:`incoming_place` during the block. What nobody has named at its end is removed.

    Whoever is still at work then, given up and not known to have ended, finds no place any more.

    Args:
        folder: an analysis folder that is being made.
    """
    incoming = folder / EVENTS.name / _INCOMING
    incoming.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(incoming, ignore_errors=True)


def incoming_place(folder: Path, number: int) -> Path:
    """A new folder for the events of the ``number``-th trace, before it is known whether its rank is its own.

    Another one each time, since a trace may be read twice; :func:`name_events` takes its name.
    """
    return folder / EVENTS.name / _INCOMING / f"{number}-{uuid4().hex}"


class EventsWriter:
    """Writes the events of one trace slice by slice.

    Args:
        folder: a new folder for them.

    Use as a context manager. Nothing is written before the first slice.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder
        self._files = ExitStack()
        self._writer: pq.ParquetWriter | None = None

    def __enter__(self) -> EventsWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._files.close()

    def write(self, events: pa.Table) -> None:
        """Writes the next rows, as a row group of their own."""
        if self._writer is None:
            self._path.mkdir()
            stream = self._files.enter_context((self._path / EVENTS_PART).open("xb"))
            writer = pq.ParquetWriter(stream, events.schema, **_parquet_options(events.schema))
            self._writer = self._files.enter_context(writer)
        self._writer.write_table(events, row_group_size=max(events.num_rows, 1))


def name_events(folder: Path, name: str, rank: int) -> None:
    """Gives events that were written their final place, that of their rank."""
    (folder / EVENTS.name / _INCOMING / name).rename(events_file(folder, rank).parent)


def write_table(folder: Path, schema: TableSchema, rows: Iterable[object]) -> None:
    """Writes a small table from records that have an attribute for each column of ``schema``."""
    items = sorted(rows, key=lambda item: [_nulls_first(getattr(item, name)) for name in schema.sort_by])
    arrays = [column_array([getattr(item, column.name) for item in items], column.type) for column in schema.columns]
    write_arrow(folder, schema, pa.Table.from_arrays(arrays, schema=schema.arrow()))


def write_arrow(folder: Path, schema: TableSchema, table: pa.Table) -> None:
    """Writes a table that is in the form and order of ``schema`` already."""
    with (folder / f"{schema.name}.parquet").open("xb") as stream:
        _write_parquet(table, stream)


def write_analysis(folder: Path, analysis: Analysis) -> None:
    """Writes ``analysis.json``."""
    (folder / ANALYSIS_FILE).write_bytes(to_json(analysis))


def page_bytes(page: str) -> bytes:
    """A page as it is stored: a lone surrogate out of a trace is spelled out, since UTF-8 has none."""
    return page.encode("utf-8", "backslashreplace")


def to_json(record: Analysis | Comparison | Check) -> bytes:
    """A record as strict JSON, indented, one line a value."""
    return msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n"


def events_file(folder: Path, rank: int) -> Path:
    """Where one rank's events lie."""
    return folder / EVENTS.name / f"rank={rank}" / EVENTS_PART


def _nulls_first(value: Any) -> tuple[bool, Any]:
    return value is not None, value


def _write_parquet(table: pa.Table, stream: object) -> None:
    pq.write_table(table, stream, **_parquet_options(table.schema))


def _parquet_options(schema: pa.Schema) -> dict[str, Any]:
    names = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    # Times and ids rise by little from row to row: their differences take a third of the space and less time.
    numbers = {field.name: "DELTA_BINARY_PACKED" for field in schema if pa.types.is_integer(field.type)}
    return {"compression": "zstd", "use_dictionary": names, "column_encoding": numbers}


def _read_parquet(path: Path, columns: list[str] | None, ranks: Collection[int] | None = None) -> pa.Table:
    chosen = None if ranks is None else [("rank", "in", sorted(ranks))]
    try:
        # an open file: pyarrow takes no path that is not UTF-8, and would add the folder's rank as a column
        with path.open("rb") as stream:
            table = pq.read_table(stream, columns=columns, filters=chosen)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{path}: {error}", code="table_invalid", hint=_AGAIN["analysis"]) from error
    lacking = [name for name in columns or () if name not in table.column_names]
    if lacking:
        raise StoreError(f"{path}: has no column {', '.join(lacking)}", code="table_invalid", hint=_AGAIN["analysis"])
    version = (
        (table.schema.metadata or {}).get(b"zerotrace.version", TABLES_VERSION.encode()).decode("ascii", "replace")
    )
    _check_version(path, version, TABLES_VERSION)
    return table


def _missing(path: Path) -> StoreError:
    return StoreError(f"{path}: this table is missing", code="table_missing", hint=_AGAIN["analysis"])


def _check_version(path: Path, found: str, ours: str) -> None:
    if found.split(".")[0] != ours.split(".")[0]:
        raise StoreError(
            f"{path}: version {found} of the format, this zerotrace reads {ours}",
            code="version_unknown",
            hint="use the zerotrace that wrote it, or write it again with this one",
        )


def _read(path: Path, kind: type[_Stored], version: str) -> _Stored:
    noun = path.stem
    try:
        text = path.read_bytes()
        stored = msgspec.json.decode(text, type=_Versioned)
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be read: {error.strerror}", code="unreadable", hint="check that it may be read"
        ) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise StoreError(f"{path}: {error}", code=f"{noun}_invalid", hint=_AGAIN[noun]) from error
    _check_version(path, stored.schema_version, version)
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        # not only of another shape: text that the first look skipped may be no UTF-8
        raise StoreError(f"{path}: {error}", code=f"{noun}_invalid", hint=_AGAIN[noun]) from error


_GIVE_FOLDER = "give a folder that `zerotrace capture` wrote"
_AGAIN = {
    "manifest": "capture again, or move the file away to analyse the traces alone",
    "analysis": "analyze again with --force",
}


class _Versioned(msgspec.Struct):
    schema_version: str
