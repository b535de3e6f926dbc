"""``zerotrace report``: the page of an analysis, drawn again."""

from __future__ import annotations

import os
from pathlib import Path

import click

from zerotrace.cli.terminal import end_in_order, shell_path

_EPILOG = """\b
Examples:
  zerotrace report traces/stage3
  zerotrace analyze traces/stage3 --no-report && zerotrace report traces/stage3
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
def report(folder: Path) -> None:
    """Draw report.html again, without the traces.

    DIR is a run that was analysed, or its analysis folder. The page comes from the tables and analysis.json alone, and
    replaces the one that is there.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in analyze
    end_in_order()
    from zerotrace.report.redraw import redraw
    from zerotrace.store import doubting

    with doubting(folder):
        page = redraw(folder)
    click.echo(f"Report: {shell_path(page)}")
