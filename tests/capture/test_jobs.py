"""A rank of a torchrun or Slurm job: no launcher watches it, so that it looks after itself."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.capture.conftest import LOOP
from zerotrace.capture.handoff import SESSION_VARIABLE, Deadline, EngineFacts, OwnOrders, RunFacts, SessionPlan

pytestmark = pytest.mark.capture

ROOT = Path(__file__).resolve().parents[2]
JOB = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "DS_ACCELERATOR": "cpu"}


def environment(port: int, **changes: str) -> dict[str, str]:
    return {**os.environ, **JOB, "MASTER_PORT": str(port), "PYTHONPATH": str(ROOT), **changes}


def test_a_rank_of_a_job_whose_peers_never_come_ends_itself_in_time(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch\ntorch.distributed.init_process_group('gloo')\n")
    command = [sys.executable, "-m", "zerotrace", "capture", "--stage", "3", "--device", "cpu", "--timeout", "25",
               "--out", str(tmp_path / "out"), "--script", str(script)]  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(
        command, env=environment(29781), capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 124, done.stderr
    assert time.monotonic() - began < 90
    assert "Rank 0 was not done after 25 s (--timeout)" in done.stderr
    assert "torch/distributed/rendezvous.py" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"train.py"}


def test_a_rank_of_a_job_that_hangs_in_a_step_keeps_what_there_is(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(LOOP).format(fault="pass").replace("rank == 1", "time.sleep(300)"))
    facts = RunFacts(
        command=("zerotrace",),
        program="nano",
        engine=EngineFacts(name="single", stage=None, micro_batch=1, ds_config=None),
    )
    own = OwnOrders(facts=facts, out=str(tmp_path / "out"), deadline=Deadline(limit_s=30, at_s=time.monotonic() + 30))
    plan = SessionPlan(num_warmup=1, num_timed=4, num_profiled=0, own=own)
    done = subprocess.run(
        [sys.executable, "-m", "zerotrace.capture.rank", str(program)],
        env=environment(29782, WORLD_SIZE="1", **{SESSION_VARIABLE: plan.to_json()}),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 124, done.stderr
    assert f"The capture is not complete; what was written is in {tmp_path / 'out.failed'}." in done.stderr
    assert "at program.py:" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"program.py", "out.failed"}


def test_a_plan_comes_through_the_environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    own = OwnOrders(facts=RunFacts(command=("a",), program="p"), deadline=Deadline(limit_s=5, at_s=1.5))
    plan = SessionPlan(num_warmup=1, num_timed=1, num_profiled=1, own=own, host=3)
    for given in (plan, replace(plan, own=replace(own, deadline=None))):
        monkeypatch.setenv(SESSION_VARIABLE, given.to_json())
        assert SessionPlan.from_environment() == given
