"""``zerotrace analyze``: traces to tables, figures and a report."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import TYPE_CHECKING

import click

from zerotrace.cli.places import Place, at_hand
from zerotrace.cli.quantity import Quantity
from zerotrace.cli.terminal import end_in_order, print_data
from zerotrace.garbage import uncollected

if TYPE_CHECKING:
    from pathlib import Path

    from zerotrace.address import Url
    from zerotrace.model import Analysis


@click.command(
    epilog="\b\nExamples:\n  zerotrace analyze traces/stage3\n"
    "  zerotrace analyze traces/stage3 --engine dask --address tcp://node-0:8786"
)
@click.argument("inputs", nargs=-1, required=True, type=Place(), metavar="DIR | TRACE...")
@click.option("--out", type=Place(), metavar="DIR", help="Folder to write; DIR/analysis by default.")
@click.option(
    "--attribute",
    type=click.Choice(["clip", "launch"]),
    default="clip",
    show_default=True,
    help="Give device time to steps by the host's windows (rows are cut at their borders), or whole rows by launch.",
)
@click.option(
    "--baseline",
    type=Place(),
    metavar="DIR",
    help="A capture of the same work on a single device (`zerotrace capture --engine single`): its step is subtracted.",
)
@click.option("--report/--no-report", default=True, help="Write report.html, or the tables alone.")
@click.option(
    "--hta/--no-hta", default=None, help="Run HTA's own analyses too, beside ours; by default of up to 16 ranks."
)
@click.option("--stage", type=click.IntRange(0, 3), help="ZeRO stage of traces without a manifest.")
@click.option(
    "--params",
    type=Quantity("count"),
    metavar="COUNT",
    help="Their number of parameters, such as 774M: see bytes on the wire.",
)
@click.option("--jobs", type=click.IntRange(min=1), help="Traces read at once; one a core by default.")
@click.option(
    "--engine",
    type=click.Choice(["processes", "dask", "ray"]),
    default="processes",
    show_default=True,
    help="Where traces are read: in processes of this machine, or on a cluster that sees DIR under the same path.",
)
@click.option("--address", metavar="HOST:PORT", help="Of the Dask scheduler or the Ray head node; for Ray also auto.")
@click.option(
    "--max-trace-size",
    type=Quantity("size"),
    metavar="SIZE",
    help="What a trace may unpack to, such as 64GiB. By default 16 GiB, and beyond 64 MiB 200 times its file.",
)
@click.option("--force", is_flag=True, help="Replace an existing result.")
@click.option("--strict", is_flag=True, help="Exit with 1 if anything weakens the figures (a warning).")
@click.option("--json", "as_json", is_flag=True, help="Print analysis.json instead of the summary.")
@click.option("--quiet", is_flag=True, help="Say nothing on stderr but what went wrong: no progress, no last words.")
@uncollected()  # nor among what it imports: a twentieth of a short run
def analyze(
    inputs: tuple[Path | Url, ...],
    out: Path | Url | None,
    attribute: str,
    baseline: Path | Url | None,
    report: bool,
    hta: bool | None,
    stage: int | None,
    params: int | None,
    jobs: int | None,
    engine: str,
    address: str | None,
    max_trace_size: int | None,
    force: bool,
    strict: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Take the steps of a run apart.

    Reads the Kineto trace of every rank in DIR (gzip or plain JSON), and writes Parquet tables, analysis.json and
    report.html. DIR may lie in a store, as s3://bucket/run does, and so may what --out and --baseline name.
    """
    if (engine == "processes") != (address is None):
        raise click.UsageError(f"--engine {engine} {'takes no' if address else 'needs an'} --address.")
    # Linear algebra is never used, and starting its threads takes longer than importing the rest of numpy.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from zerotrace.analysis.engines import EngineKind
    from zerotrace.analysis.run import AnalyzeOptions, Renderer
    from zerotrace.analysis.run import analyze as run
    from zerotrace.cli.watch import watching
    from zerotrace.freed import keep_freed_memory
    from zerotrace.ingest.unpack import UnpackLimits
    from zerotrace.model import Attribution
    from zerotrace.store import ANALYSIS_FILE, REPORT_FILE, doubting

    keep_freed_memory()
    renderer: Renderer | None = None
    if report:
        from zerotrace.report.build import TABLES, render
        from zerotrace.report.rows import EVENT_COLUMNS

        renderer = Renderer(render, EVENT_COLUMNS, TABLES)
    end_in_order()  # after the imports: an exception in the middle of one may be swallowed, and nothing is begun yet
    with at_hand() as places:
        options = AnalyzeOptions(
            attribution=Attribution(attribute),
            hta=hta,
            jobs=jobs,
            engine=EngineKind(engine),
            address=address,
            force=force,
            baseline=places.analysis(baseline) if baseline is not None else None,
            stage=stage,
            num_params=params,
            limits=UnpackLimits(unpacked_bytes=max_trace_size, ratio=None) if max_trace_size is not None else None,
        )
        traces, target, site = places.to_analyse(inputs, out)
        with watching(quiet) as watch:
            analysis, folder, reused = run(traces, target, options, renderer, site, watch)
            if site is not None and not reused:
                watch.stage("Sending the result")
                places.send_result(folder)
        if as_json:
            print_data((folder / ANALYSIS_FILE).read_bytes())
        else:
            from zerotrace.cli.summary import print_summary

            with doubting(folder) if reused else nullcontext():
                print_summary(analysis)
        if not quiet:
            if reused:
                click.echo("The traces are unchanged: this is the earlier result; --force makes it anew.", err=True)
            written = f"Report: {places.name(folder / REPORT_FILE)}" if report else f"Tables: {places.name(folder)}"
            click.echo(written, err=as_json)
    if strict:
        _refuse_warnings(analysis)


def _refuse_warnings(analysis: Analysis) -> None:
    """What ``--strict`` is for: the result stands, and the exit code says that it is weakened.

    Raises:
        WeakResultError: there is a warning.
    """
    from zerotrace.errors import WeakResultError
    from zerotrace.model import Level

    codes = dict.fromkeys(note.code for note in analysis.diagnostics if note.level is not Level.INFO)
    if codes:
        raise WeakResultError(
            f"the figures are weakened, and --strict was given: {', '.join(codes)}",
            code="weakened",
            hint="the result was written all the same; without --strict these are warnings",
        )
