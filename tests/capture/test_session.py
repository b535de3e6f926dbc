"""A session that cannot measure says so when it begins; what it failed of first is what the run ends with."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from zerotrace.capture import session
from zerotrace.capture.folder import reserve_folder
from zerotrace.capture.launch import run_capture
from zerotrace.capture.plan import CapturePlan
from zerotrace.errors import CaptureError

Plans = Callable[..., CapturePlan]

LOOP = """
    import contextlib
    import torch
    from torch.profiler import ProfilerActivity, profile, schedule
    from zerotrace.capture import init_process_group, session

    class Engine:
        module = torch.nn.Linear(2, 2)

    def loop(capture, steps, after=lambda: None):
        for _ in range(steps):
            torch.ones(4).sum()
            capture.step()
            after()

    init_process_group()
    cpu = [ProfilerActivity.CPU]
"""
PROGRAMS = {
    "all the time": """
        with profile(activities=cpu), session(Engine()) as capture:
            loop(capture, 20)
    """,
    "by a schedule": """
        with session(Engine()) as capture, profile(activities=cpu, schedule=schedule(wait=3, warmup=1, active=1)) as p:
            loop(capture, 20, p.step)
    """,
    "in our own window": """
        def start():
            with contextlib.suppress(Exception):
                if capture.num_steps == 6:
                    profile(activities=cpu).start()
        with session(Engine()) as capture:
            with contextlib.suppress(Exception):
                loop(capture, 20, start)
    """,
    "within the warm-up": """
        with session(Engine()) as capture:
            with profile(activities=cpu):
                loop(capture, 1)
            loop(capture, 19)
    """,
}


class Engine:
    module = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"windows": ("detaild",)}, "'detaild' is none of timed, light, detailed, memory"),
        ({"windows": ()}, "windows is empty"),
        ({"timed": -3}, "timed is -3"),
        ({"warmup": -1}, "warmup is -1"),
        ({"warmup": 1.5}, "warmup is 1.5"),
        ({"steps": 0}, "steps is 0"),
        ({"timed": 0, "windows": ("timed",)}, "expected a window that measures"),
    ],
)
def test_numbers_and_windows_without_sense_are_refused(tmp_path: Path, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        session(Engine(), out=tmp_path / "out", **wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("engine", [None, (Engine(), None), Engine()])
def test_what_is_no_engine_is_refused_before_there_is_a_folder(tmp_path: Path, engine: Any) -> None:
    with pytest.raises(CaptureError) as caught:
        session(engine, out=tmp_path / "out").__enter__()
    assert caught.value.code == "engine_unknown"
    assert not list(tmp_path.iterdir())


def capture(make_plan: Plans, tmp_path: Path, body: str) -> Path | None:
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(LOOP) + textwrap.dedent(body), encoding="utf-8")
    plan = make_plan(num_ranks=1, num_warmup=2, num_timed=2, num_profiled=2)
    return run_capture(plan, reserve_folder(tmp_path / "out", "stage0"), program=program).folder


@pytest.mark.capture
@pytest.mark.usefixtures("no_orphans")
@pytest.mark.parametrize(
    ("when", "where"),
    [
        ("all the time", "in step 2 (timed)"),
        ("by a schedule", "in step 3 (timed)"),
        ("in our own window", "in step 6 (detailed)"),
    ],
)
def test_a_profiler_of_the_program_s_own_is_refused(make_plan: Plans, tmp_path: Path, when: str, where: str) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(make_plan, tmp_path, PROGRAMS[when])
    assert caught.value.code == "own_profiler", caught.value
    assert where in str(caught.value)
    assert "Switch it off" in str(caught.value.hint)


@pytest.mark.capture
@pytest.mark.usefixtures("no_orphans")
def test_a_profiler_that_ends_within_the_warm_up_disturbs_nothing(make_plan: Plans, tmp_path: Path) -> None:
    assert capture(make_plan, tmp_path, PROGRAMS["within the warm-up"]) == tmp_path / "out"
