"""Plans, models, folders, devices, progress: what is decided before a rank starts. Nothing is launched."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from zerotrace.capture import machine
from zerotrace.capture.folder import reserve_folder
from zerotrace.capture.models import MODELS, find_model
from zerotrace.capture.plan import CapturePlan
from zerotrace.capture.progress import ProgressWriter, read_progress
from zerotrace.errors import CaptureError

Plans = Callable[..., CapturePlan]


def test_gpt2_large_is_the_study_s_model() -> None:
    model = find_model("gpt2-large")
    assert (model.num_layers, model.num_heads, model.hidden_size, model.vocab_size) == (36, 20, 1280, 50304)
    assert model.num_params == 774_090_240


@pytest.mark.parametrize("name", ["nano", "micro"])
def test_the_formula_counts_what_the_runner_builds(name: str) -> None:
    code = f"""
import runpy
from zerotrace.capture.machine import find_runner
from zerotrace.capture.models import MODELS
model = runpy.run_path(str(find_runner("decoder")))["GPT2"](MODELS["{name}"])
print("counted", sum(p.numel() for p in model.parameters()))
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert f"counted {MODELS[name].num_params}\n" in result.stdout


def test_nano_has_weights_that_stage_3_partitions() -> None:
    hidden = MODELS["nano"].hidden_size
    assert 3 * hidden * hidden > 100_000


def test_an_unknown_model_is_refused_with_the_names_there_are(make_plan: Plans) -> None:
    with pytest.raises(CaptureError) as caught:
        make_plan(model="gpt3")
    assert caught.value.code == "model_unknown"
    assert "gpt2-large" in str(caught.value.hint)


def test_a_sequence_longer_than_the_positions_is_refused(make_plan: Plans) -> None:
    with pytest.raises(CaptureError, match="257 tokens, but nano has 256 positions"):
        make_plan(sequence=257)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_ranks", 0),
        ("micro_batch", 0),
        ("num_profiled", -1),
        ("num_timed", -1),
        ("stage", 4),
        ("device", "tpu"),
        ("timeout_s", 0),
    ],
)
def test_a_plan_without_sense_is_no_plan(make_plan: Plans, field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        make_plan(**{field: value})


def test_without_out_the_next_free_name_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "traces" / "stage3").mkdir(parents=True)
    # The second call comes while the first capture is still running: its folder has no final name yet.
    names = [reserve_folder(None, name).path for name in ("stage3", "stage3", "stage2")]
    assert names == [Path("traces/stage3-2"), Path("traces/stage3-3"), Path("traces/stage2")]


def test_an_existing_folder_is_refused_even_if_empty(tmp_path: Path) -> None:
    with pytest.raises(CaptureError) as caught:
        reserve_folder(tmp_path, "stage3")
    assert caught.value.code == "out_exists"


def test_a_folder_that_another_capture_fills_is_refused(tmp_path: Path) -> None:
    reserve_folder(tmp_path / "out", "stage3")
    with pytest.raises(CaptureError, match="Another capture is writing") as caught:
        reserve_folder(tmp_path / "out", "stage3")
    assert caught.value.code == "out_taken"


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file" / "out", tmp_path / "file" / "deeper" / "out"):
        with pytest.raises(CaptureError) as caught:
            reserve_folder(out, "stage3")
        assert caught.value.code == "out_unwritable"


def test_a_folder_appears_under_its_name_only_when_it_is_published(tmp_path: Path) -> None:
    folder = reserve_folder(tmp_path / "out", "stage3")
    assert not folder.path.exists()
    (folder.partial / "file").write_text("content")
    folder.publish()
    assert (tmp_path / "out" / "file").read_text() == "content"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_name_that_was_taken_in_the_meantime_is_left_alone(tmp_path: Path) -> None:
    folder = reserve_folder(tmp_path / "out", "stage3")
    (tmp_path / "out").mkdir()
    with pytest.raises(CaptureError, match=r"out has appeared") as caught:
        folder.publish()
    assert str(tmp_path / "out.failed") in str(caught.value.hint)
    assert list((tmp_path / "out").iterdir()) == []


def test_failed_captures_are_kept_side_by_side(tmp_path: Path) -> None:
    kept = [reserve_folder(tmp_path / "out", "stage3").keep_failed().name for _ in range(3)]
    assert kept == ["out.failed", "out.failed-2", "out.failed-3"]


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "deepspeed" else object())
    with pytest.raises(CaptureError, match="needs deepspeed,") as caught:
        machine.require_packages(("torch", "deepspeed"))
    assert caught.value.hint == "pip install 'zerotrace[capture]'"


def test_auto_takes_the_cpu_where_there_is_no_cuda_device(monkeypatch: pytest.MonkeyPatch) -> None:
    show_devices(monkeypatch, 0)
    assert machine.choose_device("auto", 2) == "cpu"
    with pytest.raises(CaptureError, match="sees no CUDA device") as caught:
        machine.choose_device("cuda", 1)
    assert caught.value.code == "no_cuda_device"


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_every_rank_needs_a_cuda_device_of_its_own(monkeypatch: pytest.MonkeyPatch, device: str) -> None:
    show_devices(monkeypatch, 2)
    assert machine.choose_device(device, 2) == "cuda"
    with pytest.raises(CaptureError, match="3 ranks, but torch sees 2 CUDA devices") as caught:
        machine.choose_device(device, 3)
    assert caught.value.code == "too_few_devices"
    assert machine.choose_device("cpu", 3) == "cpu"


def show_devices(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: number > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: number)


def test_only_variables_that_change_the_measurement_are_recorded() -> None:
    environment = {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_TOPO_FILE": "/etc/topo.xml",
        "NCCL_COMM_ID": "node7:1234",
        "OMP_NUM_THREADS": "1",
        "HOME": "/home/me",
        "USER": "me",
    }
    assert machine.recorded_environment(environment) == {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_TOPO_FILE": "(a path)",
        "OMP_NUM_THREADS": "1",
    }


def test_progress_of_a_rank_is_what_it_noted_last(tmp_path: Path) -> None:
    writer = ProgressWriter(tmp_path, 1)
    writer.note("detailed", 1_000_000)
    writer.note("timed", 7)
    silent, noted = read_progress(tmp_path, 2)
    writer.close()
    assert (silent.phase, silent.pid) == ("launched", None)
    assert (noted.phase, noted.step, noted.pid) == ("timed", 7, os.getpid())
    assert silent.position < noted.position


def test_the_launcher_imports_nothing_heavy_before_the_cheap_checks() -> None:
    code = (
        "import sys, zerotrace.cli.capture, zerotrace.capture.plan, zerotrace.capture.ds_config, "
        "zerotrace.capture.folder, zerotrace.capture.machine; "
        "print(sorted({'torch', 'deepspeed', 'pandas', 'pyarrow', 'plotly', 'hta'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_what_runs_inside_a_rank_imports_only_what_it_may() -> None:
    code = (
        "import sys, zerotrace.capture.rank, zerotrace.capture.loop, zerotrace.capture.device; "
        "print(sorted({'pandas', 'pyarrow', 'plotly', 'hta', 'click', 'rich'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
