"""The command line of `zerotrace capture`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from zerotrace.cli.capture import capture
from zerotrace.errors import CaptureError


def invoke(*args: str) -> Result:
    return CliRunner().invoke(capture, args)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_has_an_example(flag: str) -> None:
    result = invoke(flag)
    assert result.exit_code == 0
    assert "zerotrace capture --stage 3 --gpus 8" in result.output


@pytest.mark.parametrize(
    "args",
    [
        "--gpus 2",
        "--stage 4 --gpus 2",
        "--stage 3 --gpus 0",
        "--stage 3 --gpus 2 --micro-batch 0",
        "--stage 3 --gpus 2 --steps 0",
        "--stage 3 --gpus 2 --timeout 0",
        "--stage 3 --gpus two",
        "--stage 3 --gpus 2 --device tpu",
    ],
)
def test_a_mistake_in_the_options_is_a_usage_error(args: str) -> None:
    assert invoke(*args.split()).exit_code == 2


@pytest.mark.parametrize(
    ("args", "code"),
    [
        ("--device cuda", "no_cuda_device"),
        ("--device cpu --set zero_optimization.reduce_bucket_siz=5e7", "ds_config_key_unknown"),
        ("--device cpu --set nonsense", "setting_invalid"),
        ("--device cpu --out taken", "out_exists"),
        ("--device cpu --model gpt7", "model_unknown"),
        ("--device cpu --sequence 4096", "sequence_too_long"),
        ("--device cpu --ds-config missing.json", "ds_config_unreadable"),
        ("--device cpu --ds-config broken.json", "ds_config_json_invalid"),
        ("--device cpu --ds-config stage2.json", "ds_config_conflict"),
        ("--device cpu --ds-config comms.json", "ds_config_refused"),
    ],
)
def test_what_cannot_work_is_one_error_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: str, code: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("zerotrace.capture.launch.run_capture", lambda *_, **__: pytest.fail("something was started"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "stage2.json").write_text('{"zero_optimization": {"stage": 2}}')
    (tmp_path / "comms.json").write_text('{"comms_logger": {"enabled": true}}')
    before = sorted(path.name for path in tmp_path.iterdir())
    result = invoke("--stage", "3", "--gpus", "2", *args.split())
    assert isinstance(result.exception, CaptureError)
    assert result.exception.code == code
    assert result.exception.exit_code == 1
    assert result.exception.hint
    assert result.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.capture
def test_a_capture_names_its_folder_first_and_last_and_the_next_command() -> None:
    options = "--stage 1 --gpus 1 --device cpu --warmup 1 --timed 2 --steps 1 --set gradient_accumulation_steps=2"
    args = options.split()
    result = invoke(*args)
    assert result.exception is None
    assert result.stdout == "traces/stage1\n"
    lines = result.stderr.splitlines()
    assert lines[0].endswith("into traces/stage1")
    assert lines[-1] == "zerotrace analyze traces/stage1"
    manifest = json.loads(Path("traces/stage1/manifest.json").read_text())
    assert manifest["command"] == ["zerotrace", "capture", *args]
    assert manifest["ds_config"]["gradient_accumulation_steps"] == 2

    again = invoke(*args, "--json")
    assert again.exception is None
    summary = json.loads(again.stdout)
    assert summary["folder"] == "traces/stage1-2"
    assert summary["ranks"][0]["median_step_ns"].keys() == {"timed", "unlabelled", "labelled", "detailed", "memory"}
    assert again.stderr.splitlines()[-1] == "zerotrace analyze traces/stage1-2"
