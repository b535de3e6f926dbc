"""``zerotrace compare``: several runs side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zerotrace.cli.ablation import ablation_lines
from zerotrace.cli.places import Place, at_hand
from zerotrace.cli.terminal import print_data, printable, shell_path
from zerotrace.units import GIB, NS_PER_MS

if TYPE_CHECKING:
    from zerotrace.address import Url
    from zerotrace.analysis.captured import CapturedRun
    from zerotrace.cli.places import Places
    from zerotrace.model import ComparedRun, Comparison, LadderStep

_EPILOG = """\b
Examples:
  zerotrace compare traces/single traces/stage0 traces/stage1 traces/stage2 traces/stage3
  zerotrace compare traces/stage* --csv >ladder.csv
  zerotrace compare traces/single traces/stage* --html ladder.html

Resident and peak are those of the rank that holds most, the step is the unprofiled one of the slowest rank, exposed is
that of the profiled step, on the rank with most of it (`zerotrace analyze` finds it). Where one of the runs was on a
single device, its step is the baseline: step − baseline is what the study calls exposed.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folders", nargs=-1, required=True, type=Place(), metavar="DIR...")
@click.option("--csv", "as_csv", is_flag=True, help="Print the study's CSV: one row a run.")
@click.option("--json", "as_json", is_flag=True, help="Print every number as JSON.")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Write one page with figures and tables.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
def compare(folders: tuple[Path | Url, ...], as_csv: bool, as_json: bool, html: Path | None, force: bool) -> None:
    """Put captures side by side.

    Reads the manifest of each capture, and its analysis where there is one.
    """
    if as_csv and as_json:
        raise click.UsageError("--csv and --json are two formats: pass one of them.")
    if force and html is None:
        raise click.UsageError("--force replaces the page: pass --html FILE with it.")
    from zerotrace.analysis.compare import compare as put_side_by_side
    from zerotrace.store import doubting

    notes: list[str] = []
    with at_hand() as places:
        here = [places.analysis(folder) for folder in folders]
        runs = [_read(folder, notes) for folder in here]
        with doubting(*here):
            comparison = put_side_by_side(runs, [places.words(note) for note in notes])
            _tell(comparison, here, places, html, as_csv=as_csv, as_json=as_json, force=force)


def _tell(
    comparison: Comparison,
    folders: Sequence[Path],
    places: Places,
    html: Path | None,
    *,
    as_csv: bool,
    as_json: bool,
    force: bool,
) -> None:
    if html is not None:
        _write_page(comparison, html, force)
    if as_json:
        from zerotrace.store import to_json

        print_data(to_json(comparison))
    elif as_csv:
        from zerotrace.analysis.compare.table import study_csv

        print_data(study_csv(comparison))
    else:
        _print_table(comparison)
        if comparison.ladder:
            _print_ladder(comparison.ladder)
        _print_words(
            [
                comparison.headline,
                *(delta.words for delta in comparison.deltas),
                *(group.words for group in comparison.repeats),
            ]
        )
        for ablation in comparison.ablations:
            for line in ablation_lines(ablation):
                click.echo(printable(line))
        _hint_at_analysis(folders, comparison, places)
    for note in comparison.notes:
        click.echo(printable(f"Note: {note}"), err=True)
    if html is not None:
        click.echo(f"Page: {shell_path(html)}", err=as_json or as_csv)


def _write_page(comparison: Comparison, path: Path, force: bool) -> None:
    from zerotrace.placing import new_file
    from zerotrace.report.comparison import render_comparison
    from zerotrace.store import page_bytes

    with new_file(path, replace=force) as stream:
        stream.write(page_bytes(render_comparison(comparison)))


def _read(folder: Path, notes: list[str]) -> CapturedRun:
    from zerotrace.analysis.captured import CapturedRun
    from zerotrace.errors import StoreError
    from zerotrace.ingest.files import name_run
    from zerotrace.store import has_analysis, read_analysis, require_manifest

    manifest, name = require_manifest(folder), name_run(folder)
    if not has_analysis(folder):
        return CapturedRun(name=name, manifest=manifest)
    try:
        analysis = read_analysis(folder)
    except StoreError as error:
        notes.append(f"The analysis of {name} cannot be read: {error}.")
        return CapturedRun(name=name, manifest=manifest)
    if analysis.manifest != manifest:
        notes.append(f"The analysis of {name} is that of another capture; analyze it anew.")
        return CapturedRun(name=name, manifest=manifest)
    return CapturedRun(name=name, manifest=manifest, analysis=analysis)


def _hint_at_analysis(folders: Sequence[Path], comparison: Comparison, places: Places) -> None:
    """Says how exposed time comes to be known, where a run is not analysed yet."""
    from zerotrace.store import has_analysis

    waiting = [folder for folder, run in zip(folders, comparison.runs) if run.exposed_ns is None]
    waiting = [folder for folder in waiting if not has_analysis(folder)]
    if waiting:
        others = f", and the {len(waiting) - 1} others" if len(waiting) > 2 else ", and the other" * (len(waiting) - 1)
        command = f"zerotrace analyze {places.name(waiting[0])}"
        click.echo(printable(f"Note: exposed is unknown until a run is analysed: `{command}`{others}."), err=True)


def _print_table(comparison: Comparison) -> None:
    from rich.console import Console
    from rich.table import Table

    from zerotrace.analysis.compare.table import stage_text

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("run", vertical="bottom", overflow="fold")
    columns: dict[str, Callable[[ComparedRun], str]] = {
        " stage": lambda run: printable(stage_text(run)),
        " ranks": lambda run: str(run.world_size),
        " resident\nGiB": lambda run: _fixed(_gib(run.resident_bytes), 3),
        "   peak\nGiB": lambda run: _fixed(_gib(run.peak_bytes), 3),
        "  step\nms": lambda run: _fixed(_ms(run.step_ns), 1),
        "\n ktok/s": lambda run: _fixed(_kilo(run.tokens_per_s), 1),
        " exposed\nms": lambda run: _fixed(_ms(run.exposed_ns.max if run.exposed_ns else None), 1),
        "step −\nbaseline": lambda run: _fixed(_ms(run.study_exposed_ns), 1),
    }
    for name in columns:
        table.add_column(name, justify="right", vertical="bottom", no_wrap=True)
    for run in comparison.runs:
        table.add_row(printable(run.name), *(cell(run) for cell in columns.values()))
    console = Console(highlight=False, markup=False, file=sys.stdout)
    console.print(table)


def _print_ladder(steps: Sequence[LadderStep]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=None,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        title="what a stage saves, resident GiB a rank",
        title_justify="left",
        title_style="",
        caption="error: measured less DeepSpeed's ledger, of what the lower stage holds",
        caption_justify="left",
    )
    table.add_column("stages")
    for name in (" theory", " DeepSpeed's ledger", " measured", " error"):
        table.add_column(name, justify="right", no_wrap=True)
    for step in steps:
        sizes = (step.paper_bytes, step.deepspeed_bytes, step.measured_bytes)
        error = "–" if step.error_ratio is None else f"{100 * step.error_ratio:.2f} %"
        table.add_row(f"{step.from_stage} → {step.to_stage}", *(f"{size / GIB:.3f}" for size in sizes), error)
    Console(highlight=False, markup=False, file=sys.stdout).print(table)


def _print_words(sentences: Sequence[str | None]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, file=sys.stdout)
    for words in sentences:
        if words:
            console.print(printable(words))


def _fixed(value: float | None, digits: int) -> str:
    if value is None:
        return "–"
    return f"{value:.{digits if abs(value) >= 1 or not value else 3}f}"


def _gib(value: int | None) -> float | None:
    return None if value is None else value / GIB


def _ms(value: float | None) -> float | None:
    return None if value is None else value / NS_PER_MS


def _kilo(value: float | None) -> float | None:
    return None if value is None else value / 1000
