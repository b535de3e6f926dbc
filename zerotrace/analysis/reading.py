"""Every rank's trace to an event table and the figures of that rank, in processes of their own."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy.ma  # noqa: F401 - numpy's set functions import it when first called: once here, not in every worker
import pyarrow as pa

from zerotrace.analysis.needed import needed_rows
from zerotrace.analysis.progress import Meter, ReadingPhase, Unwatched, Watch
from zerotrace.analysis.rank import RankAnalysis, analyse_rank
from zerotrace.analysis.workers import begin_worker, signals_later, start_method, worker_count
from zerotrace.errors import TraceError
from zerotrace.ingest.files import digest_file, is_named_as_rank, name_of, printable_name
from zerotrace.ingest.rank import ingest_rank
from zerotrace.ingest.unpack import UnpackLimits
from zerotrace.model import Attribution, Diagnostic, Level, Mode, ProfiledMemory, StepWindow, TraceSource
from zerotrace.site import Site, SiteFile
from zerotrace.store import EventsWriter, name_events

# What makes a file no trace at all, or one in which nothing was recorded. A file that is not even named like a
# rank's may be anything: it is skipped, and that is said.
_NO_TRACE = frozenset({"not_a_trace", "unsupported_legacy_trace", "empty_trace"})


@dataclass(frozen=True, kw_only=True)
class RankReading:
    """One rank's trace, read and taken apart."""

    source: TraceSource
    mode: Mode
    windows: tuple[StepWindow, ...]
    analysis: RankAnalysis
    diagnostics: tuple[Diagnostic, ...]
    profiled: tuple[ProfiledMemory, ...] = ()
    """Memory as the trace itself tells it."""


@dataclass(frozen=True)
class _Skipped:
    diagnostic: Diagnostic
    digest: str


def read_ranks(
    candidates: Sequence[Path],
    folder: Path,
    attribution: Attribution,
    jobs: int | None = None,
    limits: UnpackLimits | None = None,
    site: Site | None = None,
    watch: Watch | None = None,
) -> tuple[list[RankReading], list[Diagnostic], dict[Path, str]]:
    """Reads every trace and writes its event table.

    Args:
        candidates: files that could be traces, at least one.
        folder: analysis folder to write event tables into.
        attribution: how rows are given to steps.
        jobs: processes that read at once; by default one a core, at most one a trace.
        limits: how large each trace may be.
        site: where the files lie; on this machine by default.
        watch: sees how far each trace is.

    Returns:
        The readings in the order of ranks, what was skipped, and the digest of every file as it was read.

    Raises:
        TraceError: if there is no trace, a trace is damaged, or two traces claim one rank.
    """
    readings: list[RankReading] = []
    skipped: list[Diagnostic] = []
    placed: dict[int, str] = {}
    digests: dict[Path, str] = {}
    files = [(site or Site()).file(path) for path in candidates]
    outcomes = _spread(files, folder, attribution, limits, jobs, watch or Unwatched())
    for number, (path, outcome) in enumerate(zip(candidates, outcomes)):
        if isinstance(outcome, _Skipped):
            skipped.append(outcome.diagnostic)
            digests[path] = outcome.digest
            continue
        source = outcome.source
        digests[path] = source.digest
        if source.rank in placed:
            raise TraceError(
                f"{placed[source.rank]} and {source.file} both claim rank {source.rank}",
                code="duplicate_rank",
                hint="keep one file a rank in the folder; copies and traces of other runs belong elsewhere",
            )
        placed[source.rank] = source.file
        name_events(folder, number, source.rank)
        readings.append(outcome)
    if not readings:
        raise TraceError(
            f"{printable_name(candidates[0].parent)}: no trace found: {'; '.join(note.message for note in skipped)}",
            code="no_traces",
            hint="give a folder of Kineto traces (JSON or gzip), as torch.profiler or `zerotrace capture` writes them",
        )
    return sorted(readings, key=lambda reading: reading.source.rank), skipped, digests


def _spread(
    files: Sequence[SiteFile],
    folder: Path,
    attribution: Attribution,
    limits: UnpackLimits | None,
    jobs: int | None,
    watch: Watch,
) -> Iterator[RankReading | _Skipped]:
    """Reads each trace, in processes of their own where there are several."""
    jobs = worker_count(len(files), jobs)
    alone = len(files) == 1
    meters = watch.hand_out([name_of(file.path) for file in files], [file.num_bytes for file in files])
    work = [
        (file, folder, number, attribution, limits, alone, meter)
        for number, (file, meter) in enumerate(zip(files, meters))
    ]
    if jobs <= 1:
        watch.look()
        yield from (_read(*task) for task in work)
        return
    context, parent = get_context(start_method()), os.getpid()
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=begin_worker, initargs=(parent,)) as pool:
        with signals_later():
            tasks = [pool.submit(_read, *task) for task in work]
        watch.look()
        try:
            yield from (task.result() for task in tasks)
        except BrokenProcessPool as error:
            raise TraceError(
                "a process that read a trace was ended from outside",
                code="worker_lost",
                hint="most often the machine ran out of memory: give --jobs 1",
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _read(
    file: SiteFile,
    folder: Path,
    number: int,
    attribution: Attribution,
    limits: UnpackLimits | None,
    alone: bool,
    meter: Meter,
) -> RankReading | _Skipped:
    # A trace makes hundreds of thousands of objects and no cycles: the collector would only walk them in vain.
    gc_was_on = gc.isenabled()
    gc.disable()
    if file.source is not None:
        meter.begin(ReadingPhase.FETCHING, file.num_bytes)
    try:
        with file.whole(meter.advance) as path:
            meter.begin(ReadingPhase.READING, path.stat().st_size if path.is_file() else None)
            return _read_file(path, folder, number, attribution, limits, alone, meter)
    finally:
        meter.end()
        if gc_was_on:
            gc.enable()


def _read_file(
    path: Path,
    folder: Path,
    number: int,
    attribution: Attribution,
    limits: UnpackLimits | None,
    alone: bool,
    meter: Meter,
) -> RankReading | _Skipped:
    try:
        with EventsWriter(folder, number) as writer:

            def keep(events: pa.Table, mode: Mode) -> pa.Table:
                writer.write(events)
                return needed_rows(events, mode)

            trace = ingest_rank(path, limits, folder=folder, keep=keep, advance=meter.advance)
    except TraceError as error:
        if error.code in _NO_TRACE and not alone and not is_named_as_rank(path):
            name = name_of(path)
            hint = "nothing is lost if it is no trace; else give the traces by name"
            return _Skipped(
                Diagnostic(code="file_skipped", level=Level.WARNING, file=name, message=str(error), hint=hint),
                digest_file(path),
            )
        raise
    source = trace.source
    events = trace.events.combine_chunks()
    analysis = analyse_rank(
        source.rank, source.file, events, trace.windows, trace.mode, attribution, first_ns=trace.first_ns
    )
    return RankReading(
        source=source,
        mode=trace.mode,
        windows=trace.windows,
        analysis=analysis,
        diagnostics=trace.diagnostics + analysis.diagnostics,
        profiled=trace.profiled,
    )
