"""Ranks that die or hang, and a launcher that is told to stop: all ends in bounded time, and nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.capture.conftest import processes_of
from zerotrace.capture.folder import reserve_folder
from zerotrace.capture.launch import run_capture
from zerotrace.capture.plan import CapturePlan
from zerotrace.errors import CaptureError

pytestmark = [pytest.mark.capture, pytest.mark.usefixtures("no_orphans")]

Plans = Callable[..., CapturePlan]
Programs = Callable[[str], Path]


#: Step 3 of the loop, where the fault is, is the first one under the profiler.
TRACED = {"num_warmup": 1, "num_timed": 1, "num_profiled": 2}


def fail(plan: CapturePlan, program: Path, out: Path) -> CaptureError:
    with pytest.raises(CaptureError) as caught:
        run_capture(plan, reserve_folder(out, plan.default_name), program=program, program_args=())
    assert not out.exists()
    assert not list(out.parent.glob(f".{out.name}*"))
    return caught.value


@pytest.mark.parametrize(
    ("fault", "exit_code", "said"),
    [
        ("print('last words', file=sys.stderr, flush=True); os._exit(7)", 7, "last words"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "was ended by SIGKILL"),
        ("raise RuntimeError('it broke')", 1, "RuntimeError: it broke"),
    ],
    ids=["exit", "kill", "exception"],
)
def test_a_rank_that_dies_is_named_and_ends_the_run(
    make_plan: Plans, write_program: Programs, tmp_path: Path, fault: str, exit_code: int, said: str
) -> None:
    error = fail(make_plan(**TRACED), write_program(fault), tmp_path / "out")
    assert error.code == "rank_died"
    assert error.exit_code == exit_code
    assert str(error).startswith("Rank 1 ")
    assert "in step 3" in str(error)
    assert said in str(error)
    kept = tmp_path / "out.failed"
    assert str(kept) in str(error.hint)
    assert (kept / "ranks" / "rank_1.log").is_file()


def test_a_rank_that_hangs_is_named_with_every_rank_s_phase(
    make_plan: Plans, write_program: Programs, tmp_path: Path
) -> None:
    # The hung rank ignores SIGTERM and has a child in a session of its own.
    fault = (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "subprocess.Popen(['sleep', '300'], start_new_session=True); time.sleep(300)"
    )
    began = time.monotonic()
    error = fail(make_plan(**TRACED, timeout_s=40), write_program(fault), tmp_path / "out")
    assert time.monotonic() - began < 58
    assert (error.code, error.exit_code) == ("timeout", 124)
    assert "Late: rank 1" in str(error)
    assert "rank 0: in step 3 (detailed)" in str(error)
    assert "rank 1: in step 3 (detailed), at program.py:" in str(error)
    assert (tmp_path / "out.failed" / "ranks" / "rank_1.stack").is_file()


def test_a_program_that_never_starts_a_session_is_told_so(make_plan: Plans, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('done')\n", encoding="utf-8")
    error = fail(make_plan(num_ranks=1), program, tmp_path / "out")
    assert error.code == "no_session"
    assert "session(engine)" in str(error)


@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit(256)"])
def test_a_program_that_ends_well_but_early_is_told_where(
    make_plan: Plans, write_program: Programs, tmp_path: Path, end: str
) -> None:
    # A rank that ends cuts off a peer that is still in their last collective: they meet outside of one.
    meeting = tmp_path / "meeting"
    meeting.mkdir()
    met = f"""open('{meeting}/' + str(rank), 'w').close()
            while len(os.listdir('{meeting}')) < 2:
                time.sleep(0.01)
            """
    program = write_program(met + end)
    program.write_text(program.read_text().replace("rank == 1", "rank >= 0"))
    error = fail(make_plan(), program, tmp_path / "out")
    assert error.code == "too_few_steps"
    assert "too early: rank 0 in step 3 (timed); rank 1 in step 3 (timed)" in str(error)
    assert "need 8 steps" in str(error)


def test_a_loop_that_is_too_short_is_told_how_much_is_missing(
    make_plan: Plans, write_program: Programs, tmp_path: Path
) -> None:
    error = fail(make_plan(num_ranks=1, num_timed=40), write_program("pass"), tmp_path / "out")
    assert "the training loop ended after 20 steps" in str(error)
    assert "needs 24 more" in str(error)


@pytest.mark.parametrize(
    ("sig", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_no_rank_outlives_the_launcher(
    write_program: Programs, tmp_path: Path, sig: signal.Signals, exit_code: int
) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(
        textwrap.dedent("""
            import sys
            from pathlib import Path
            from zerotrace.capture.ds_config import default_ds_config
            from zerotrace.capture.folder import reserve_folder
            from zerotrace.capture.launch import run_capture
            from zerotrace.capture.plan import CapturePlan
            from zerotrace.errors import CaptureError

            plan = CapturePlan(
                stage=0, num_ranks=2, device="cpu", model="nano", micro_batch=4, sequence=64, seed=1, num_warmup=1,
                num_timed=4, num_profiled=2, timeout_s=60, ds_config=default_ds_config(0, 4),
            )
            try:
                folder = reserve_folder(Path(sys.argv[2]), "stage0")
                run_capture(plan, folder, program=Path(sys.argv[1]), program_args=())
            except CaptureError as error:
                sys.exit(error.exit_code)
        """),
        encoding="utf-8",
    )
    program = write_program("time.sleep(300)")
    out = tmp_path / "out"
    launcher = subprocess.Popen([sys.executable, str(driver), str(program), str(out)])
    try:
        progress = tmp_path / ".out.partial" / "ranks" / "rank_1.progress"
        wait_until(lambda: progress.is_file() and " timed 3 " in progress.read_text(), 30)
        os.kill(launcher.pid, sig)
        assert launcher.wait(timeout=20) == exit_code
    finally:
        launcher.kill()
    wait_until(lambda: not processes_of(tmp_path), 10)
    assert not out.exists()
    assert (tmp_path / "out.failed").is_dir() == (sig is not signal.SIGKILL)


def test_two_captures_at_once_do_not_meet(make_plan: Plans, write_program: Programs, tmp_path: Path) -> None:
    program = write_program("pass")
    errors: list[CaptureError] = []

    def capture(name: str) -> None:
        try:
            run_capture(make_plan(), reserve_folder(tmp_path / name, "stage0"), program=program, program_args=())
        except CaptureError as error:
            errors.append(error)

    threads = [threading.Thread(target=capture, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert (tmp_path / "one" / "manifest.json").is_file()
    assert (tmp_path / "two" / "manifest.json").is_file()


def wait_until(condition: Callable[[], bool], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it has not happened in time"
        time.sleep(0.1)
