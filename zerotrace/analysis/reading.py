"""Every rank's trace to an event table and the figures of that rank, side by side."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TypeAlias

import numpy.ma  # noqa: F401 - numpy's set functions import it when first called: once here, not in every worker
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.diagnostics import RANK_FAILED
from zerotrace.analysis.engines import Engine, Lost, Processes, require_visible, spread
from zerotrace.analysis.needed import needed_rows
from zerotrace.analysis.progress import Meter, ReadingPhase, Unwatched, Watch
from zerotrace.analysis.rank import RankAnalysis, analyse_rank
from zerotrace.analysis.stretches import RankEvents
from zerotrace.errors import StoreError, TraceError, ZerotraceError
from zerotrace.garbage import uncollected
from zerotrace.ingest.files import digest_file, is_named_as_rank, name_of, printable_name
from zerotrace.ingest.own_tables import UnfitError, as_trace, event_slices, find_own_tables, tables_folder
from zerotrace.ingest.rank import RankTrace, ingest_rank
from zerotrace.ingest.unpack import UnpackLimits
from zerotrace.model import Attribution, Diagnostic, Level, Mode, ProfiledMemory, StepWindow, TraceSource
from zerotrace.schema import EVENTS
from zerotrace.site import Site, SiteFile
from zerotrace.store import CONTRADICTED, EVENTS_PART, EventsWriter, incoming_events, incoming_place, name_events
from zerotrace.tables import empty_table

# What makes a file no trace at all, or one in which nothing was recorded. A file that is not even named like a
# rank's may be anything: it is skipped, and that is said.
_NO_TRACE = frozenset({"not_a_trace", "unsupported_legacy_trace", "empty_trace"})


class RankReading(Struct, frozen=True, kw_only=True):
    """One rank's trace, read and taken apart."""

    source: TraceSource
    mode: Mode
    windows: tuple[StepWindow, ...]
    analysis: RankAnalysis
    diagnostics: tuple[Diagnostic, ...]
    profiled: tuple[ProfiledMemory, ...] = ()
    """Memory as the trace itself tells it."""


class _Skipped(Struct, frozen=True):
    diagnostic: Diagnostic
    digest: str


class _Failed(Struct, frozen=True):
    error: ZerotraceError
    digest: str | None = None
    """Of the file, if it can be had."""


class _Read(Struct, frozen=True):
    reading: RankReading
    events: str
    """Name of its event table, until it gets that of its rank."""


_Outcome: TypeAlias = _Read | _Skipped | _Failed


class RanksRead(Struct, frozen=True, kw_only=True):
    """What there is of a run's ranks."""

    readings: Sequence[RankReading]
    """In the order of ranks, at least one."""
    notes: Sequence[Diagnostic]
    """What was skipped, and what failed."""
    digests: Mapping[Path, str]
    """Of every file as it was read; none of a file that cannot be read."""


def read_ranks(
    candidates: Sequence[Path],
    folder: Path,
    attribution: Attribution,
    engine: Engine | None = None,
    limits: UnpackLimits | None = None,
    site: Site | None = None,
    watch: Watch | None = None,
) -> RanksRead:
    """Reads every trace and writes its event table.

    A trace that fails among others costs its own rank, and is said. It is read once more before that if it may have
    failed by chance: the system did not give the file, or the process that read it was lost.

    Args:
        candidates: files that could be traces, at least one.
        folder: analysis folder to write event tables into.
        attribution: how rows are given to steps.
        engine: where they are read; by default in one process a core.
        limits: how large each trace may be.
        site: where the files lie; on this machine by default.
        watch: sees how far each trace is.

    Raises:
        TraceError: if there is no trace, none can be read (the first one's error), or two traces claim one rank.
        StoreError: if none can be fetched from where it lies.
        EngineError: if workers of a cluster do not see the files.
    """
    engine, site, watch = engine or Processes(), site or Site(), watch or Unwatched()
    alone = len(candidates) == 1
    far = engine.is_elsewhere
    files = [site.file(path.absolute() if far else path) for path in candidates]
    meters = watch.hand_out([name_of(file.path) for file in files], [file.num_bytes for file in files])
    order = _Order(
        folder=folder.absolute() if far else folder,
        attribution=attribution,
        limits=limits,
        alone=alone,
        is_elsewhere=far,
    )
    work = [(file, number, meter, order) for number, (file, meter) in enumerate(zip(files, meters))]
    outcomes: dict[int, _Outcome] = {}
    task: Callable[..., _Outcome] = _read
    with incoming_events(folder):
        ended = spread(engine, task, work, try_again=_may_pass, begun=watch.look)
        with closing(ended):
            for number, outcome in ended:
                outcomes[number] = _lost(candidates[number], outcome) if isinstance(outcome, Lost) else outcome
        in_order = [(path, outcomes[number]) for number, path in enumerate(candidates)]
        return _take(in_order, folder)


def _take(outcomes: Sequence[tuple[Path, _Outcome]], folder: Path) -> RanksRead:
    readings: list[RankReading] = []
    notes: list[Diagnostic] = []
    placed: dict[int, str] = {}
    digests: dict[Path, str] = {}
    for path, outcome in outcomes:
        if isinstance(outcome, _Skipped):
            notes.append(outcome.diagnostic)
            digests[path] = outcome.digest
            continue
        if isinstance(outcome, _Failed):
            notes.append(_rank_failed(path, outcome.error))
            if outcome.digest is not None:
                digests[path] = outcome.digest
            continue
        source = outcome.reading.source
        digests[path] = source.digest
        if source.rank in placed:
            raise TraceError(
                f"{placed[source.rank]} and {source.file} both claim rank {source.rank}",
                code="duplicate_rank",
                hint="keep one file a rank in the folder; copies and traces of other runs belong elsewhere",
            )
        placed[source.rank] = source.file
        name_events(folder, outcome.events, source.rank)
        readings.append(outcome.reading)
    if not readings:
        first_error = next((outcome.error for _, outcome in outcomes if isinstance(outcome, _Failed)), None)
        if first_error is not None:
            raise first_error
        raise TraceError(
            f"{printable_name(outcomes[0][0].parent)}: no trace found: {'; '.join(note.message for note in notes)}",
            code="no_traces",
            hint="give a folder of Kineto traces (JSON or gzip), as torch.profiler or `zerotrace capture` writes them",
        )
    return RanksRead(readings=sorted(readings, key=lambda reading: reading.source.rank), notes=notes, digests=digests)


def _may_pass(outcome: _Outcome) -> bool:
    """Whether a failure is the system's or a store's, and not the file's content."""
    return isinstance(outcome, _Failed) and (
        outcome.error.code == "unreadable" or isinstance(outcome.error, StoreError)
    )


def _lost(path: Path, lost: Lost) -> _Failed:
    return _Failed(
        TraceError(
            f"{name_of(path)}: not read: {lost.reason}, and so it was when it was tried again",
            code="worker_lost",
            hint="most often the machine ran out of memory: give --jobs 1, or read it on a larger one",
        )
    )


def _rank_failed(path: Path, error: ZerotraceError) -> Diagnostic:
    return Diagnostic(
        code=RANK_FAILED,
        level=Level.ERROR,
        file=name_of(path),
        message=f"{error}; its rank is in no figure",
        hint=error.hint,
    )


def _digest_or_none(path: Path) -> str | None:
    try:
        return digest_file(path)
    except TraceError:
        return None


class _Order(Struct, frozen=True, kw_only=True):
    """What is to be done with every trace."""

    folder: Path
    attribution: Attribution
    limits: UnpackLimits | None
    alone: bool
    """Whether it is the only one."""
    is_elsewhere: bool
    """Whether it is read on another machine, perhaps."""


def _read(file: SiteFile, number: int, meter: Meter, order: _Order) -> _Outcome:
    if order.is_elsewhere:
        require_visible(order.folder, *([file.path] if file.source is None else []))
    if file.source is not None:
        meter.begin(ReadingPhase.FETCHING, file.num_bytes)
    try:
        with uncollected(), file.whole(meter.advance) as path:
            meter.begin(ReadingPhase.READING, path.stat().st_size if path.is_file() else None)
            return _read_file(path, number, meter, order)
    except StoreError as error:  # it could not be fetched
        return _Failed(error)
    finally:
        meter.end()


def _read_file(path: Path, number: int, meter: Meter, order: _Order) -> _Outcome:
    place = incoming_place(order.folder, number)
    kept = _kept_tables(path, place, order)
    if isinstance(kept, _Read):
        meter.advance(kept.reading.source.num_bytes, kept.reading.source.num_events)
        return kept
    # On another machine columns go to a disk of its own meanwhile, and not over the network.
    spool = None if order.is_elsewhere else order.folder
    place = incoming_place(order.folder, number)
    with RankEvents(spool) as needed:
        try:
            with EventsWriter(place) as writer:

                def keep(events: pa.Table, mode: Mode) -> pa.Table:
                    writer.write(events)
                    needed.add(needed_rows(events, mode))
                    return empty_table(events.schema)

                trace = ingest_rank(path, order.limits, folder=spool, keep=keep, advance=meter.advance)
        except TraceError as error:
            return _not_read(error, path, order)
        return _take_apart(trace, needed, place, order, kept)


def _not_read(error: TraceError, path: Path, order: _Order) -> _Skipped | _Failed:
    if error.code in _NO_TRACE and not order.alone and not is_named_as_rank(path):
        name = name_of(path)
        hint = "nothing is lost if it is no trace; else give the traces by name"
        note = Diagnostic(code="file_skipped", level=Level.WARNING, file=name, message=str(error), hint=hint)
        return _Skipped(note, digest_file(path))
    return _Failed(error, _digest_or_none(path))


def _kept_tables(path: Path, place: Path, order: _Order) -> _Read | tuple[Diagnostic, ...]:
    """The rank by the tables that it wrote beside its trace, if they fit; else what there is to say of them."""
    try:
        kept = find_own_tables(path, order.limits)
        if kept is None:
            return ()
        place.mkdir()
        shutil.copyfile(tables_folder(path) / EVENTS.name / EVENTS_PART, place / EVENTS_PART)
        with RankEvents(None if order.is_elsewhere else order.folder) as needed:
            for events in event_slices(place / EVENTS_PART, kept.num_rows):
                needed.add(needed_rows(events, kept.mode))
            return _take_apart(as_trace(kept, empty_table(EVENTS.arrow())), needed, place, order)
    except (UnfitError, *CONTRADICTED) as error:
        # Whoever may write to the folder may have written anything. The trace is what counts.
        why = str(error) if isinstance(error, UnfitError) else "they contradict themselves"
    name = name_of(path)
    message = f"{name}: the tables that its rank wrote beside it are not used, since {why}; the trace was read anew"
    return (Diagnostic(code="own_tables_unused", level=Level.INFO, file=name, message=message),)


def _take_apart(
    trace: RankTrace, needed: RankEvents, place: Path, order: _Order, notes: tuple[Diagnostic, ...] = ()
) -> _Read:
    source = trace.source
    analysis = analyse_rank(
        source.rank,
        source.file,
        needed,
        trace.windows,
        trace.mode,
        order.attribution,
        first_ns=trace.first_ns,
        world_size=source.world_size,
    )
    reading = RankReading(
        source=source,
        mode=trace.mode,
        windows=trace.windows,
        analysis=analysis,
        diagnostics=notes + trace.diagnostics + analysis.diagnostics,
        profiled=trace.profiled,
    )
    return _Read(reading, place.name)
