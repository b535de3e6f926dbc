"""Inside an existing torchrun or Slurm job the command is no launcher, but the rank itself."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from msgspec import Struct
from msgspec.structs import replace

from zerotrace.capture.handoff import SESSION_VARIABLE, Deadline, OwnOrders, SessionPlan, facts_of, session_plan
from zerotrace.capture.machine import rank_environment
from zerotrace.capture.nodes import DEFAULT_PORT
from zerotrace.capture.plan import CapturePlan, Nodes
from zerotrace.capture.torchrun import runner_command
from zerotrace.errors import CaptureError

_START_HINT = "Start the command with torchrun or srun, or unset the variables that they leave."


class JobRank(Struct, frozen=True, kw_only=True):
    """The rank that a job has made this process."""

    launcher: str
    """``torchrun`` (or any that sets the same variables) or ``Slurm``."""
    rank: int
    world_size: int
    local_rank: int
    num_local: int | None
    """Ranks on this machine, where the job says so."""
    node: int
    variables: Mapping[str, str]
    """torch's variables, where the job does not set them itself."""

    @property
    def told_by(self) -> str:
        """The variables that say so."""
        return "SLURM_PROCID" if self.launcher == "Slurm" else "RANK, WORLD_SIZE and LOCAL_RANK"


def find_job(environment: Mapping[str, str]) -> JobRank | None:
    """The rank that this process is; ``None`` where it is an ordinary process.

    A single task of Slurm is an ordinary process, which may start the ranks of its machine itself; so is a shell of
    ``sbatch`` or ``salloc``, which has no job step.

    Raises:
        CaptureError: the variables contradict each other.
    """
    if {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= environment.keys():
        return _from_torchrun(environment)
    in_step = "SLURM_STEP_ID" in environment
    name = "SLURM_STEP_NUM_TASKS" if environment.get("SLURM_STEP_NUM_TASKS") or not in_step else "SLURM_NTASKS"
    if "SLURM_PROCID" in environment and environment.get(name) and (num_tasks := _number(environment, name)) > 1:
        return _from_slurm(environment, num_tasks)
    return None


def become_rank(job: JobRank, plan: SessionPlan, device: str, program: list[str]) -> NoReturn:
    """Replace this process by the rank: it keeps its process id, so that the job watches over it as before.

    Args:
        job: the rank that this process is.
        plan: what the rank has to do.
        device: ``cuda`` or ``cpu``.
        program: training program and its arguments.
    """
    port = job.variables.get("MASTER_PORT") or os.environ.get("MASTER_PORT", str(DEFAULT_PORT))
    host = job.variables.get("MASTER_ADDR") or os.environ.get("MASTER_ADDR")
    # Only where the ranks meet matters here: it tells the network interface.
    nodes = Nodes(num_nodes=1 if host is None else 2, node_rank=job.node, endpoint=f"{host}:{port}" if host else None)
    environment = {**rank_environment(device, nodes), **job.variables, SESSION_VARIABLE: plan.to_json()}
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, [sys.executable, "-m", "zerotrace.capture.rank", *program], environment)


def plan_of_job(plan: CapturePlan, out: Path | None) -> SessionPlan:
    """What a rank of a job has to do.

    There is no launcher: rank 0 makes the folder and completes it, and each rank ends itself when the time is up.
    """
    own = OwnOrders(
        facts=facts_of(plan),
        out=str(out) if out else None,
        default_name=plan.default_name,
        deadline=Deadline(limit_s=plan.timeout_s, at_s=time.monotonic() + plan.timeout_s),
    )
    return replace(session_plan(plan), own=own)


def program_of_job(plan: CapturePlan) -> list[str]:
    """The training program of a plan and its arguments, without any file of a launcher."""
    if plan.script is not None:
        return [str(plan.script.path), *plan.script.args]
    return runner_command(plan, json.dumps(plan.ds_config))


def _from_torchrun(environment: Mapping[str, str]) -> JobRank:
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise CaptureError(
                f"RANK, WORLD_SIZE and LOCAL_RANK are set, as in a torchrun job, but {name} is not: it says where the "
                "ranks meet.",
                code="job_unclear",
                hint=_START_HINT,
            )
    _number(environment, "MASTER_PORT")
    return _checked(
        JobRank(
            launcher="torchrun",
            rank=_number(environment, "RANK"),
            world_size=_number(environment, "WORLD_SIZE"),
            local_rank=_number(environment, "LOCAL_RANK"),
            num_local=_number(environment, "LOCAL_WORLD_SIZE") if environment.get("LOCAL_WORLD_SIZE") else None,
            node=_number(environment, "GROUP_RANK") if "GROUP_RANK" in environment else 0,
            variables={},
        )
    )


def _from_slurm(environment: Mapping[str, str], num_tasks: int) -> JobRank:
    rank = _number(environment, "SLURM_PROCID")
    local_rank = _number(environment, "SLURM_LOCALID")
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and "," not in visible:
        # --gpus-per-task: each task sees its own device alone.
        local_rank = 0
    node = _number(environment, "SLURM_NODEID")
    variables = {
        "RANK": str(rank),
        "WORLD_SIZE": str(num_tasks),
        "LOCAL_RANK": str(local_rank),
        "GROUP_RANK": str(node),
        "MASTER_ADDR": environment.get("MASTER_ADDR") or _first_host(environment),
        # Jobs that share a machine must not meet; every rank of a job has to come to the same number.
        "MASTER_PORT": environment.get("MASTER_PORT") or str(20000 + _number(environment, "SLURM_JOB_ID") % 10000),
    }
    return _checked(
        JobRank(
            launcher="Slurm",
            rank=rank,
            world_size=num_tasks,
            local_rank=local_rank,
            num_local=None,
            node=node,
            variables=variables,
        )
    )


def _first_host(environment: Mapping[str, str]) -> str:
    """The first host of a list such as ``rack1-node[03-05,09],login``."""
    name = next((key for key in ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST") if environment.get(key)), None)
    hosts = environment[name] if name else ""
    found = re.match(r"(?P<prefix>[^\[,]+)(?:\[(?P<number>\d+)[^\]]*\](?P<suffix>[^,\[]*))?", hosts)
    if found is None:
        raise CaptureError(
            f"Slurm's list of nodes ({name or 'SLURM_STEP_NODELIST'}) is {hosts!r}, so that the first is not known.",
            code="job_unclear",
            hint="Set MASTER_ADDR to the name of the node on which task 0 runs.",
        )
    return found["prefix"] + (found["number"] or "") + (found["suffix"] or "")


def _number(environment: Mapping[str, str], name: str) -> int:
    value = environment.get(name, "")
    if re.fullmatch(r"[0-9]{1,9}", value) is None:
        raise CaptureError(
            f"{name} is {value!r} in the environment; a rank of a job needs a number there.",
            code="job_unclear",
            hint=_START_HINT,
        )
    return int(value)


def _checked(job: JobRank) -> JobRank:
    if not job.rank < job.world_size:
        raise CaptureError(
            f"The environment says rank {job.rank} of {job.world_size} ({job.launcher}).",
            code="job_unclear",
            hint=_START_HINT,
        )
    return job
