"""The whole of ``zerotrace analyze``: traces in, a folder of tables and ``analysis.json`` out."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.across import Meeting, collectives_table, meet, split_waiting, transferring
from zerotrace.analysis.agreement import common_mode, disagreements, hosts_of_ranks
from zerotrace.analysis.baseline import Baseline, check_baseline, with_baseline
from zerotrace.analysis.collective_figures import collective_figures
from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.derived import with_derived
from zerotrace.analysis.engines import Engine, EngineKind, open_engine
from zerotrace.analysis.evidence import check_blocking
from zerotrace.analysis.findings import find
from zerotrace.analysis.gathers.run import gather_of_rows, run_gathers, with_gathers
from zerotrace.analysis.gathers.table import gathers_table
from zerotrace.analysis.lateness import lateness_table
from zerotrace.analysis.memory.reading import MeasuredRanks, measure_ranks, memory_files
from zerotrace.analysis.memory.report import memory_report, theory_alone
from zerotrace.analysis.overlap_tax import sum_up, tell
from zerotrace.analysis.own_time import OwnTimes
from zerotrace.analysis.progress import Unwatched, Watch
from zerotrace.analysis.rank import RankAnalysis
from zerotrace.analysis.ranks import MANY_RANKS, shown_ranks, with_overview
from zerotrace.analysis.reading import RankReading, read_ranks
from zerotrace.analysis.reuse import Request, Standing, name_inputs, standing
from zerotrace.analysis.stragglers import find_stragglers
from zerotrace.analysis.trust import sum_up_trust
from zerotrace.analysis.verdict import judge, summarise_rank
from zerotrace.analysis.wire import LedgerRequest, stage_contradiction, wire_ledger, wire_table
from zerotrace.errors import TraceError
from zerotrace.ingest.files import digest_file, find_candidates, name_run, no_traces_in
from zerotrace.ingest.link_notes import link_notes
from zerotrace.ingest.logs import find_logs, log_notes
from zerotrace.ingest.unpack import UnpackLimits
from zerotrace.model import (
    Analysis,
    Attribution,
    Collectives,
    Diagnostic,
    KernelTax,
    Level,
    Mode,
    RankSummary,
    RankTax,
    RunManifest,
    StepPartition,
    WireLedger,
)
from zerotrace.placing import new_folder
from zerotrace.row_counts import count_rows, count_timed
from zerotrace.schema import (
    COLLECTIVES,
    GATHERS,
    HTA_IDLE,
    HTA_KERNELS,
    HTA_OVERLAP,
    MEMORY,
    OVERLAP_TAX,
    PARTITION,
    STEPS,
    STRAGGLERS,
    WIRE,
    TableSchema,
)
from zerotrace.site import Site
from zerotrace.store import (
    ANALYSIS_FILE,
    ANALYSIS_FOLDER,
    MANIFEST_FILE,
    REPORT_FILE,
    page_bytes,
    read_analysis,
    read_events,
    read_manifest,
    read_tables,
    require_manifest,
    write_analysis,
    write_arrow,
    write_table,
)
from zerotrace.version import VERSION

_NO_LOCKS = Diagnostic(
    code="no_file_locks",
    level=Level.INFO,
    message="the file system of the result has no locks: a second run on it at the same time would not be noticed, and "
    "the last of them to end would stay",
)


_TOO_MANY_FOR_HTA = Diagnostic(
    code="hta_left_out",
    level=Level.INFO,
    message=f"HTA was not run: it holds the events of all ranks in memory, and there are more than {MANY_RANKS}",
    hint="--hta runs it all the same; our figures do not use it",
)


class Renderer(Struct, frozen=True):
    """Something that draws an analysis; this module knows no page."""

    draw: Callable[[Analysis, Iterable[tuple[int, pa.Table]], Mapping[str, pa.Table]], str]
    event_columns: Sequence[str]
    """Columns of the event tables that it needs."""
    tables: Sequence[tuple[TableSchema, Sequence[str]]] = ()
    """Other tables that it needs, with the columns; those that a run has not are not given."""


class AnalyzeOptions(Struct, frozen=True, kw_only=True):
    """What ``zerotrace analyze`` can be asked for."""

    attribution: Attribution = Attribution.CLIP
    """How device rows are given to steps."""
    hta: bool | None = None
    """Whether HTA's own analyses are run and stored beside ours; ``None`` for up to :data:`MANY_RANKS` traces,
    since HTA holds the events of all at once, some 20 MiB each."""
    jobs: int | None = None
    """Traces read at once; by default one a core, at most one a trace."""
    engine: EngineKind = EngineKind.PROCESSES
    """Where they are read."""
    address: str | None = None
    """Of the cluster, where it is one."""
    force: bool = False
    """Whether an existing result may be replaced."""
    stage: int | None = None
    """The ZeRO stage of traces that came without a manifest."""
    num_params: int | None = None
    """Their Ψ."""
    baseline: Path | None = None
    """Folder of a capture on a single device, to hold the step time against."""
    limits: UnpackLimits | None = None
    """How large each trace may be; by default as :class:`~zerotrace.ingest.unpack.UnpackLimits` says."""


def analyze(
    inputs: Sequence[Path],
    out: Path | None = None,
    options: AnalyzeOptions | None = None,
    render: Renderer | None = None,
    site: Site | None = None,
    watch: Watch | None = None,
) -> tuple[Analysis, Path, bool]:
    """Analyses the traces of one run.

    Args:
        inputs: one run folder, or trace files.
        out: folder to write; ``<run folder>/analysis`` by default.
        options: see :class:`AnalyzeOptions`.
        render: draws the report from the analysis and the event tables; ``None`` for no report.
        site: where the files of the run lie; on this machine by default.
        watch: sees how far the work is.

    Returns:
        The analysis, the folder it lies in, and whether it was there already: the same traces, analysed by this
        version with these options, are not analysed again unless forced.

    Raises:
        TraceError: if no trace can be read, or the traces do not belong to one run.
        StoreError: if the folder exists with another content, or cannot be written.
        EngineError: if the cluster cannot be used.
        ComparisonError: if the baseline does other work.
    """
    started = time.perf_counter()
    options, site, watch = options or AnalyzeOptions(), site or Site(), watch or Unwatched()
    run_folder = _run_folder(inputs)
    target = out if out is not None else run_folder / ANALYSIS_FOLDER
    candidates, logs, links = find_candidates(inputs), find_logs(inputs), link_notes(inputs)
    if links and not candidates:
        raise TraceError(links[0].message, code="link_refused", hint=links[0].hint)
    if not candidates:
        raise no_traces_in(inputs)
    with_hta = len(candidates) <= MANY_RANKS if options.hta is None else options.hta
    baseline = _read_baseline(options.baseline) if options.baseline else None
    manifest = read_manifest(run_folder)
    beside = memory_files(run_folder, manifest)
    request = Request(
        run_folder=run_folder,
        run_name=name_run(run_folder),
        files=[*candidates, *logs, *beside],
        options={
            "attribution": options.attribution.value,
            "baseline": baseline.mark if baseline else None,
            "hta": with_hta,
            "report": render is not None,
            "stage": options.stage,
            "params": options.num_params,
        },
        site=site,
    )
    found = Standing() if options.force else standing(target, request)
    if found.current is not None:
        return found.current, target, True
    told = _told(manifest, options)
    if baseline is not None:
        check_baseline(baseline, request.run_name, manifest)
    replaceable = options.force or found.replaceable
    without_locks: list[Diagnostic] = []
    site.claim()
    with (
        new_folder(
            target,
            replace=replaceable,
            is_ours=ANALYSIS_FILE,
            reason=found.reason,
            without_locks=lambda: without_locks.append(_NO_LOCKS),
        ) as folder,
        open_engine(options.engine, options.address, options.jobs, len(candidates)) as engine,
    ):
        ranks = read_ranks(candidates, folder, options.attribution, engine, options.limits, site, watch)
        readings = ranks.readings
        watch.stage("Putting the ranks together")
        windows = [window for reading in readings for window in reading.windows]
        hosts = hosts_of_ranks(readings, manifest)
        meeting = meet([reading.analysis for reading in readings], hosts, windows)
        watch.stage("Measuring memory")
        measured = _measure(run_folder, manifest, readings, engine, site)
        watch.stage("Looking for causes")
        unread = [path for path in (*logs, *beside) if path not in measured.digests]
        digests = {**ranks.digests, **measured.digests, **{path: request.digest(path) for path in unread}}
        contents = name_inputs(request, digests)
        notes = [*without_locks, *links, *ranks.notes, *_log_notes(request, logs)]
        contradiction = _stage_contradiction(readings, told)
        if contradiction is not None:
            told = replace(told, contradiction=contradiction.message.partition(":")[0])
            notes.append(contradiction)
        gathers = run_gathers(readings, meeting, told.believed)
        analysis = _assemble(request, contents, readings, notes, meeting, told, options.attribution)
        analysis = with_gathers(analysis, gathers)
        analysis = _with_memory(analysis, measured, readings, told)
        if baseline is not None:
            analysis = replace(analysis, verdict=with_baseline(analysis.verdict, baseline))
        if meeting is not None:
            write_arrow(folder, COLLECTIVES, collectives_table(meeting, gather_of_rows(gathers, meeting)))
            analysis = _with_stragglers(analysis, meeting, readings, hosts, folder)
        if gathers.parts:
            write_arrow(folder, GATHERS, gathers_table(gathers.parts))
        write_arrow(folder, WIRE, wire_table([reading.analysis.traffic for reading in readings]))
        if measured.timeline is not None:
            write_arrow(folder, MEMORY, measured.timeline)
        analysis = _with_overlap_tax(analysis, meeting, readings, folder)
        if with_hta:
            analysis = _with_hta(analysis, folder)
        elif options.hta is None:
            analysis = replace(analysis, diagnostics=(*analysis.diagnostics, _TOO_MANY_FOR_HTA))
        analysis = with_derived(analysis, count_timed(folder))
        write_table(folder, STEPS, analysis.windows)
        write_table(folder, PARTITION, analysis.partition)
        if analysis.hta is not None:
            write_table(folder, HTA_OVERLAP, analysis.hta.overlap)
            write_table(folder, HTA_IDLE, analysis.hta.idle)
            write_table(folder, HTA_KERNELS, analysis.hta.kernel_types)
        # A configuration that is not the trace's would turn knobs of another run.
        analysis = replace(analysis, findings=find(replace(analysis, manifest=told.believed.manifest)))
        analysis = with_overview(analysis)
        analysis = replace(analysis, elapsed_s=round(time.perf_counter() - started, 3))
        outputs = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
        outputs |= {REPORT_FILE} if render is not None else set()
        analysis = replace(analysis, outputs=tuple(sorted(outputs)), row_counts=count_rows(folder))
        write_analysis(folder, analysis)
        if render is not None:
            watch.stage("Drawing the report")
            # Drawn from what is stored, as `zerotrace report` will draw it: JSON does not keep 1 and 1.0 apart.
            stored = read_analysis(folder)
            in_full = shown_ranks(stored)
            tables = read_tables(folder, stored, render.tables, in_full)
            page = render.draw(stored, read_events(folder, list(render.event_columns), in_full), tables)
            (folder / REPORT_FILE).write_bytes(page_bytes(page))
    return analysis, target, False


def _assemble(
    request: Request,
    inputs: Mapping[str, str],
    readings: Sequence[RankReading],
    notes: Sequence[Diagnostic],
    meeting: Meeting | None,
    told: LedgerRequest,
    attribution: Attribution,
) -> Analysis:
    mode = common_mode(readings)
    partition = [_split(reading.analysis, meeting) for reading in readings]
    left_out = meeting.profiler_start.steps if meeting is not None else frozenset()
    summaries = tuple(
        summary
        for reading, parts in zip(readings, partition)
        for summary in _summaries(reading.analysis, parts, left_out, attribution)
    )
    if not summaries:
        raise TraceError(
            "no step window holds a device row",
            code="no_device_events",
            hint="the device activities of all steps were lost, or the steps were profiled without them",
        )
    steps = {(part.rank, part.step) for parts in partition for part in parts if part.known}
    diagnostics = [*notes, *(note for reading in readings for note in reading.diagnostics), *disagreements(readings)]
    diagnostics += meeting.notes if meeting is not None else ()
    verdict = judge(summaries, mode, told.manifest)
    return Analysis(
        zerotrace_version=VERSION,
        run_name=request.run_name,
        mode=mode,
        attribution=attribution,
        sources=tuple(reading.source for reading in readings),
        windows=tuple(window for reading in readings for window in reading.windows),
        partition=tuple(part for parts in partition for part in parts),
        ranks=summaries,
        left_out_steps=tuple(sorted(left_out)),
        verdict=verdict,
        top_kernels=tuple(kernel for reading in readings for kernel in reading.analysis.top_kernels),
        diagnostics=tuple(diagnostics),
        trust=sum_up_trust(
            [reading.source for reading in readings],
            [reading.analysis.counts for reading in readings],
            [doubt for reading in readings for doubt in reading.analysis.doubts],
            summaries,
            diagnostics,
            num_unmatched=None if meeting is None else int((meeting.matches.collective == ABSENT).sum()),
            clock=meeting.clock if meeting is not None else None,
            dilation_ratio=verdict.dilation_ratio,
        ),
        clock=meeting.clock if meeting is not None else None,
        blocking_check=check_blocking([found for reading in readings for found in reading.analysis.evidence]),
        manifest=told.manifest,
        collectives=_collectives(readings, meeting, _counted(steps, left_out)),
        reductions=tuple(step for reading in readings for step in reading.analysis.reductions),
        wire=_wire(readings, steps, told),
        inputs=inputs,
        store_marks=request.marks(),
        options=request.options,
    )


def _summaries(
    analysis: RankAnalysis, partition: Sequence[StepPartition], left_out: Collection[int], attribution: Attribution
) -> Iterator[RankSummary]:
    """The mean step on each device of a rank that has a known one."""
    doubts = {doubt.device: doubt for doubt in analysis.doubts}
    for device, outside_ns in analysis.outside_steps_ns.items():
        found = summarise_rank(
            [part for part in partition if part.device == device],
            outside_ns,
            left_out,
            doubt=doubts.get(device),
            clipped=attribution is Attribution.CLIP,
        )
        if found is not None:
            yield found


def _told(manifest: RunManifest | None, options: AnalyzeOptions) -> LedgerRequest:
    """What manifest and options say of the model.

    Raises:
        TraceError: ``option_conflict`` if they say different things.
    """
    asked = {"--stage": options.stage, "--params": options.num_params}
    if manifest is not None:
        for name, value in {"--stage": manifest.stage, "--params": manifest.model.num_params}.items():
            if value is not None and asked[name] not in (None, value):
                raise TraceError(
                    f"{name} is {asked[name]}, but the manifest of the run says {value}",
                    code="option_conflict",
                    hint=f"leave {name} out; it is for traces without a manifest",
                )
    return LedgerRequest(manifest=manifest, stage=options.stage, num_params=options.num_params)


def _counted(steps: Set[tuple[int, int]], left_out: Set[int]) -> Set[tuple[int, int]]:
    """Rank and step of all that means are over: steps that are left out count for ranks that have no others."""
    kept = {(rank, step) for rank, step in steps if step not in left_out}
    ranks = {rank for rank, _ in kept}
    return kept | {(rank, step) for rank, step in steps if rank not in ranks}


def _collectives(
    readings: Sequence[RankReading], meeting: Meeting | None, steps: Set[tuple[int, int]]
) -> Collectives | None:
    rows = [(reading.analysis.collectives, reading.analysis.exposed_rows_ns) for reading in readings]
    return collective_figures(rows, meeting, steps)


def _wire(readings: Sequence[RankReading], steps: Set[tuple[int, int]], told: LedgerRequest) -> WireLedger | None:
    labels = {reading.source.rank: reading.analysis.labels for reading in readings}
    return wire_ledger([reading.analysis.traffic for reading in readings], labels, steps, told)


def _stage_contradiction(readings: Sequence[RankReading], told: LedgerRequest) -> Diagnostic | None:
    all_read = not any(reading.analysis.num_unread_labels for reading in readings)
    labels = {reading.source.rank: reading.analysis.labels for reading in readings if all_read}
    steps = {(part.rank, part.step) for reading in readings for part in reading.analysis.partition if part.known}
    return stage_contradiction([reading.analysis.traffic for reading in readings], labels, steps, told)


def _log_notes(request: Request, logs: Sequence[Path]) -> Iterator[Diagnostic]:
    for path in logs:
        with request.site.file(path).whole() as here:
            yield from log_notes(here)


def _measure(
    run_folder: Path, manifest: RunManifest | None, readings: Sequence[RankReading], engine: Engine, site: Site
) -> MeasuredRanks:
    if manifest is None:
        return MeasuredRanks(ranks=(), curve=None, timeline=None, diagnostics=(), digests={})
    return measure_ranks(run_folder, manifest, {reading.source.rank for reading in readings}, engine, site)


def _with_memory(
    analysis: Analysis, measured: MeasuredRanks, readings: Sequence[RankReading], told: LedgerRequest
) -> Analysis:
    profiled = [entry for reading in readings for entry in reading.profiled]
    world_size = next((reading.source.world_size for reading in readings if reading.source.world_size), None)
    theory = theory_alone(told.believed.stage, told.believed.num_params, world_size)
    memory, reason = memory_report(
        told.manifest, measured.ranks, profiled, measured.curve, theory, contradiction=told.contradiction
    )
    diagnostics = (*analysis.diagnostics, *measured.diagnostics)
    return replace(analysis, memory=memory, memory_reason=reason, diagnostics=diagnostics)


def _split(analysis: RankAnalysis, meeting: Meeting | None) -> tuple[StepPartition, ...]:
    return analysis.partition if meeting is None else split_waiting(analysis, meeting)


def _with_overlap_tax(
    analysis: Analysis, meeting: Meeting | None, readings: Sequence[RankReading], folder: Path
) -> Analysis:
    ranks: list[RankTax] = []
    kernels: list[KernelTax] = []
    for reading in readings:
        arrived = transferring(reading.analysis, meeting) if meeting is not None else {}
        for tax in reading.analysis.taxes:
            ranks.append(sum_up(tax, reading.source.rank, arrived.get(tax.device)))
            kernels += tax.kernels
    if not ranks:
        return analysis
    write_table(folder, OVERLAP_TAX, kernels)
    return replace(analysis, overlap_tax=tell(ranks, kernels))


def _with_stragglers(
    analysis: Analysis,
    meeting: Meeting,
    readings: Sequence[RankReading],
    hosts: Mapping[int, str | None],
    folder: Path,
) -> Analysis:
    own = OwnTimes.concatenate([reading.analysis.own for reading in readings])
    num_steps = len({part.step for part in analysis.partition if part.known})
    span = analysis.verdict.span_ns
    judged = find_stragglers(meeting, own, num_steps, span.median if span is not None else None, hosts)
    if judged is None:
        return analysis
    found, steps = judged
    write_arrow(folder, STRAGGLERS, lateness_table(steps))
    return replace(analysis, stragglers=found)


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


def _read_baseline(folder: Path) -> Baseline:
    manifest = require_manifest(folder)
    return Baseline(name=name_run(folder), manifest=manifest, digest=digest_file(folder / MANIFEST_FILE))


def _run_folder(inputs: Sequence[Path]) -> Path:
    """The folder that is given, or the one that holds all files that are."""
    folders = [path if path.is_dir() else path.parent for path in inputs]
    return folders[0] if len(set(folders)) == 1 else Path(os.path.commonpath([path.resolve() for path in folders]))
