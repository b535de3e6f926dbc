"""One rank's trace file, read: its rank, mode, step windows and event table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.errors import TraceError
from zerotrace.freed import give_back_memory
from zerotrace.ingest.blocks import TraceText
from zerotrace.ingest.classify import ANNOTATION_CATS, RUNTIME_CATS
from zerotrace.ingest.columns import Texts, as_int
from zerotrace.ingest.duplicates import without_duplicates
from zerotrace.ingest.files import name_of, rank_in_name
from zerotrace.ingest.kineto import Document
from zerotrace.ingest.marks import MemoryMarks
from zerotrace.ingest.pieces import Piece, TracePieces, UncutError
from zerotrace.ingest.rows import EventRows, RowsBuilder, base_time
from zerotrace.ingest.spool import Spool
from zerotrace.ingest.steps import doubtful_windows, outermost_windows, step_number, whole_trace_window
from zerotrace.ingest.table import collectives_of, event_tables, row_categories, without_device
from zerotrace.ingest.unpack import UnpackLimits
from zerotrace.model import Diagnostic, Level, Mode, ProfiledMemory, StepWindow, TraceSource
from zerotrace.tables import in_one_piece

MAX_RANK = (1 << 31) - 1


class RankTrace(Struct, frozen=True, kw_only=True):
    """A rank's trace, read."""

    source: TraceSource
    mode: Mode
    windows: tuple[StepWindow, ...]
    first_ns: int
    """Start of the first event: from when on the profiler recorded."""
    events: pa.Table
    """Rows of :data:`zerotrace.schema.EVENTS`, as far as they were kept."""
    diagnostics: tuple[Diagnostic, ...]
    profiled: tuple[ProfiledMemory, ...] = ()
    """Memory as the trace itself tells it; empty unless it was taken with ``profile_memory=True``."""


def ingest_rank(
    path: Path,
    limits: UnpackLimits | None = None,
    *,
    folder: Path | None = None,
    keep: Callable[[pa.Table, Mode], pa.Table] | None = None,
    advance: Callable[[int, int], None] | None = None,
) -> RankTrace:
    """Reads one trace file, in memory that does not grow with its text.

    Args:
        path: Kineto JSON, gzip or plain, indented or not.
        limits: how large it may be; by default as :class:`UnpackLimits` says.
        folder: where columns go meanwhile that are too large for memory; the system's own place by default.
        keep: is given the event table slice by slice, in its order, and returns the rows of each slice that are kept
            in memory; by default all are.
        advance: is told after each piece how many more bytes of the file, and events, were read.

    Raises:
        TraceError: if the file is no trace, is damaged, or holds no device (nor gloo) activity.
        OSError: there is no room for the columns.
    """
    text = TraceText(path, limits)
    pieces = TracePieces(text)
    with ExitStack() as stack:
        try:
            builder, marks = _collect(pieces.cut(), stack.enter_context(Spool(folder)), text, advance)
        except UncutError:
            stack.close()  # what was read of it until there means nothing
            builder, marks = _collect([pieces.whole()], stack.enter_context(Spool(folder)), text, None)
        document, diagnostics = pieces.document, pieces.diagnostics
        rank, rank_notes = _rank_of(document, path)
        diagnostics += rank_notes
        base_ns = base_time(document, path, diagnostics)
        rows = without_duplicates(builder.finish(base_ns, path, diagnostics), path, diagnostics)
        give_back_memory(len(rows))
        mode = _mode_of(document, rows, path)
        collectives = collectives_of(rows)
        category = row_categories(rows, collectives, mode)
        windows = _windows(rank, rows, category, path, diagnostics)
        diagnostics += _device_unknown(rows, path)
        slices = event_tables(rows, collectives, category, windows, folder)
        kept = in_one_piece(slices if keep is None else (keep(events, mode) for events in slices))
        return RankTrace(
            source=_source(path, rank, text, pieces, rows),
            mode=mode,
            windows=windows,
            first_ns=int(rows.start_ns.min()),
            events=kept,
            diagnostics=tuple(diagnostics),
            profiled=marks.totals(rank, base_ns),
        )


def _source(path: Path, rank: int, text: TraceText, pieces: TracePieces, rows: EventRows) -> TraceSource:
    document = pieces.document
    info = _distributed(document)
    return TraceSource(
        file=name_of(path),
        rank=rank,
        num_bytes=text.num_bytes,
        digest=text.digest,
        num_events=pieces.num_events,
        num_device_rows=int(rows.is_device.sum()),
        world_size=as_int(info.get("world_size")),
        backend=info.get("backend") if isinstance(info.get("backend"), str) else None,
        host=document.host_name if isinstance(document.host_name, str) else None,
        devices=_device_names(document.device_properties),
    )


def _collect(
    pieces: Iterable[Piece], spool: Spool, text: TraceText, advance: Callable[[int, int], None] | None
) -> tuple[RowsBuilder, MemoryMarks]:
    """What is kept of the events."""
    rows, marks = RowsBuilder(spool), MemoryMarks()
    told = 0
    for piece in pieces:
        rows.add(piece)
        marks.add(piece)
        if advance is not None:
            advance(text.num_bytes - told, len(piece.events))
            told = text.num_bytes
        del piece  # its memory is the next one's
    return rows, marks


def _distributed(document: Document) -> Mapping[str, Any]:
    return document.distributed if isinstance(document.distributed, Mapping) else {}


def _rank_of(document: Document, path: Path) -> tuple[int, list[Diagnostic]]:
    stated = _distributed(document).get("rank")
    rank = as_int(stated)
    if rank is not None and rank >= 0:
        if rank > MAX_RANK:
            raise TraceError(f"{name_of(path)}: claims to be rank {rank}", code="rank_invalid")
        return rank, []
    in_name = rank_in_name(path)
    taken = "from the file name" if in_name is not None else "as 0: the file name has no rank either"
    note = Diagnostic(
        code="no_distributed_info",
        level=Level.WARNING,
        file=name_of(path),
        message=f"{name_of(path)}: no distributedInfo; rank taken {taken}: {in_name or 0}",
        hint="start the profiler after init_process_group",
    )
    return in_name or 0, [note]


def _mode_of(document: Document, rows: EventRows, path: Path) -> Mode:
    """Device mode if there is any device row; host mode for gloo; otherwise there is nothing to take apart."""
    if rows.is_device.any():
        return Mode.DEVICE
    if not len(rows):
        raise TraceError(
            f"{name_of(path)}: no activity was recorded",
            code="empty_trace",
            hint="the profiler's schedule never became active, or the trace was exported after its cycle: "
            "check schedule(...) and on_trace_ready",
        )
    backend = _distributed(document).get("backend")
    if backend == "gloo" or rows.names.where(lambda name: name.startswith("gloo:")).any():
        return Mode.HOST
    calls = rows.cats.where(lambda cat: cat in RUNTIME_CATS)
    num_launches = int((calls & rows.names.where(lambda name: "launch" in name.lower())).sum())
    if num_launches:
        raise TraceError(
            f"{name_of(path)}: no device events, though {num_launches} launches were recorded",
            code="no_device_events",
            hint="another CUPTI client (a profiler, a monitor) may have held the device; end it and capture again",
        )
    raise TraceError(
        f"{name_of(path)}: no device events and no gloo collectives among {len(rows)} host events",
        code="no_device_events",
        hint="profile with ProfilerActivity.CUDA, or run on gloo so that the host's time can be taken apart",
    )


def _device_unknown(rows: EventRows, path: Path) -> list[Diagnostic]:
    where = without_device(rows)
    count = where.size
    if not count:
        return []
    return [
        Diagnostic(
            code="device_unknown",
            level=Level.WARNING,
            file=name_of(path),
            count=count,
            event=int(where.min()),
            message=f"{name_of(path)}: {count} device rows name no device; taken to be on device 0",
        )
    ]


def _windows(
    rank: int, rows: EventRows, category: Texts, path: Path, diagnostics: list[Diagnostic]
) -> tuple[StepWindow, ...]:
    is_mark = rows.cats.where(lambda cat: cat in ANNOTATION_CATS)
    is_mark &= rows.names.where(lambda name: step_number(name) is not None)
    places = np.flatnonzero(is_mark)
    names, start_ns, dur_ns = rows.names.take(places), rows.start_ns[places], rows.dur_ns[places]
    marks = []
    for code, start, dur in zip(names.codes.tolist(), start_ns.tolist(), dur_ns.tolist()):
        step = step_number(names.distinct[code])
        if step is not None:
            marks.append((step, start, start + dur))
    windows = outermost_windows(rank, marks)
    if windows:
        diagnostics += doubtful_windows(windows, marks, name_of(path))
        return windows
    diagnostics.append(
        Diagnostic(
            code="no_profiler_step",
            level=Level.WARNING,
            file=name_of(path),
            message=f"{name_of(path)}: no ProfilerStep annotation with a length; the whole trace is one window `all`",
            hint="call prof.step() after each training step, with CPU activities on",
        )
    )
    timed = category.codes >= 0
    if not timed.any():
        raise TraceError(f"{name_of(path)}: neither a step window nor a row to take apart", code="empty_trace")
    start_ns, dur_ns = rows.start_ns[timed], rows.dur_ns[timed]
    return (whole_trace_window(rank, int(start_ns.min()), int((start_ns + dur_ns).max())),)


def _device_names(properties: Any) -> tuple[str, ...]:
    if not isinstance(properties, list):
        return ()
    return tuple(str(entry.get("name")) for entry in properties if isinstance(entry, Mapping) and "name" in entry)
