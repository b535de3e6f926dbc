"""``zerotrace report``: the page of an analysis, drawn again."""

from __future__ import annotations

import os
from pathlib import Path

import click

from zerotrace.address import Url
from zerotrace.cli.places import Place, at_hand
from zerotrace.cli.terminal import end_in_order

_EPILOG = """\b
Examples:
  zerotrace report traces/stage3
  zerotrace report traces/big --ranks 3,17,64-67
  zerotrace analyze traces/stage3 --no-report && zerotrace report traces/stage3
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=Place(), metavar="DIR")
@click.option(
    "--ranks",
    metavar="LIST",
    help="Ranks that have lanes and rows of their own, such as 3,17 or 0-3,64. By default all of them up to 16, and of "
    "more those that matter most.",
)
def report(folder: Path | Url, ranks: str | None) -> None:
    """Draw report.html again, without the traces.

    DIR is a run that was analysed, or its analysis folder. The page comes from the tables and analysis.json alone, and
    replaces the one that is there, in a store too.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in analyze
    from zerotrace.analysis.ranks import parse_ranks
    from zerotrace.report.redraw import redraw
    from zerotrace.store import doubting

    asked = parse_ranks(ranks) if ranks is not None else ()
    end_in_order()  # as in analyze
    with at_hand() as places:
        here = places.analysis(folder, tables=True)
        with doubting(here):
            page = redraw(here, asked)
        if isinstance(folder, Url):
            places.mirror.send_beside(page)
        click.echo(f"Report: {places.name(page)}")
