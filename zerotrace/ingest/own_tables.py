"""Tables that a rank writes beside its own trace, so that nobody has to read the trace later.

    rank_3.pt.trace.json.gz
    rank_3.pt.trace.json.gz.tables/events/part-0.parquet    rows of zerotrace.schema.EVENTS
                                   tables.json              what a trace says beside them, and which one it was

``python -m zerotrace.ingest.own_tables TRACE [PARENT]`` writes them, and ends when the process PARENT does. They are as
good as the trace only if they are of this very file, by its digest, and of this version: who reads them checks that.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from zerotrace.errors import TraceError, ZerotraceError
from zerotrace.ingest.files import digest_file, name_of
from zerotrace.ingest.rank import MAX_RANK, RankTrace, ingest_rank
from zerotrace.ingest.unpack import UnpackLimits
from zerotrace.lifetime import die_with_parent
from zerotrace.links import leads_out
from zerotrace.model import Diagnostic, Mode, ProfiledMemory, StepWindow, TraceSource
from zerotrace.placing import new_folder
from zerotrace.schema import EVENTS, TABLES_VERSION
from zerotrace.store import EVENTS_PART, EventsWriter
from zerotrace.tables import empty_table, ints
from zerotrace.version import VERSION

RECORD_FILE = "tables.json"
_ENDING = ".tables"

# No event of a trace is shorter than this, as text.
_SHORTEST_EVENT = 32


class OwnTables(Struct, frozen=True, kw_only=True):
    """What a trace says beside its events; stored as ``tables.json``."""

    zerotrace_version: str
    tables_version: str
    source: TraceSource
    mode: Mode
    windows: tuple[StepWindow, ...]
    first_ns: int
    """As in :class:`zerotrace.ingest.rank.RankTrace`, like the next two."""
    diagnostics: tuple[Diagnostic, ...]
    profiled: tuple[ProfiledMemory, ...]
    num_rows: int
    """Rows of the event table."""


class UnfitError(Exception):
    """Tables beside a trace that are not of it, or not as this version writes them; the message says why."""


def tables_folder(trace: Path) -> Path:
    """Where the tables of a trace lie, if there are any."""
    return trace.with_name(trace.name + _ENDING)


def write_own_tables(trace: Path) -> Path:
    """Reads a trace and writes its tables beside it, whole or not at all.

    Raises:
        TraceError: the trace cannot be read.
        StoreError: the tables cannot be written.
    """
    folder, num_rows = tables_folder(trace), 0
    with new_folder(folder, replace=True, is_ours=RECORD_FILE) as staging:
        with EventsWriter(staging / EVENTS.name) as writer:

            def keep(events: pa.Table, _mode: Mode) -> pa.Table:
                nonlocal num_rows
                writer.write(events)
                num_rows += events.num_rows
                return empty_table(events.schema)

            found = ingest_rank(trace, folder=staging, keep=keep)
        record = OwnTables(
            zerotrace_version=VERSION,
            tables_version=TABLES_VERSION,
            source=found.source,
            mode=found.mode,
            windows=found.windows,
            first_ns=found.first_ns,
            diagnostics=found.diagnostics,
            profiled=found.profiled,
            num_rows=num_rows,
        )
        (staging / RECORD_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")
    return folder


def find_own_tables(trace: Path, limits: UnpackLimits | None = None) -> OwnTables | None:
    """What lies beside a trace, if it fits it; ``None`` if nothing does.

    Args:
        trace: a trace file.
        limits: how much a file of its size may unpack to.

    Raises:
        UnfitError: it does not fit.
    """
    folder = tables_folder(trace)
    if not folder.is_dir():
        return None
    if leads_out(folder) or any(leads_out(path) for path in folder.rglob("*")):
        raise UnfitError("a link in them leads out of the folder")
    try:
        text = (folder / RECORD_FILE).read_bytes()
        # Another version may be of another shape altogether.
        found = msgspec.json.decode(text, type=_Versions)
        if (found.zerotrace_version, found.tables_version) != (VERSION, TABLES_VERSION):
            raise UnfitError(f"they are of zerotrace {found.zerotrace_version}, and this is {VERSION}")
        record = msgspec.json.decode(text, type=OwnTables)
    except (OSError, msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise UnfitError(f"{RECORD_FILE} cannot be read: {error}") from error
    if record.source.file != name_of(trace) or record.source.digest != _digest(trace):
        raise UnfitError("they are of another file")
    rank, windows = record.source.rank, record.windows
    if not 0 <= rank <= MAX_RANK or not windows or any(w.rank != rank or w.end_ns < w.start_ns for w in windows):
        raise UnfitError("their step windows are none of a rank")
    if not (folder / EVENTS.name / EVENTS_PART).is_file():
        raise UnfitError("the events are missing")
    limits = limits or UnpackLimits()
    most = limits.unpacked_bytes
    if limits.ratio is not None:
        most = min(most, max(1 << 26, limits.ratio * trace.stat().st_size))
    if record.num_rows > most // _SHORTEST_EVENT:
        raise UnfitError(f"they have {record.num_rows} events, more than a trace of its size can hold")
    return record


def _digest(trace: Path) -> str:
    try:
        return digest_file(trace)
    except TraceError as error:
        raise UnfitError(str(error)) from error


def event_slices(events: Path, num_rows: int) -> Iterator[pa.Table]:
    """The event table of a record, a row group at a time.

    Args:
        events: the Parquet file.
        num_rows: rows that it has to have.

    Raises:
        UnfitError: it is no such table.
    """
    try:
        with events.open("rb") as stream, pq.ParquetFile(stream) as file:
            if not file.schema_arrow.equals(EVENTS.arrow()):
                raise UnfitError("their columns are others")
            if file.metadata.num_rows != num_rows:
                raise UnfitError(f"they have {file.metadata.num_rows} events, not the {num_rows} of the trace")
            for group in range(file.num_row_groups):
                found = file.read_row_group(group)
                if (ints(found, "dur_ns") < 0).any():
                    raise UnfitError("a duration is negative")
                yield found
    except (OSError, pa.ArrowException) as error:
        raise UnfitError(f"the events cannot be read: {error}") from error


def as_trace(record: OwnTables, events: pa.Table) -> RankTrace:
    """What reading the trace would have given.

    Args:
        record: what lies beside it.
        events: the rows of its event table that are wanted.
    """
    return RankTrace(
        source=record.source,
        mode=record.mode,
        windows=record.windows,
        first_ns=record.first_ns,
        events=events,
        diagnostics=record.diagnostics,
        profiled=record.profiled,
    )


class _Versions(msgspec.Struct):
    zerotrace_version: str
    tables_version: str


def _main() -> None:
    trace, *parent = sys.argv[1:]
    if parent:
        die_with_parent(signal.SIGKILL, int(parent[0]))
    try:
        write_own_tables(Path(trace))
    except (ZerotraceError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None


if __name__ == "__main__":
    _main()
