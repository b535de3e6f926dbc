"""``zerotrace doctor``: what this machine can capture, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from zerotrace.capture.engines import DEEPSPEED
from zerotrace.cli.outcome import talk
from zerotrace.cli.terminal import print_data, printable

_EPILOG = """\b
Examples:
  zerotrace doctor
  zerotrace doctor --out traces/stage3 --json

Exit code: 0 when a ZeRO stage can be captured on some device, 1 when on none.
"""


@click.command(epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("traces"),
    show_default=True,
    metavar="DIR",
    help="Folder that captures go into.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the checks as JSON on stdout.")
@click.pass_context
def doctor(ctx: click.Context, out: Path, as_json: bool) -> None:
    """Say what this machine can capture, and what is missing.

    Looks at torch, DeepSpeed and the output folder, has two ranks meet over gloo, and on GPUs tries NCCL and a small
    profile: CUPTI can be in use by another profiler. Takes some seconds.
    """
    from zerotrace.capture.doctor import examine

    diagnosis = examine(out)
    if as_json:
        print_data(json.dumps(msgspec.to_builtins(diagnosis), indent=1) + "\n")
    else:
        for check in diagnosis.checks:
            click.echo(printable(f"{check.health.value:8} {check.name}: {check.found}"))
            click.echo(printable(f"{'':8} {check.means}"))
            if check.hint:
                click.echo(printable(f"{'':8} {check.hint}"))
    if not diagnosis.devices:
        talk("No capture is possible here.")
        ctx.exit(1)
    stages = DEEPSPEED.name in diagnosis.engines
    what = "A capture" if stages else f"Only --engine {' or '.join(diagnosis.engines)}"
    talk(f"{what} is possible on: {', '.join(diagnosis.devices)}")
    talk("Next:")
    what = "--stage 3 --gpus 2" if stages else "--engine single"
    talk(f"zerotrace capture {what}{' --device cpu' if diagnosis.devices == ('cpu',) else ''}")
    ctx.exit(0 if stages else 1)
