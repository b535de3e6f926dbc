"""The command line that starts the ranks of one machine under torchrun."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from zerotrace.capture.handoff import write_json
from zerotrace.capture.machine import find_runner
from zerotrace.capture.plan import CapturePlan


def torchrun_command(plan: CapturePlan, work: Path, program: Sequence[str]) -> list[str]:
    """The command of a launcher's child.

    Args:
        plan: what to do.
        work: folder for what only the running capture needs.
        program: training program and its arguments.
    """
    return [
        sys.executable,
        "-m",
        "zerotrace.capture.agent",
        *_meeting(plan),
        "--nproc-per-node",
        str(plan.num_ranks),
        # It makes this folder in any case, by default in the temporary folder, and leaves it there.
        "--log-dir",
        str(work / "torchrun"),
        "-m",
        "zerotrace.capture.rank",
        *program,
    ]


def program_command(plan: CapturePlan, work: Path) -> list[str]:
    """The training program of a plan and its arguments."""
    if plan.script is not None:
        return [str(plan.script.path), *plan.script.args]
    ds_config = work / "ds_config.json"
    if plan.ds_config is not None:
        write_json(ds_config, plan.ds_config)
    return runner_command(plan, str(ds_config.resolve()))


def runner_command(plan: CapturePlan, ds_config: str) -> list[str]:
    """The program of ``runners/`` that trains with a plan's engine, and its arguments.

    Args:
        plan: what to do.
        ds_config: DeepSpeed's configuration as the program takes it, where the plan has one.
    """
    options = {
        "--model": plan.model,
        "--micro-batch": plan.micro_batch,
        "--sequence": plan.sequence,
        "--steps": plan.num_steps,
        "--seed": plan.seed,
    }
    if plan.ds_config is not None:
        # The micro-batch is in there.
        options = {**options, "--ds-config": ds_config}
    kind = plan.engine_kind
    assert kind.runner is not None  # otherwise the plan has a script
    settings = {setting.name: setting for setting in kind.settings}
    told = [part for name, value in plan.engine_settings.items() for part in settings[name].arguments(value)]
    return [str(find_runner(kind.runner)), *(str(part) for option in options.items() for part in option), *told]


def _meeting(plan: CapturePlan) -> list[str]:
    """How torchrun's agents find each other."""
    nodes = plan.nodes
    if nodes.endpoint is None:
        # A rendezvous of its own on a free port: captures that run at the same time do not meet.
        return ["--standalone", "--local-addr", "127.0.0.1"]
    host, _, port = nodes.endpoint.rpartition(":")
    return [
        "--nnodes",
        str(nodes.num_nodes),
        "--node-rank",
        str(nodes.node_rank),
        "--master-addr",
        host.strip("[]"),
        "--master-port",
        port,
    ]
