"""`zerotrace capture --ablate`: one command, two captures, and what the difference is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.capture.test_captures import load_manifest
from zerotrace.analysis.ablation import PREFETCH_KEYS
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.capture.ablations import ABLATIONS
from zerotrace.capture.ds_settings import parse_setting
from zerotrace.cli.capture import capture
from zerotrace.errors import CaptureError
from zerotrace.model import Analysis

ROOT = Path(__file__).resolve().parents[2]
FEW = ["--device", "cpu", "--gpus", "2", "--sequence", "16", "--micro-batch", "1", "--warmup", "2", "--timed", "2",
       "--steps", "1", "--windows", "timed,detailed", "--timeout", "150"]  # fmt: skip


def invoke(*args: str) -> Result:
    return CliRunner().invoke(capture, args)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which one command has left both captures."""
    base = tmp_path_factory.mktemp("ablation")
    command = [sys.executable, "-m", "zerotrace", "capture", "--stage", "3", "--ablate", "prefetch", *FEW]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=base, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "traces/stage3\ntraces/stage3-no-prefetch\n"
    assert "What prefetch is worth, traces/stage3 against traces/stage3-no-prefetch:" in done.stderr
    assert "zerotrace compare traces/stage3 traces/stage3-no-prefetch" in done.stderr
    return base / "traces"


def analysed(folder: Path) -> Analysis:
    return analyze([folder], options=AnalyzeOptions(hta=False, jobs=1))[0]


@pytest.mark.capture
def test_the_second_capture_differs_in_the_keys_of_prefetch_alone(both: Path) -> None:
    configs = [load_manifest(both / name)["ds_config"] for name in ("stage3", "stage3-no-prefetch")]
    sections = [config.pop("zero_optimization") for config in configs]
    assert configs[0] == configs[1]
    assert sections[1] == sections[0] | dict(PREFETCH_KEYS)


@pytest.mark.capture
def test_without_prefetch_every_gather_is_a_demand_and_no_step_is_cold(both: Path) -> None:
    reports = [analysed(both / name).gathers for name in ("stage3", "stage3-no-prefetch")]
    assert reports[0] is not None and reports[1] is not None
    assert all(step.num_prefetch and not step.num_demand for step in reports[0].steps)
    assert all(step.num_demand and not step.num_prefetch for step in reports[1].steps)
    assert reports[1].cold_steps == ()


@pytest.mark.capture
def test_compare_tells_step_time_transfer_and_wait(both: Path) -> None:
    folders = [str(both / name) for name in ("stage3", "stage3-no-prefetch")]
    for folder in folders:
        analysed(Path(folder))
    command = [sys.executable, "-m", "zerotrace", "compare", *folders, "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    (ablation,) = json.loads(done.stdout)["ablations"]
    assert ablation["with_run"].endswith("stage3") and ablation["without_run"].endswith("stage3-no-prefetch")
    for figure in ("step", "exposed_transfer", "exposed_wait"):
        assert ablation[figure]["gain_ns"] == ablation[figure]["without_ns"] - ablation[figure]["with_ns"]


def test_the_settings_of_the_second_run_are_what_the_comparison_looks_for() -> None:
    settings = dict(parse_setting(text) for text in ABLATIONS["prefetch"].settings)
    assert settings == {f"zero_optimization.{key}": value for key, value in PREFETCH_KEYS.items()}


@pytest.mark.parametrize(
    "args",
    [
        "--stage 2 --gpus 2",
        "--stage 3 --gpus 2 --nnodes 2 --node-rank 0 --rdzv-endpoint a:1",
        "--stage 3 --hostfile hosts",
    ],
)
def test_an_ablation_needs_its_stage_and_one_machine(args: str) -> None:
    result = invoke(*args.split(), "--ablate", "prefetch")
    assert result.exit_code == 2
    assert "--ablate prefetch" in result.output


def test_both_folders_must_be_free_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zerotrace.capture.launch.run_capture", lambda *_, **__: pytest.fail("something was started"))
    (tmp_path / "a-no-prefetch").mkdir()
    args = ["--stage", "3", "--ablate", "prefetch", *FEW]
    taken = invoke(*args, "--out", str(tmp_path / "a"))
    assert isinstance(taken.exception, CaptureError) and taken.exception.code == "out_exists"
    off = invoke(*args, "--out", str(tmp_path / "b"), "--set", "zero_optimization.stage3_prefetch_bucket_size=0")
    assert isinstance(off.exception, CaptureError) and off.exception.code == "nothing_to_ablate"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a-no-prefetch"]


def test_a_first_run_that_fails_leaves_no_reservation_of_the_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise CaptureError("It failed.", code="rank_died", hint="Look.")

    monkeypatch.setattr("zerotrace.capture.launch.run_capture", fail)
    result = invoke("--stage", "3", "--ablate", "prefetch", *FEW, "--out", str(tmp_path / "a"))
    assert isinstance(result.exception, CaptureError) and result.exception.code == "rank_died"
    assert list(tmp_path.iterdir()) == []
