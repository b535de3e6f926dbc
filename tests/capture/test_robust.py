"""What may go wrong while traces are recorded and written: it ends in time, says what happened, keeps what there is."""

from __future__ import annotations

import gzip
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.capture.conftest import processes_of
from tests.capture.test_failures import wait_until
from zerotrace.capture.folder import reserve_folder
from zerotrace.capture.launch import run_capture
from zerotrace.capture.plan import CapturePlan
from zerotrace.errors import CaptureError

pytestmark = [pytest.mark.capture, pytest.mark.usefixtures("no_orphans")]

Plans = Callable[..., CapturePlan]
Programs = Callable[[str], Path]

ROOT = Path(__file__).resolve().parents[2]
#: Step 3 of the loop, where the fault is, is the first one under the profiler.
TRACED = {"num_warmup": 1, "num_timed": 1, "num_profiled": 2}


def fail(plan: CapturePlan, program: Path, out: Path) -> CaptureError:
    with pytest.raises(CaptureError) as caught:
        run_capture(plan, reserve_folder(out, plan.default_name), program=program)
    assert not out.exists()
    assert not list(out.parent.glob(f".{out.name}*"))
    return caught.value


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for the logs of a run, and not for its traces."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_is_named_and_leaves_no_half_capture_under_its_name(
    make_plan: Plans, write_program: Programs, small_disk: Path
) -> None:
    began = time.monotonic()
    program = write_program("[torch.ones(1) for _ in range(20_000)]")
    error = fail(make_plan(**TRACED), program, small_disk / "out")
    assert time.monotonic() - began < 40
    assert error.code == "disk_full", error
    assert str(error).startswith("Rank 1 could not write rank_1.pt.trace.json")
    assert "No space left on device" in str(error)
    assert "out.failed" in str(error.hint)
    assert (small_disk / "out.failed" / "ranks").is_dir()
    # What is there is whole: the trace of the rank that had room, if it was done by then.
    kept = [path for path in (small_disk / "out.failed").iterdir() if path.is_file()]
    for path in kept:
        assert path.name == "rank_0.pt.trace.json.gz"
        with gzip.open(path) as file:
            assert file.read().rstrip().endswith(b"}")


CATCHES_ALL = """
import deepspeed, torch

model = torch.nn.Linear(8, 8)
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "bf16": {"enabled": True}}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)
for _ in range(12):
    try:
        [torch.ones(1) for _ in range(20_000)]
        engine.backward(engine(torch.randn(2, 8, dtype=torch.bfloat16)).float().pow(2).mean())
        engine.step()
    except Exception:
        pass
"""


def test_what_the_capture_failed_of_is_said_though_the_program_catches_it(small_disk: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(CATCHES_ALL)
    command = [sys.executable, "-m", "zerotrace", "capture", "--stage", "1", "--gpus", "1", "--device", "cpu",
               "--warmup", "1", "--timed", "1", "--steps", "1", "--out", str(small_disk / "out"),
               "--script", str(script)]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "Rank 0 could not write rank_0.pt.trace.json" in done.stderr, done.stderr
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize(("key", "exit_code"), [(signal.SIGINT, 130), (signal.SIGQUIT, 131)])
def test_a_key_in_the_terminal_ends_all_ranks_and_keeps_the_folder(
    write_program: Programs, tmp_path: Path, key: signal.Signals, exit_code: int
) -> None:
    program = write_program("time.sleep(300)")
    script = tmp_path / "train.py"
    # With --script nothing is counted before deepspeed.initialize: this one hangs before that.
    script.write_text(
        program.read_text().replace("with session(Engine()) as capture:", "if True:\n    time.sleep(300)")
    )
    command = [sys.executable, "-m", "zerotrace", "capture", "--stage", "0", "--gpus", "2", "--device", "cpu",
               "--out", str(tmp_path / "out"), "--script", str(script)]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # A process group of its own stands for the terminal's foreground job: Ctrl-C goes to all of it.
    running = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        progress = tmp_path / ".out.partial" / "ranks" / "rank_1.progress"
        wait_until(lambda: progress.is_file() and " starting " in progress.read_text(), 30)
        os.killpg(running.pid, key)
        said = running.communicate(timeout=20)[1]
    finally:
        running.kill()
    assert running.returncode == exit_code
    assert f"The capture was interrupted ({key.name}); all ranks have been ended." in said
    assert f"What was written is in {tmp_path / 'out.failed'}." in said
    assert not processes_of(tmp_path)
    assert not (tmp_path / "out").exists()
