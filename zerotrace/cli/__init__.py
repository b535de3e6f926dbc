"""The command line: a command parses, calls one function, echoes."""

from __future__ import annotations

import traceback
from importlib import import_module
from typing import Any

import click

from zerotrace.cli.terminal import accept_any_encoding, keep_stream_numbers, printable, writing
from zerotrace.errors import ZerotraceError
from zerotrace.version import VERSION

#: Each command is a function of its name in a module of its name, imported when it is asked for.
COMMANDS = ("analyze", "capture", "check", "compare", "doctor", "export", "ledger", "report")

#: Exit code after Ctrl-C, as a shell has it.
_INTERRUPTED = 130


class _Commands(click.Group):
    """Finds commands by name, and turns their expected failures into one message each."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        command = getattr(import_module(f"zerotrace.cli.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        keep_stream_numbers()
        accept_any_encoding()
        try:
            with writing():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Aborted!", err=True)
            ctx.exit(_INTERRUPTED)
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
