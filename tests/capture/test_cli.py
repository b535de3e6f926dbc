"""The command line of `zerotrace capture`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from zerotrace.cli.capture import capture
from zerotrace.errors import CaptureError

LONG = "x" * 300


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
        "--stage 3 --gpus 2 --device cpu --windows light",
        "--stage 3 --gpus 2 --device cpu --windows timed --timed 0",
        "--stage 3 --gpus 2 --seed 99999999999999999999999999",
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
        (f"--device cpu --out {LONG}", "out_unwritable"),
        (f"--device cpu --out {LONG}/out", "out_unwritable"),
        ("--device cpu --out new/..", "out_unwritable"),
        (f"--device cpu --script {LONG}", "script_missing"),
        (f"--device cpu --set gradient_clipping={10**30}", "ds_config_value"),
        ("--device cpu --model gpt7", "model_unknown"),
        ("--device cpu --sequence 4096", "sequence_too_long"),
        ("--device cpu --ds-config missing.json", "ds_config_unreadable"),
        ("--device cpu --ds-config broken.json", "ds_config_json_invalid"),
        ("--device cpu --ds-config stage2.json", "ds_config_conflict"),
        ("--device cpu --ds-config comms.json", "ds_config_refused"),
        ("--device cpu --ds-config quoted.json", "ds_config_value"),
        ("--device cpu --out a\x07b", "out_unwritable"),
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
    (tmp_path / "quoted.json").write_text('{"zero_optimization": {"stage": "3"}}')
    (tmp_path / "comms.json").write_text('{"comms_logger": {"enabled": true}}')
    before = sorted(path.name for path in tmp_path.iterdir())
    result = invoke("--stage", "3", "--gpus", "2", *args.split())
    assert isinstance(result.exception, CaptureError)
    assert result.exception.code == code
    assert result.exception.exit_code == 1
    assert result.exception.hint
    assert result.stdout == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"LOCAL_WORLD_SIZE": "abc"}, "LOCAL_WORLD_SIZE is 'abc'"),
        ({"LOCAL_RANK": "²"}, "LOCAL_RANK is '²'"),
        ({"MASTER_ADDR": ""}, "MASTER_ADDR is not"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT is 'x'"),
    ],
)
def test_a_job_that_contradicts_itself_is_one_error(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, str], said: str
) -> None:
    job = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    for name, value in (job | changes).items():
        monkeypatch.setenv(name, value)
    error = invoke("--stage", "3", "--device", "cpu").exception
    assert isinstance(error, CaptureError)
    assert error.code == "job_unclear"
    assert said in str(error)


@pytest.mark.parametrize("options", ["--nnodes 2", "--node-rank 0", "--rdzv-endpoint a:5", "--hostfile h", "--json"])
def test_options_that_a_rank_of_a_job_cannot_heed_are_refused(monkeypatch: pytest.MonkeyPatch, options: str) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
    }.items():
        monkeypatch.setenv(name, value)
    refused = invoke("--stage", "3", "--device", "cpu", *options.split())
    assert refused.exit_code == 2
    assert f"Leave out {options.split()[0]}: this process is rank 0 of a torchrun job" in refused.stderr


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
