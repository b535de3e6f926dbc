"""The command line: a command parses, calls one function, echoes."""

from __future__ import annotations

import traceback
from typing import Any

import click

from zerotrace.cli.analyze import analyze
from zerotrace.cli.capture import capture
from zerotrace.cli.doctor import doctor
from zerotrace.cli.terminal import accept_any_encoding, printable
from zerotrace.errors import ZerotraceError
from zerotrace.version import VERSION


class _Commands(click.Group):
    """Turns expected failures into one message: what was found, what was expected, what to do."""

    def invoke(self, ctx: click.Context) -> Any:
        accept_any_encoding()
        try:
            return super().invoke(ctx)
        except ZerotraceError as error:
            if ctx.params.get("verbose", 0) >= 2:
                traceback.print_exception(error)
            click.secho(printable(f"zerotrace: {error}"), err=True, fg="red", bold=True)
            if error.hint:
                click.echo(printable(f"  {error.hint}"), err=True)
            ctx.exit(error.exit_code)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: zerotrace capture --stage 3 --gpus 8 && zerotrace analyze traces/stage3",
)
@click.option("-v", "--verbose", count=True, help="-vv shows the traceback of an expected failure.")
@click.version_option(VERSION, prog_name="zerotrace")
def main(verbose: int) -> None:
    """Where a ZeRO training step's time really goes."""


main.add_command(analyze)
main.add_command(capture)
main.add_command(doctor)
