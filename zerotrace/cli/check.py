"""``zerotrace check``: a gate for programs that watch over runs."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zerotrace.address import Url
from zerotrace.cli.places import Place, at_hand
from zerotrace.cli.terminal import print_data, printable

if TYPE_CHECKING:
    from zerotrace.analysis.check import Condition
    from zerotrace.model import Analysis, Check, CheckedCondition, ComparedFigure, Unit

_WIDTH = 80

_EPILOG = """\b
Examples:
  zerotrace check traces/stage3 --fail-if "exposed_transfer_ratio > 20%"
  zerotrace check traces/new --fail-if "peak_bytes > 13GiB" --baseline traces/old
  zerotrace check traces/stage3 --list

A condition is a figure, one of > >= < <= == !=, and a value: a number in the unit that the name says, or with one of
its own (20ms, 13GiB, 20%). A figure over ranks is that of the worst rank; NAME.min, NAME.median and NAME.max are over
the ranks.

Against a baseline, a run is worse where its step, compute, exposed transfer, exposed wait, blocking time, memory or
bytes sent are above the baseline's by more than twice the standard error of both, as their timed steps tell it, and
more than 1 %.

Exit codes: 0 all is well, 1 something cannot be judged, 2 no such figure or condition, 3 a condition holds, or the run
is worse than the baseline.
"""


def _conditions(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> tuple[Condition, ...]:
    """Conditions as people write them.

    Raises:
        click.BadParameter: one of them is none.
    """
    from zerotrace.analysis.check import FIGURES, ConditionError, parse_condition
    from zerotrace.analysis.check import close_names as close

    units = {name: spec.unit for name, spec in FIGURES.items()}
    try:
        return tuple(parse_condition(text, units) for text in texts)
    except ConditionError as error:
        hint = ""
        if error.figure is not None:
            like = close(error.figure)
            hint = f" Did you mean {' or '.join(like)}?" if like else ""
            hint += " --list shows them all."
        raise click.BadParameter(printable(f"{error}.{hint}")) from error


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=Place(), metavar="DIR")
@click.option(
    "--fail-if",
    "conditions",
    multiple=True,
    callback=_conditions,
    metavar="CONDITION",
    help="Exit with 3 where this holds; repeatable.",
)
@click.option(
    "--baseline",
    type=Place(),
    metavar="DIR",
    help="Exit with 3 where the run is worse than this one, beyond the noise of both.",
)
@click.option("--list", "listing", is_flag=True, help="Print every figure with its value.")
@click.option("--json", "as_json", is_flag=True, help="Print the outcome as JSON.")
@click.pass_context
def check(
    ctx: click.Context,
    folder: Path | Url,
    conditions: tuple[Condition, ...],
    baseline: Path | Url | None,
    listing: bool,
    as_json: bool,
) -> None:
    """Hold a run to conditions, or to another run.

    DIR is a run that was analysed, or its analysis folder.
    """
    if listing and (conditions or baseline or as_json):
        raise click.UsageError("--list stands alone.")
    if not (listing or conditions or baseline):
        raise click.UsageError("nothing to check: pass --fail-if, --baseline or --list.")
    from zerotrace.analysis.check import check as judge
    from zerotrace.errors import ComparisonError, ExitCode
    from zerotrace.store import doubting, to_json

    with at_hand() as places:
        here = places.analysis(folder)
        analysis = _read(here)
        there = places.analysis(baseline) if baseline else None
        other = _read(there) if there else None
        with doubting(*filter(None, (here, there))):
            if listing:
                _print_list(analysis)
                return
            found = judge(analysis, conditions, other, str(baseline) if baseline else None)
            if as_json:
                print_data(to_json(found))
            else:
                for line in check_lines(found):
                    _say(line)
    if found.unknown:
        raise ComparisonError(
            "; ".join(found.unknown),
            code="figure_unknown",
            hint="a figure that is unknown passes no gate; `zerotrace check DIR --list` shows what is known",
        )
    if found.failed:
        ctx.exit(ExitCode.GATE)


def _read(folder: Path) -> Analysis:
    """An analysis, if it is of the capture that lies beside it.

    Raises:
        StoreError: there is none, or it is of another capture.
    """
    from zerotrace.errors import StoreError
    from zerotrace.store import MANIFEST_FILE, analysis_folder, read_analysis, read_manifest

    analysis = read_analysis(folder)
    run = folder if (folder / MANIFEST_FILE).is_file() else analysis_folder(folder).parent
    manifest = read_manifest(run)
    if manifest is not None and analysis.manifest != manifest:
        raise StoreError(
            f"{run}: the analysis is that of another capture than the {MANIFEST_FILE} beside it",
            code="analysis_stale",
            hint=f"run `zerotrace analyze {run} --force` first",
        )
    return analysis


def check_lines(found: Check) -> Iterator[str]:
    """One sentence a condition and figure, and one that sums up."""
    for condition in found.conditions:
        yield _condition_line(condition)
    for figure in found.figures:
        yield _figure_line(figure)
    parts = []
    if found.conditions:
        held = sum(bool(condition.holds) for condition in found.conditions)
        parts.append(f"{held or 'none'} of {len(found.conditions)} conditions {'holds' if held < 2 else 'hold'}")
    if found.figures:
        compared = [figure.judgement.value for figure in found.figures if figure.judgement.value != "unknown"]
        worse = compared.count("worse")
        parts.append(f"{worse or 'none'} of {len(compared)} figures worse than {found.baseline_name}")
    verdict = "Not everything can be judged" if found.unknown else "Failed" if found.failed else "Passed"
    yield f"{verdict}: {', '.join(parts)}."


def _condition_line(condition: CheckedCondition) -> str:
    if condition.value is None:
        return f"Unknown: {condition.figure}: {condition.reason}."
    word = "Fails" if condition.holds else "Fine"
    shown = _shown(condition.value, condition.figure, condition.unit)
    if condition.value != condition.threshold and shown == _shown(
        condition.threshold, condition.figure, condition.unit
    ):
        shown = f"{condition.value!r} {condition.unit.value}"
    return f"{word}: {condition.figure} is {shown}; fails if {condition.condition}."


def _figure_line(figure: ComparedFigure) -> str:
    name = figure.figure
    if figure.reason is not None or figure.value is None or figure.baseline is None or figure.band is None:
        return f"Not compared: {name}: {figure.reason}."
    value, theirs, band, apart = (
        _shown(number, name, figure.unit)
        for number in (figure.value, figure.baseline, figure.band, abs(figure.value - figure.baseline))
    )
    word = figure.judgement.value.capitalize()
    if figure.value == figure.baseline:
        return f"{word}: {name} is {value}, as the baseline's."
    more = "more" if figure.value > figure.baseline else "less"
    within = "within" if figure.judgement.value == "equal" else "beyond"
    return f"{word}: {name} is {value}, {apart} {more} than the baseline's {theirs}; {within} the band of {band}."


def _print_list(analysis: Analysis) -> None:
    from zerotrace.analysis.check import FIGURES

    names = [spec for spec in FIGURES.values() if "." not in spec.name]
    width = max(len(spec.name) for spec in names)
    for spec in names:
        value = spec.value(analysis)
        shown = "unknown" if value is None else _shown(value, spec.name, spec.unit)
        doc = f"{spec.doc}; {spec.reason(analysis)}" if value is None else spec.doc
        lead = f"{spec.name:{width}}  {shown:>9}  "
        _say(lead + doc + (" *" if spec.over_ranks else ""), indent=len(lead))
    _say("* the worst rank's; NAME.min, NAME.median and NAME.max are over the ranks.")


def _shown(value: float, name: str, unit: Unit) -> str:
    from zerotrace.units import format_bytes, format_ns, format_traffic

    if name == "sent_bytes":
        return format_traffic(value)
    if unit.value == "ns":
        return format_ns(value)
    if unit.value == "bytes":
        return format_bytes(value)
    return f"{value:,.0f}" if unit.value == "per_s" else f"{value:.4g}"


def _say(line: str, indent: int = 2) -> None:
    for part in textwrap.wrap(
        printable(line), _WIDTH, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False
    ):
        click.echo(part)
