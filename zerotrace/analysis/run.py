"""The whole of ``zerotrace analyze``: traces in, a folder of tables and ``analysis.json`` out."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa

from zerotrace.analysis.across import Meeting, collectives_table, meet, split_waiting, unmatched
from zerotrace.analysis.rank import RankAnalysis, analyse_rank
from zerotrace.analysis.verdict import judge, summarise_rank
from zerotrace.errors import TraceError
from zerotrace.ingest.files import digest_files, find_candidates
from zerotrace.ingest.rank import ingest_rank
from zerotrace.model import (
    Analysis,
    Attribution,
    Diagnostic,
    Level,
    Mode,
    RunManifest,
    StepPartition,
    StepWindow,
    TraceSource,
)
from zerotrace.schema import COLLECTIVES, HTA_IDLE, HTA_KERNELS, HTA_OVERLAP, PARTITION, STEPS
from zerotrace.store import (
    ANALYSIS_FILE,
    ANALYSIS_FOLDER,
    REPORT_FILE,
    new_folder,
    read_analysis,
    read_events,
    read_manifest,
    write_analysis,
    write_arrow,
    write_events,
    write_table,
)
from zerotrace.version import VERSION


@dataclass(frozen=True)
class Renderer:
    """Something that draws an analysis; this module knows no page."""

    draw: Callable[[Analysis, Iterable[tuple[int, pa.Table]]], str]
    event_columns: Sequence[str]
    """Columns of the event tables that it needs."""


@dataclass(frozen=True, kw_only=True)
class AnalyzeOptions:
    """What ``zerotrace analyze`` can be asked for."""

    attribution: Attribution = Attribution.CLIP
    """How device rows are given to steps."""
    hta: bool = True
    """Whether HTA's own analyses are run and stored beside ours."""
    jobs: int | None = None
    """Processes that read traces at once; by default one a core, at most one a trace."""
    force: bool = False
    """Whether an existing result may be replaced."""


@dataclass(frozen=True, kw_only=True)
class _RankResult:
    source: TraceSource
    mode: Mode
    windows: tuple[StepWindow, ...]
    analysis: RankAnalysis
    diagnostics: tuple[Diagnostic, ...]


@dataclass(frozen=True)
class _Skipped:
    diagnostic: Diagnostic


def analyze(
    inputs: Sequence[Path],
    out: Path | None = None,
    options: AnalyzeOptions | None = None,
    render: Renderer | None = None,
    progress: Callable[[str], None] | None = None,
) -> tuple[Analysis, Path, bool]:
    """Analyses the traces of one run.

    Args:
        inputs: one run folder, or trace files.
        out: folder to write; ``<run folder>/analysis`` by default.
        options: see :class:`AnalyzeOptions`.
        render: draws the report from the analysis and the event tables; ``None`` for no report.
        progress: is told what was done, one line at a time.

    Returns:
        The analysis, the folder it lies in, and whether it was there already: the same traces, analysed by this
        version with these options, are not analysed again unless forced.

    Raises:
        TraceError: if a trace is damaged, or the traces do not belong to one run.
        StoreError: if the folder exists with another content, or cannot be written.
    """
    started = time.perf_counter()
    options = options or AnalyzeOptions()
    target = out if out is not None else _run_folder(inputs) / ANALYSIS_FOLDER
    candidates = find_candidates(inputs)
    wanted = _described(options, report=render is not None)
    if not options.force and _is_current(target, candidates, wanted):
        return read_analysis(target), target, True
    manifest = read_manifest(_run_folder(inputs))
    with new_folder(target, replace=options.force, is_ours=ANALYSIS_FILE) as folder:
        results, skipped = _read_ranks(candidates, folder, options, progress)
        meeting = meet([result.analysis for result in results])
        analysis = _assemble(_run_name(inputs), results, skipped, meeting, manifest, options, wanted)
        if meeting is not None:
            write_arrow(folder, COLLECTIVES, collectives_table(meeting))
        write_table(folder, STEPS, analysis.windows)
        write_table(folder, PARTITION, analysis.partition)
        if options.hta:
            analysis = _with_hta(analysis, folder)
        if analysis.hta is not None:
            write_table(folder, HTA_OVERLAP, analysis.hta.overlap)
            write_table(folder, HTA_IDLE, analysis.hta.idle)
            write_table(folder, HTA_KERNELS, analysis.hta.kernel_types)
        analysis = replace(analysis, elapsed_s=round(time.perf_counter() - started, 3))
        if render is not None:
            page = render.draw(analysis, read_events(folder, list(render.event_columns)))
            (folder / REPORT_FILE).write_text(page, encoding="utf-8")
        write_analysis(folder, analysis)
    return analysis, target, False


def _read_ranks(
    candidates: Sequence[Path], folder: Path, options: AnalyzeOptions, progress: Callable[[str], None] | None
) -> tuple[list[_RankResult], list[Diagnostic]]:
    results: list[_RankResult] = []
    skipped: list[Diagnostic] = []
    for outcome in _spread(candidates, folder, options):
        if isinstance(outcome, _Skipped):
            skipped.append(outcome.diagnostic)
            continue
        results.append(outcome)
        if progress is not None:
            progress(f"rank {outcome.source.rank}: {outcome.source.num_events:,} events of {outcome.source.file}")
    if not results:
        named = "; ".join(note.message for note in skipped) or "it holds no JSON file"
        raise TraceError(
            f"no trace found: {named}",
            code="no_traces",
            hint="give a folder of Kineto traces (JSON or gzip), as torch.profiler or `zerotrace capture` writes them",
        )
    return sorted(results, key=lambda result: result.source.rank), skipped


def _spread(candidates: Sequence[Path], folder: Path, options: AnalyzeOptions) -> Iterator[_RankResult | _Skipped]:
    """Reads each trace, in processes of their own where there are several."""
    jobs = min(len(candidates), options.jobs or os.cpu_count() or 1)
    if jobs <= 1:
        yield from (_one_rank(path, folder, options.attribution) for path in candidates)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context(_start_method())) as pool:
        tasks = [pool.submit(_one_rank, path, folder, options.attribution) for path in candidates]
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


def _start_method() -> str:
    """How workers begin: as copies of this process where that is safe, since their imports cost a quarter second."""
    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


def _one_rank(path: Path, folder: Path, attribution: Attribution) -> _RankResult | _Skipped:
    # A trace makes hundreds of thousands of objects and no cycles: the collector would only walk them in vain.
    gc_was_on = gc.isenabled()
    gc.disable()
    try:
        trace = ingest_rank(path)
    except TraceError as error:
        if error.code == "not_a_trace":
            return _Skipped(Diagnostic(code="file_skipped", level=Level.WARNING, file=path.name, message=str(error)))
        raise
    finally:
        if gc_was_on:
            gc.enable()
    rank = trace.source.rank
    write_events(folder, rank, trace.events)
    analysis = analyse_rank(rank, path.name, trace.events, trace.windows, trace.mode, attribution)
    return _RankResult(
        source=trace.source,
        mode=trace.mode,
        windows=trace.windows,
        analysis=analysis,
        diagnostics=trace.diagnostics + analysis.diagnostics,
    )


def _assemble(
    run_name: str,
    results: Sequence[_RankResult],
    skipped: Sequence[Diagnostic],
    meeting: Meeting | None,
    manifest: RunManifest | None,
    options: AnalyzeOptions,
    described: dict[str, object],
) -> Analysis:
    mode = _common_mode(results)
    partition = [_split(result.analysis, meeting) for result in results]
    summaries = tuple(
        summary
        for result, parts in zip(results, partition)
        for device, outside_ns in result.analysis.outside_steps_ns.items()
        if (summary := summarise_rank([p for p in parts if p.device == device], outside_ns)) is not None
    )
    if not summaries:
        raise TraceError(
            "no step window holds a device row",
            code="no_device_events",
            hint="the device activities of all steps were lost, or the steps were profiled without them",
        )
    found = [*skipped, *(note for result in results for note in result.diagnostics), *_missing_ranks(results)]
    found += unmatched(meeting) if meeting is not None else ()
    return Analysis(
        zerotrace_version=VERSION,
        run_name=run_name,
        mode=mode,
        attribution=options.attribution,
        sources=tuple(result.source for result in results),
        windows=tuple(window for result in results for window in result.windows),
        partition=tuple(part for parts in partition for part in parts),
        ranks=summaries,
        verdict=judge(summaries, mode, manifest),
        top_kernels=tuple(kernel for result in results for kernel in result.analysis.top_kernels),
        diagnostics=tuple(found),
        manifest=manifest,
        options=described,
    )


def _split(analysis: RankAnalysis, meeting: Meeting | None) -> tuple[StepPartition, ...]:
    return analysis.partition if meeting is None else split_waiting(analysis, meeting)


def _common_mode(results: Sequence[_RankResult]) -> Mode:
    by_mode = {result.mode: result.source.file for result in results}
    if len(by_mode) > 1:
        raise TraceError(
            f"{by_mode[Mode.HOST]} has no device rows, though {by_mode[Mode.DEVICE]} has",
            code="no_device_events",
            hint="the device records of that rank were lost; capture again, or leave its file out",
        )
    return next(iter(by_mode))


def _missing_ranks(results: Sequence[_RankResult]) -> list[Diagnostic]:
    world = max((result.source.world_size or 0 for result in results), default=0)
    missing = sorted(set(range(world)) - {result.source.rank for result in results})
    if not missing:
        return []
    named = ", ".join(map(str, missing[:16])) + (" …" if len(missing) > 16 else "")
    return [
        Diagnostic(
            code="missing_ranks",
            level=Level.WARNING,
            count=len(missing),
            message=f"the traces speak of {world} ranks; no trace of rank {named}",
            hint="figures are of the ranks that are there; copy the missing files into the folder",
        )
    ]


def _with_hta(analysis: Analysis, folder: Path) -> Analysis:
    if analysis.mode is Mode.HOST:
        note = Diagnostic(
            code="hta_not_run", level=Level.INFO, message="HTA reads device rows only, so it was not run on host time"
        )
        return replace(analysis, diagnostics=(*analysis.diagnostics, note))
    from zerotrace.hta import HtaError, hta_report  # pandas and plotly: a second that --no-hta need not pay

    try:
        return replace(analysis, hta=hta_report(read_events(folder)))
    except HtaError as error:
        note = Diagnostic(code=error.code, level=Level.WARNING, message=str(error), hint="our figures do not use HTA")
        return replace(analysis, diagnostics=(*analysis.diagnostics, note))


def _is_current(target: Path, candidates: Sequence[Path], described: dict[str, object]) -> bool:
    """Whether ``target`` holds an analysis of just these traces, by this version, with these options."""
    if not (target / ANALYSIS_FILE).is_file():
        return False
    old = read_analysis(target)
    if old.zerotrace_version != VERSION or dict(old.options) != described:
        return False
    digests = digest_files(candidates)
    skipped = {note.file for note in old.diagnostics if note.code == "file_skipped"}
    return {source.file: source.digest for source in old.sources} == {
        name: digest for name, digest in digests.items() if name not in skipped
    }


def _described(options: AnalyzeOptions, *, report: bool) -> dict[str, object]:
    """The options that change what is written."""
    chosen = {key: value for key, value in asdict(options).items() if key not in ("jobs", "force")}
    return {**chosen, "attribution": options.attribution.value, "report": report}


def _run_folder(inputs: Sequence[Path]) -> Path:
    return inputs[0] if inputs[0].is_dir() else inputs[0].parent


def _run_name(inputs: Sequence[Path]) -> str:
    """The folder as a person would name it, without the path of a machine: its last two parts."""
    return "/".join(_run_folder(inputs).resolve().parts[-2:])
