"""``zerotrace export``: an analysis as other tools read it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from zerotrace.address import Url
from zerotrace.cli.places import Place, at_hand
from zerotrace.cli.terminal import end_in_order, shell_path

_EPILOG = """\b
Examples:
  zerotrace export traces/stage3 --perfetto stage3.pftrace
  zerotrace export traces/stage3 --perfetto stage3.pftrace --no-host

Open the file at https://ui.perfetto.dev, which reads it in the browser and sends it nowhere, or ask trace_processor.
Rows of one stream or thread that cross each other, which Perfetto's tracks cannot hold, go on further tracks of the
same name.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("folder", type=Place(), metavar="DIR")
@click.option(
    "--perfetto",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    metavar="FILE",
    help="Perfetto's own format, all ranks in one file.",
)
@click.option("--host/--no-host", default=True, help="Write the threads of the host, or the devices alone.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def export(folder: Path | Url, target: Path, host: bool, force: bool) -> None:
    """Write an analysis for other tools.

    DIR is a run that was analysed, or its analysis folder; the traces are not needed. All ranks lie on one clock. Each
    has its steps, what the partition makes of its time, exposed communication and waiting, its streams, gathers by
    kind, memory by owner, and threads. Arrows join the members of each collective.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # as in analyze
    from zerotrace.export import export_perfetto
    from zerotrace.store import doubting
    from zerotrace.units import format_bytes, format_count

    end_in_order()  # as in analyze
    with at_hand() as places:
        here = places.analysis(folder, tables=True)
        with doubting(here):
            done = export_perfetto(here, target, host=host, replace=force)
    if not done.aligned:
        click.echo("Note: the clocks of the ranks lie more than 104 days apart: here they begin together.", err=True)
    ranks = f"{done.num_ranks} rank{'' if done.num_ranks == 1 else 's'}"
    click.echo(f"{format_count(done.num_slices)} slices of {ranks}, {format_bytes(done.num_bytes)}.", err=True)
    click.echo(f"Perfetto: {shell_path(done.path)}")
