"""``zerotrace capture``: run a ZeRO stage and trace every rank."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from zerotrace.capture.models import MODELS
from zerotrace.capture.plan import DEFAULT_SEED, DEFAULT_TIMEOUT_S
from zerotrace.units import format_bytes, format_ns

if TYPE_CHECKING:
    from zerotrace.capture.folder import CaptureFolder
    from zerotrace.capture.launch import CaptureResult, ProgressCallback
    from zerotrace.capture.plan import CapturePlan
    from zerotrace.capture.progress import RankProgress
    from zerotrace.model import RankRecord

_ARGS = "zerotrace.args"

_EPILOG = """\b
Examples:
  zerotrace capture --stage 3 --gpus 8
  zerotrace capture --stage 3 --gpus 2 --device cpu --out traces/trial
  zerotrace capture --stage 2 --gpus 8 --set zero_optimization.reduce_bucket_size=5e7

The folder is printed on stdout, everything else on stderr. Exit code: 0 when the capture is complete; 1 when it cannot
start; 2 for a mistake in the options; the exit code of the rank that died (128 + N if signal N ended it); 124 when
--timeout was reached; 130 after Ctrl-C. Whatever happens, no rank is left running.
"""


class _CommandWithArgs(click.Command):
    """Keeps its arguments as they were given, for the manifest."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGS] = tuple(args)
        return super().parse_args(ctx, args)


@dataclass(frozen=True, kw_only=True)
class _Request:
    """The options as given; ``None`` where the default depends on the device."""

    stage: int
    num_ranks: int
    device: str
    model: str | None
    num_profiled: int | None
    num_warmup: int | None
    num_timed: int | None
    micro_batch: int | None
    sequence: int | None
    seed: int
    timeout_s: float
    ds_config: Path | None
    settings: tuple[str, ...]
    command: tuple[str, ...]


@click.command(cls=_CommandWithArgs, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--stage", type=click.Choice(["0", "1", "2", "3"]), required=True, help="ZeRO stage.")
@click.option("--gpus", type=click.IntRange(min=1), required=True, metavar="N", help="Number of ranks; on CPUs too.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="cuda: NCCL. cpu: gloo. auto: CUDA devices if there are any.",
)
@click.option(
    "--model",
    metavar="NAME",
    help=f"One of {', '.join(MODELS)}.  [cuda: gpt2-large, cpu: nano]",
)
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Profiled steps.  [2]")
@click.option("--warmup", type=click.IntRange(min=0), metavar="N", help="Warm-up steps.  [cuda: 5, cpu: 2]")
@click.option(
    "--timed", type=click.IntRange(min=0), metavar="N", help="Timed steps, without a profiler.  [cuda: 15, cpu: 5]"
)
@click.option("--micro-batch", type=click.IntRange(min=1), metavar="N", help="Sequences a rank and micro-step.  [4]")
@click.option("--sequence", type=click.IntRange(min=1), metavar="N", help="Tokens a sequence.  [cuda: 1024, cpu: 64]")
@click.option(
    "--ds-config", type=click.Path(path_type=Path), metavar="FILE", help="DeepSpeed configuration to start from, JSON."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="One key of the DeepSpeed configuration, dotted; the value is JSON. May be repeated.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="New folder for the capture.  [traces/stageN, or the next free traces/stageN-2 ...]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Limit for the whole run; then all ranks are ended.",
)
@click.option("--seed", type=int, default=DEFAULT_SEED, show_default=True, help="Seed of the weights and the tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON on stdout.")
@click.pass_context
def capture(
    ctx: click.Context,
    stage: str,
    gpus: int,
    device: str,
    model: str | None,
    steps: int | None,
    warmup: int | None,
    timed: int | None,
    micro_batch: int | None,
    sequence: int | None,
    ds_config: Path | None,
    settings: tuple[str, ...],
    out: Path | None,
    timeout: float,
    seed: int,
    as_json: bool,
) -> None:
    """Train a few steps at a ZeRO stage and trace every rank.

    Runs a GPT-2 on random tokens with DeepSpeed: warm-up steps, timed steps without a profiler, then profiled steps
    under torch.profiler on all ranks. The folder gets one Kineto trace a rank and manifest.json.
    """
    from zerotrace.capture.ds_config import list_caveats
    from zerotrace.capture.folder import check_out, reserve_folder

    check_out(out)
    request = _Request(
        stage=int(stage),
        num_ranks=gpus,
        device=device,
        model=model,
        num_profiled=steps,
        num_warmup=warmup,
        num_timed=timed,
        micro_batch=micro_batch,
        sequence=sequence,
        seed=seed,
        timeout_s=timeout,
        ds_config=ds_config,
        settings=settings,
        command=("zerotrace", "capture", *ctx.meta[_ARGS]),
    )
    plan = _make_plan(request)
    folder = reserve_folder(out, plan.stage)
    _talk(
        f"Capturing {plan.model} at stage {plan.stage} on {plan.num_ranks} {plan.device} "
        f"rank{'s' if plan.num_ranks > 1 else ''} ({plan.backend}) into {folder.path}"
    )
    for caveat in list_caveats(plan.ds_config):
        _talk(f"Note: {caveat}")
    result = _run(plan, folder)
    _report(result, as_json)


def _make_plan(request: _Request) -> CapturePlan:
    """Check everything that can be checked before a process starts, cheapest first."""
    from zerotrace.capture.ds_config import build_ds_config, parse_setting, read_ds_config, resolve_micro_batch
    from zerotrace.capture.machine import choose_device, require_packages
    from zerotrace.capture.models import find_model
    from zerotrace.capture.plan import DEFAULTS, CapturePlan

    if request.model is not None:
        find_model(request.model)
    settings = [parse_setting(text) for text in request.settings]
    file_config = read_ds_config(request.ds_config) if request.ds_config else {}
    require_packages()
    device = choose_device(request.device, request.num_ranks)
    defaults = DEFAULTS[device]
    micro_batch = resolve_micro_batch(file_config, request.micro_batch, defaults.micro_batch)
    ds_config = build_ds_config(
        stage=request.stage,
        micro_batch=micro_batch,
        num_ranks=request.num_ranks,
        file_config=file_config,
        settings=settings,
    )
    plan = CapturePlan(
        stage=request.stage,
        num_ranks=request.num_ranks,
        device=device,
        model=request.model or defaults.model,
        micro_batch=micro_batch,
        sequence=request.sequence or defaults.sequence,
        seed=request.seed,
        num_warmup=_given(request.num_warmup, defaults.num_warmup),
        num_timed=_given(request.num_timed, defaults.num_timed),
        num_profiled=_given(request.num_profiled, defaults.num_profiled),
        timeout_s=request.timeout_s,
        ds_config=ds_config,
        command=request.command,
    )
    from zerotrace.capture.ds_keys import check_ds_config

    check_ds_config(ds_config, request.num_ranks)
    return plan


def _given(value: int | None, default: int) -> int:
    return default if value is None else value


def _run(plan: CapturePlan, folder: CaptureFolder) -> CaptureResult:
    from zerotrace.capture.launch import run_capture

    with _progress(plan.num_steps) as on_progress:
        return run_capture(plan, folder, on_progress=on_progress)


@contextmanager
def _progress(num_steps: int) -> Iterator[ProgressCallback]:
    """Show how far the slowest rank is: a bar on a terminal, else a line for each new phase."""
    if not sys.stderr.isatty():
        yield _phase_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("launched", total=num_steps)

        def show(ranks: Sequence[RankProgress]) -> None:
            slowest = min(ranks, key=lambda rank: rank.position)
            done = slowest.step if slowest.step >= 0 else None
            if slowest.phase in ("writing", "waiting", "done"):
                done = num_steps
            bar.update(task, description=slowest.phase, completed=done)

        yield show


def _phase_lines() -> Callable[[Sequence[RankProgress]], None]:
    shown = "launched"

    def show(ranks: Sequence[RankProgress]) -> None:
        nonlocal shown
        phase = min(ranks, key=lambda rank: rank.position).phase
        if phase != shown and phase in _PHASE_WORDS:
            shown = phase
            _talk(_PHASE_WORDS[phase])

    return show


_PHASE_WORDS = {
    "starting": "Ranks are starting ...",
    "warmup": "Warm-up steps ...",
    "timed": "Timed steps ...",
    "profiled": "Profiled steps ...",
    "writing": "Writing traces ...",
}


def _report(result: CaptureResult, as_json: bool) -> None:
    records = result.manifest.ranks
    if as_json:
        click.echo(json.dumps(_summary(result), indent=1))
    else:
        for record in records:
            _talk(_describe(record))
        click.echo(str(result.folder))
    sys.stdout.flush()
    _talk("Next:")
    _talk(f"zerotrace analyze {shlex.quote(str(result.folder))}")


def _summary(result: CaptureResult) -> dict[str, Any]:
    manifest = result.manifest
    return {
        "folder": str(result.folder),
        "stage": manifest.stage,
        "world_size": manifest.world_size,
        "device": manifest.device,
        "backend": manifest.backend,
        "model": manifest.model.name,
        "num_params": manifest.model.num_params,
        "ranks": [
            {
                "rank": record.rank,
                "median_step_ns": {kind: median(steps) for kind, steps in _step_times(record).items()},
                "resident_bytes": record.resident_bytes,
                "peak_bytes": record.peak_bytes,
                "reserved_bytes": record.reserved_bytes,
                "device_used_bytes": record.device_used_bytes,
                "trace_file": record.trace_file,
            }
            for record in manifest.ranks
        ],
    }


def _describe(record: RankRecord) -> str:
    times = (f"{kind} step {format_ns(median(steps))}" for kind, steps in _step_times(record).items())
    parts = [f"Rank {record.rank}", *times]
    if record.resident_bytes is not None:
        parts += [f"resident {format_bytes(record.resident_bytes)}", f"peak {format_bytes(record.peak_bytes)}"]
    return ", ".join(parts)


def _step_times(record: RankRecord) -> dict[str, tuple[int, ...]]:
    return {window.kind.value: window.step_ns for window in record.windows if window.kind.value != "warmup"}


def _talk(text: str) -> None:
    click.echo(text, err=True)
