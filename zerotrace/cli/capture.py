"""``zerotrace capture``: run a ZeRO stage, or one of its kin in torch, and trace every rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zerotrace.capture.ablations import ABLATIONS
from zerotrace.capture.engines import DEEPSPEED, ENGINES
from zerotrace.capture.models import MODELS
from zerotrace.capture.plan import DEFAULT_SEED, DEFAULT_TIMEOUT_S, WINDOWS
from zerotrace.cli.ablate import capture_both, check_ablation
from zerotrace.cli.engines import engine_lines
from zerotrace.cli.launching import run_plan
from zerotrace.cli.many_hosts import capture_on_hosts
from zerotrace.cli.outcome import print_result, talk
from zerotrace.cli.request import Request, make_nodes, make_plan, parse_windows, refuse_in_job

if TYPE_CHECKING:
    from zerotrace.capture.job import JobRank
    from zerotrace.capture.plan import Nodes

_ARGS = "zerotrace.args"

_EPILOG = """\b
Examples:
  zerotrace capture --stage 3 --gpus 8
  zerotrace capture --stage 3 --gpus 2 --device cpu --out traces/trial
  zerotrace capture --engine single
  zerotrace capture --engine ddp --gpus 8 --set bucket_cap_mb=50
  zerotrace capture --stage 2 --gpus 8 --set zero_optimization.reduce_bucket_size=5e7
  zerotrace capture --stage 3 --gpus 8 --ablate prefetch
  zerotrace capture --stage 3 --gpus 8 --script train.py -- --epochs 1
  zerotrace capture --engine auto --gpus 8 --script train.py
  zerotrace capture --stage 3 --hostfile hosts --script train.py
  srun zerotrace capture --stage 3 --script train.py

Other engines do the same work without DeepSpeed. They take no --stage and no DeepSpeed configuration; what --set knows
with them stands below each.

ENGINES

--ablate prefetch captures stage 3 twice, into DIR and DIR-no-prefetch: as asked for, and with
stage3_prefetch_bucket_size 0 and overlap_comm false. The difference of the unprofiled steps is said at once, with its
noise; `zerotrace compare` tells that of exposed communication too, once both are analysed.

With --script the program runs unchanged: deepspeed.initialize is wrapped, its configuration gets the stage (and what
--set says), each optimizer step is counted, and the run ends after the last window. --engine auto leaves the program's
configuration as it is, and also finds DDP, FSDP and ZeroRedundancyOptimizer, by the optimizer that makes steps. In
ARGS, {local_rank} stands for the local rank, for programs that expect --local_rank from DeepSpeed's launcher.

Inside a torchrun or Slurm job (RANK, WORLD_SIZE and LOCAL_RANK, or SLURM_PROCID in a step of several tasks) the
command is the rank itself, and needs no --gpus.

The folder is printed on stdout, everything else on stderr. Exit code: 0 when the capture is complete; 1 when it cannot
start; 2 for a mistake in the options; the exit code of the rank that died (128 + N if signal N ended it); 124 when
--timeout was reached; 130 after Ctrl-C. Whatever happens, no rank is left running.
""".replace("ENGINES", engine_lines())


class _CommandWithArgs(click.Command):
    """Keeps its arguments as they were given, for the manifest."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[_ARGS] = tuple(args)
        return super().parse_args(ctx, args)


def _refuse_nan(_ctx: click.Context, _param: click.Parameter, value: float) -> float:
    # a range lets NaN through, because no comparison with it is true
    if value != value:
        raise click.BadParameter("nan is no number of seconds.")
    return value


@click.command(cls=_CommandWithArgs, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--engine",
    type=click.Choice(list(ENGINES)),
    default=DEEPSPEED.name,
    show_default=True,
    help="What trains.",
)
@click.option("--stage", type=click.Choice(["0", "1", "2", "3"]), help="ZeRO stage; required with DeepSpeed.")
@click.option("--gpus", type=click.IntRange(min=1), metavar="N", help="Number of ranks on each machine; on CPUs too.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cuda", "cpu"]),
    default="auto",
    show_default=True,
    help="cuda: NCCL. cpu: gloo. auto: CUDA devices if there are any.",
)
@click.option("--script", type=click.Path(path_type=Path), metavar="FILE", help="Program to run; its ARGS follow `--`.")
@click.option("--keep-running", is_flag=True, help="Let the program of --script go on after the last window.")
@click.option(
    "--model",
    metavar="NAME",
    help=f"One of {', '.join(MODELS)}.  [cuda: gpt2-large, cpu: nano]",
)
@click.option(
    "--windows",
    callback=parse_windows,
    default=",".join(WINDOWS),
    show_default=True,
    metavar="NAMES",
    help="What to run after the warm-up; the default gives a full analysis.",
)
@click.option("--steps", type=click.IntRange(min=1), metavar="N", help="Steps of each window with a profiler.  [2]")
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
    help="One key of the DeepSpeed configuration, dotted, or a setting of another engine; the value is JSON. May be "
    "repeated.",
)
@click.option(
    "--ablate",
    type=click.Choice(list(ABLATIONS)),
    help="Capture twice, the second time without this part of the engine, and say what it is worth.",
)
@click.option(
    "--ingest", is_flag=True, help="Have each rank read its own trace at the end, and leave its tables for analyze."
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="New folder for the capture.  [traces/stageN or traces/ENGINE, or the next free traces/stageN-2 ...]",
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True, max=1e7),
    callback=_refuse_nan,
    default=DEFAULT_TIMEOUT_S,
    show_default=True,
    metavar="SECONDS",
    help="Limit for the whole run; then all ranks are ended. With --keep-running, until the last window is through.",
)
@click.option(
    "--seed",
    type=click.IntRange(-(2**62), 2**62),
    metavar="N",
    help=f"Seed of the weights and the tokens.  [{DEFAULT_SEED}]",
)
@click.option(
    "--hostfile",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Capture on these hosts over ssh; DeepSpeed's format, `worker-1 slots=4`.",
)
@click.option(
    "--launcher",
    type=click.Choice(["ssh", "print"]),
    default="ssh",
    show_default=True,
    help="With --hostfile: start the command on each host, or print the commands.",
)
@click.option("--nnodes", type=click.IntRange(min=1), default=1, metavar="N", help="Number of machines.  [1]")
@click.option("--node-rank", type=click.IntRange(min=0), metavar="N", help="Which of them this is, from 0.")
@click.option(
    "--rdzv-endpoint",
    metavar="HOST:PORT",
    help="Where they meet: a free port on node 0.  [first host:29500]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a summary as JSON on stdout.")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def capture(
    ctx: click.Context,
    engine: str,
    stage: str | None,
    gpus: int | None,
    device: str,
    script: Path | None,
    keep_running: bool,
    model: str | None,
    windows: tuple[str, ...],
    steps: int | None,
    warmup: int | None,
    timed: int | None,
    micro_batch: int | None,
    sequence: int | None,
    ds_config: Path | None,
    settings: tuple[str, ...],
    ablate: str | None,
    ingest: bool,
    out: Path | None,
    timeout: float,
    seed: int | None,
    hostfile: Path | None,
    launcher: str,
    nnodes: int,
    node_rank: int | None,
    rdzv_endpoint: str | None,
    as_json: bool,
    args: tuple[str, ...],
) -> None:
    """Train a few steps at a ZeRO stage, or with another engine, and trace every rank.

    Runs a GPT-2 on random tokens, or with --script any program that trains with DeepSpeed, DDP or FSDP, through
    windows: the run as it is (timed), with a profiler that records the device alone (light), with one that records host
    and device and knows what ZeRO is doing (detailed), and with the allocator's history (memory). The folder gets one
    Kineto trace a rank, memory snapshots and manifest.json.
    """
    request = Request(
        engine=engine,
        stage=int(stage) if stage else None,
        num_ranks=gpus,
        device=device,
        model=model,
        windows=windows,
        num_profiled=steps,
        num_warmup=warmup,
        num_timed=timed,
        micro_batch=micro_batch,
        sequence=sequence,
        seed=seed,
        timeout_s=timeout,
        ds_config=ds_config,
        settings=settings,
        script=script,
        args=args,
        keep_running=keep_running,
        ingest=ingest,
        command=("zerotrace", "capture", *ctx.meta[_ARGS]),
        num_nodes=nnodes,
    )
    request.check()
    from zerotrace.capture.job import find_job

    job = find_job(os.environ) if launcher == "ssh" or hostfile is None else None
    if ablate is not None:
        check_ablation(request, ablate, alone=hostfile is None and job is None)
    if job is not None:
        own = {"--hostfile": hostfile, "--nnodes": nnodes if nnodes > 1 else None, "--node-rank": node_rank,
               "--rdzv-endpoint": rdzv_endpoint, "--json": as_json or None}  # fmt: skip
        refuse_in_job(job, own)
    if hostfile is not None:
        if ENGINES[engine].num_ranks is not None:
            raise click.UsageError(f"--engine {engine} trains on one device: leave out --hostfile.")
        if nnodes > 1 or node_rank is not None:
            raise click.UsageError("--hostfile numbers the nodes itself: leave out --nnodes and --node-rank.")
        capture_on_hosts(hostfile, gpus, rdzv_endpoint, ctx.meta[_ARGS], start=launcher == "ssh")
        return
    if job is not None:
        _join(job, request, out)
        return
    if gpus is None and ENGINES[engine].num_ranks is None:
        raise click.UsageError("Missing option '--gpus', the number of ranks to start on this machine.")
    nodes = make_nodes(nnodes, node_rank, rdzv_endpoint)
    if ablate is not None:
        capture_both(request, ablate, nodes, out, as_json=as_json)
        return
    _launch(request, nodes, out, as_json)


def _launch(request: Request, nodes: Nodes, out: Path | None, as_json: bool) -> None:
    """Start the ranks of this machine."""
    from zerotrace.capture.folder import check_out, reserve_folder
    from zerotrace.capture.hosts import hold_to_stdin

    check_out(out)
    plan = make_plan(request, nodes)
    folder = reserve_folder(out, plan.default_name, node_rank=nodes.node_rank)
    hold_to_stdin()
    print_result(run_plan(plan, folder, request.windows), as_json=as_json)


def _join(job: JobRank, request: Request, out: Path | None) -> None:
    """Become a rank of the job that this process runs in."""
    from zerotrace.capture.job import become_rank, plan_of_job, program_of_job

    plan = make_plan(request.in_job(job), make_nodes(1, None, None))
    if job.rank == 0:
        talk(f"Rank 0 of {job.world_size} in a {job.launcher} job: capturing {plan.title}")
    become_rank(job, plan_of_job(plan, out), plan.device, program_of_job(plan))
