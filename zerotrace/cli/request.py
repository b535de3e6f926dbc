"""The options of ``zerotrace capture`` as given, and the plan that they make."""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec import Struct
from msgspec.structs import asdict, replace

from zerotrace.capture.engines import AUTO, ENGINES
from zerotrace.capture.plan import order_windows

if TYPE_CHECKING:
    from zerotrace.capture.job import JobRank
    from zerotrace.capture.plan import CapturePlan, Nodes, Script, WorkDefaults


class Request(Struct, frozen=True, kw_only=True):
    """The options as given; ``None`` where the default depends on the device."""

    engine: str
    stage: int | None
    num_ranks: int | None
    device: str
    model: str | None
    windows: tuple[str, ...]
    num_profiled: int | None
    num_warmup: int | None
    num_timed: int | None
    micro_batch: int | None
    sequence: int | None
    seed: int | None
    timeout_s: float
    ds_config: Path | None
    settings: tuple[str, ...]
    script: Path | None
    args: tuple[str, ...]
    keep_running: bool
    command: tuple[str, ...]
    ingest: bool = False
    num_nodes: int = 1
    world_size: int | None = None
    """Ranks of the run, where a job has started them."""

    def in_job(self, job: JobRank) -> Request:
        """The same request, as it holds for a rank of a job.

        Raises:
            CaptureError: ``--gpus`` or ``--engine`` contradicts the job.
        """
        from zerotrace.errors import CaptureError

        if ENGINES[self.engine].num_ranks not in (None, job.world_size):
            raise CaptureError(
                f"--engine {self.engine} trains on one device, but this process is one of {job.world_size} ranks that "
                f"{job.launcher} has started.",
                code="job_conflict",
                hint="Start one rank, or run the command outside of the job.",
            )
        if self.num_ranks is not None and job.num_local is not None and self.num_ranks != job.num_local:
            raise CaptureError(
                f"--gpus is {self.num_ranks}, but this process is one of {job.num_local} ranks that {job.launcher} has "
                "started on this machine.",
                code="job_conflict",
                hint="Leave out --gpus inside of a job, or unset RANK to start ranks from here.",
            )
        # Each rank looks after itself: it needs a device with its own number.
        return replace(self, num_ranks=job.local_rank + 1, world_size=job.world_size)

    def check(self) -> None:
        """Refuse options that do not go together.

        Raises:
            click.UsageError: some do not.
        """
        if self.ingest and "detailed" not in self.windows:
            raise click.UsageError("--ingest needs the detailed window, whose trace it reads.")
        if ENGINES[self.engine].has_stages:
            if self.stage is None:
                also = ", or --engine auto for the program as it is" if self.script is not None else ""
                raise click.UsageError(f"Missing option '--stage', the ZeRO stage of the run: 0, 1, 2 or 3{also}.")
        else:
            self._check_plain_engine()
        if self.script is None:
            if self.engine == AUTO.name:
                raise click.UsageError("--engine auto needs --script: it finds what a program of yours trains with.")
            if self.args:
                raise click.UsageError(f"Got unexpected extra arguments ({' '.join(self.args)}): they need --script.")
            if self.keep_running:
                raise click.UsageError("--keep-running needs --script: zerotrace's own GPT-2 ends with the capture.")
            return
        own = {
            "--model": self.model,
            "--micro-batch": self.micro_batch,
            "--sequence": self.sequence,
            "--seed": self.seed,
            "--ds-config": self.ds_config,
        }
        if given := [name for name, value in own.items() if value is not None]:
            raise click.UsageError(
                f"{_listed(given)} {_belong(given)} to zerotrace's own GPT-2; with --script the program brings that "
                "itself. (--set changes single keys of its DeepSpeed configuration.)"
            )
        if self.num_warmup == 0:
            raise click.UsageError("--warmup 0 with --script: the program's set-up lies in its first step.")

    def _check_plain_engine(self) -> None:
        """Refuse what only DeepSpeed has."""
        kind = ENGINES[self.engine]
        deepspeed_only = {
            "--stage": self.stage,
            "--ds-config": self.ds_config,
            "--set": (self.settings or None) if not kind.settings else None,
        }
        if self.script is not None and not kind.takes_scripts:
            raise click.UsageError(
                f"--engine {self.engine} trains zerotrace's own GPT-2: for a program of yours pass --engine auto, "
                "which finds what it trains with."
            )
        if given := [name for name, value in deepspeed_only.items() if value is not None]:
            raise click.UsageError(
                f"{_listed(given)} {_belong(given)} to DeepSpeed: leave {'it' if len(given) == 1 else 'them'} out with "
                f"--engine {self.engine}, which has no ZeRO stage and no DeepSpeed configuration."
            )
        most = kind.num_ranks
        if most is not None and (self.num_ranks not in (None, most) or self.num_nodes > 1):
            raise click.UsageError(f"--engine {self.engine} trains on one device: leave out --gpus, or pass --gpus 1.")


def refuse_in_job(job: JobRank, options: Mapping[str, object]) -> None:
    """Refuse options that mean nothing to a rank of a job, which starts no others.

    Args:
        job: the rank that this process is.
        options: such options, and their values; ``None`` where they were not given.

    Raises:
        click.UsageError: one was given.
    """
    if given := [name for name, value in options.items() if value is not None]:
        raise click.UsageError(
            f"Leave out {_listed(given)}: this process is rank {job.rank} of a {job.launcher} job, by "
            f"{job.told_by} in the environment. To start ranks from here, unset these."
        )


def make_nodes(num_nodes: int, node_rank: int | None, endpoint: str | None) -> Nodes:
    """The machines of a run, from the options that torchrun has too.

    Raises:
        click.UsageError: the options do not go together.
    """
    from zerotrace.capture.nodes import DEFAULT_PORT, parse_endpoint
    from zerotrace.capture.plan import Nodes

    if num_nodes == 1:
        if endpoint is not None or node_rank:
            raise click.UsageError("--node-rank and --rdzv-endpoint need --nnodes 2 or more.")
        return Nodes()
    if node_rank is None or endpoint is None:
        raise click.UsageError("--nnodes needs --node-rank (which node this is) and --rdzv-endpoint (where they meet).")
    if node_rank >= num_nodes:
        raise click.UsageError(f"--node-rank {node_rank}: {num_nodes} nodes have the ranks 0 to {num_nodes - 1}.")
    parse_endpoint(endpoint)
    if not endpoint.rpartition(":")[2].isdigit() or endpoint.endswith("]"):
        endpoint = f"{endpoint}:{DEFAULT_PORT}"
    return Nodes(num_nodes=num_nodes, node_rank=node_rank, endpoint=endpoint)


def make_plan(request: Request, nodes: Nodes) -> CapturePlan:
    """Check everything that can be checked before a process starts, cheapest first.

    Args:
        request: the options.
        nodes: the machines of the run.

    Raises:
        CaptureError: the capture cannot work.
    """
    from zerotrace.capture.ds_config import read_ds_config
    from zerotrace.capture.ds_settings import parse_setting
    from zerotrace.capture.engine_settings import check_settings
    from zerotrace.capture.machine import choose_device, require_engine
    from zerotrace.capture.models import find_model
    from zerotrace.capture.nodes import check_endpoint
    from zerotrace.capture.plan import DEFAULTS, CapturePlan, choose_steps

    num_ranks = request.num_ranks or 1
    if request.model is not None:
        find_model(request.model)
    settings = [parse_setting(text) for text in request.settings]
    file_config = read_ds_config(request.ds_config) if request.ds_config else {}
    check_endpoint(nodes)
    script = _script(request, settings)
    kind = ENGINES[request.engine]
    engine_settings = check_settings(kind, settings) if kind.settings else {}
    require_engine(kind)
    device = choose_device(request.device, num_ranks)
    defaults = DEFAULTS[device]
    world_size = request.world_size or num_ranks * nodes.num_nodes
    work = {"script": script} if script else _gpt2(request, defaults, file_config, settings, world_size)
    steps = choose_steps(
        device,
        timed=_given(request.num_timed, defaults.num_timed),
        profiled=_given(request.num_profiled, defaults.num_profiled),
        windows=request.windows,
    )
    if not any(asdict(steps).values()):
        why = "there is no light window on a CPU" if request.num_timed != 0 and device == "cpu" else "--timed is 0"
        raise click.UsageError(f"--windows {','.join(request.windows)} leaves nothing to measure: {why}.")
    plan = CapturePlan(
        engine=request.engine,
        stage=request.stage,
        num_ranks=num_ranks,
        device=device,
        num_warmup=_given(request.num_warmup, defaults.num_warmup),
        **asdict(steps),
        timeout_s=request.timeout_s,
        ingest=request.ingest,
        engine_settings=engine_settings,
        nodes=nodes,
        command=request.command,
        **work,
    )
    _check_keys(plan, world_size)
    return plan


def parse_windows(_ctx: click.Context, _param: click.Parameter, text: str) -> tuple[str, ...]:
    """The value of ``--windows``, in the order in which windows run.

    Raises:
        click.BadParameter: there is no window of such a name.
    """
    try:
        return order_windows(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _script(request: Request, settings: list[tuple[str, Any]]) -> Script | None:
    from zerotrace.capture.ds_config import refuse_option_key
    from zerotrace.capture.folder import status_of
    from zerotrace.capture.plan import Script
    from zerotrace.errors import CaptureError

    if request.script is None:
        return None
    status = status_of(request.script)
    if status is None or not stat.S_ISREG(status.st_mode):
        raise CaptureError(
            f"The program {request.script} does not exist."
            if status is None
            else f"The program {request.script} is no file.",
            code="script_missing",
            hint="Pass the path of a Python program to --script, and its arguments after `--`.",
        )
    for key, _ in settings:
        if key != "train_micro_batch_size_per_gpu":
            refuse_option_key(key)
    return Script(
        path=request.script.absolute(), args=request.args, settings=tuple(settings), keep_running=request.keep_running
    )


def _gpt2(
    request: Request,
    defaults: WorkDefaults,
    file_config: dict[str, Any],
    settings: list[tuple[str, Any]],
    world_size: int,
) -> dict[str, Any]:
    """What zerotrace's own GPT-2 needs to know."""
    from zerotrace.capture.ds_config import build_ds_config, resolve_micro_batch
    from zerotrace.capture.plan import DEFAULT_SEED

    micro_batch = resolve_micro_batch(file_config, request.micro_batch, defaults.micro_batch)
    ds_config = None
    if request.stage is not None:
        ds_config = build_ds_config(
            stage=request.stage,
            micro_batch=micro_batch,
            num_ranks=world_size,
            file_config=file_config,
            settings=settings,
        )
    return {
        "model": request.model or defaults.model,
        "micro_batch": micro_batch,
        "sequence": request.sequence or defaults.sequence,
        "seed": _given(request.seed, DEFAULT_SEED),
        "ds_config": ds_config,
    }


def _check_keys(plan: CapturePlan, world_size: int) -> None:
    """Hold the configuration against the DeepSpeed that is installed, as far as it is known."""
    from zerotrace.capture.ds_config import refuse_odd_numbers
    from zerotrace.capture.ds_keys import check_ds_config, check_keys
    from zerotrace.capture.ds_settings import set_key

    if plan.ds_config is not None:
        check_ds_config(plan.ds_config, world_size)
    elif plan.script is not None and plan.script.settings:
        config: dict[str, Any] = {}
        for key, value in plan.script.settings:
            set_key(config, key, value)
        refuse_odd_numbers(config)
        check_keys(config)


def _listed(names: Sequence[str]) -> str:
    """Names in a sentence: ``a, b and c``."""
    return " and ".join([part for part in (", ".join(names[:-1]), names[-1]) if part])


def _belong(names: Sequence[str]) -> str:
    return "belongs" if len(names) == 1 else "belong"


def _given(value: int | None, default: int) -> int:
    return default if value is None else value
