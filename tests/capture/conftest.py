from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.capture.kin import KinCaptures
from zerotrace.capture.ds_config import default_ds_config
from zerotrace.capture.handoff import SESSION_VARIABLE
from zerotrace.capture.plan import CapturePlan

#: A training loop without DeepSpeed's work in it: {fault} is run by rank 1 at the start of step 3.
LOOP = """
    import os, signal, subprocess, sys, time
    import torch
    from zerotrace.capture import init_process_group, session

    class Engine:
        module = torch.nn.Linear(2, 2)

    init_process_group()
    rank = torch.distributed.get_rank()
    with session(Engine()) as capture:
        for step in range(20):
            if step == 3 and rank == 1:
                {fault}
            total = torch.ones(4)
            torch.distributed.all_reduce(total)
            capture.step(total.sum())
"""


@pytest.fixture(scope="session")
def kin(tmp_path_factory: pytest.TempPathFactory) -> KinCaptures:
    """Captures of torch's engines, for all tests that look at them."""
    return KinCaptures(tmp_path_factory.mktemp("kin"))


@pytest.fixture
def make_plan() -> Callable[..., CapturePlan]:
    """A small plan; any field can be given."""

    def make(**changes: Any) -> CapturePlan:
        fields: dict[str, Any] = {
            "stage": 0,
            "num_ranks": 2,
            "device": "cpu",
            "model": "nano",
            "micro_batch": 4,
            "sequence": 64,
            "seed": 1337,
            "num_warmup": 1,
            "num_timed": 4,
            "num_profiled": 2,
            "timeout_s": 60.0,
            "ds_config": default_ds_config(0, 4),
        }
        return CapturePlan(**(fields | changes))

    return make


@pytest.fixture
def write_program(tmp_path: Path) -> Callable[[str], Path]:
    """Write :data:`LOOP` with a fault as a training program."""

    def write(fault: str) -> Path:
        program = tmp_path / "program.py"
        program.write_text(textwrap.dedent(LOOP).format(fault=fault), encoding="utf-8")
        return program

    return write


def processes_of(folder: Path) -> list[psutil.Process]:
    """Living processes of any capture whose session file lies under the folder."""
    found = []
    for process in psutil.process_iter():
        try:
            mark = process.environ().get(SESSION_VARIABLE, "")
            if mark.startswith(str(folder) + os.sep) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.fixture
def no_orphans(tmp_path: Path) -> Iterator[None]:
    """Fails a test that leaves a process of its captures running."""
    yield
    left = processes_of(tmp_path)
    for process in left:
        process.kill()
    assert not left
