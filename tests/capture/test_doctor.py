"""`zerotrace doctor`: what each finding means for a capture."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from zerotrace.capture import checks, doctor
from zerotrace.capture.checks import Answer, Check, Health
from zerotrace.cli import main

TORCH = {"version": "2.13.0", "cuda": "13.0", "num_devices": 2, "kineto": True, "gloo": True, "nccl": "2.28.9"}
DEVICE = {"name": "NVIDIA H200", "free": 139 << 30, "total": 140 << 30}


@pytest.mark.capture
def test_this_machine_can_capture_on_the_cpu_and_says_so_in_time(tmp_path: Path) -> None:
    began = time.monotonic()
    done = CliRunner().invoke(main, ["doctor", "--json", "--out", str(tmp_path)])
    assert time.monotonic() - began < 40
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert "cpu" in found["devices"]
    health = {check["name"]: check["health"] for check in found["checks"]}
    assert (health["torch"], health["gloo"]) == ("ok", "ok")
    assert all(check["means"] for check in found["checks"])
    assert all(check["hint"] for check in found["checks"] if check["health"] != "ok")


def answers(monkeypatch: pytest.MonkeyPatch, **changes: Answer) -> doctor.Diagnosis:
    """The diagnosis of a machine with two GPUs, on which some probes answer otherwise."""
    reduced = Answer(found={"sum": 3.0, "expected": 3})
    all_answers = {
        "torch": Answer(found=TORCH),
        "deepspeed": Answer(found={"version": "0.19.8", "missing": []}),
        "gloo": reduced,
        "nccl": reduced,
        "cupti": Answer(found={"num_kernels": 3, "devices": [DEVICE, DEVICE]}),
        **changes,
    }
    monkeypatch.setattr(doctor, "run_probes", lambda probes, *_: {name: all_answers[name] for name in probes})
    return doctor.examine(Path("traces"))


def check_named(diagnosis: doctor.Diagnosis, name: str) -> Check:
    return next(check for check in diagnosis.checks if check.name == name)


def test_a_machine_with_all_there_is_captures_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = answers(monkeypatch)
    assert (diagnosis.devices, diagnosis.engines) == (("cuda", "cpu"), ("deepspeed", "ddp", "zero1", "fsdp2", "single"))


def test_without_deepspeed_the_baseline_can_still_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = answers(monkeypatch, deepspeed=Answer(failure="ModuleNotFoundError: No module named 'deepspeed'"))
    assert (diagnosis.devices, diagnosis.engines) == (("cuda", "cpu"), ("ddp", "zero1", "fsdp2", "single"))
    monkeypatch.setattr(doctor, "examine", lambda _: diagnosis)
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 1
    assert "no ZeRO stage can be captured" in done.stdout
    assert done.stderr.splitlines() == [
        "Only --engine ddp or zero1 or fsdp2 or single is possible on: cuda, cpu",
        "Next:",
        "zerotrace capture --engine single",
    ]


def test_cupti_in_use_by_another_leaves_only_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = answers(monkeypatch, cupti=Answer(found={"num_kernels": 0, "devices": [DEVICE]}))
    check = check_named(diagnosis, "CUPTI")
    assert check.health is Health.ERROR
    assert "Nsight" in str(check.hint)
    assert diagnosis.devices == ("cpu",)


def test_nccl_that_hangs_leaves_only_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    diagnosis = answers(monkeypatch, nccl=Answer(failure="no answer within 40 s"))
    assert check_named(diagnosis, "NCCL").found == "no answer within 40 s"
    assert diagnosis.devices == ("cpu",)


def test_a_device_that_others_use_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = {**DEVICE, "free": 60 << 30}
    diagnosis = answers(monkeypatch, cupti=Answer(found={"num_kernels": 3, "devices": [DEVICE, busy]}))
    check = check_named(diagnosis, "CUDA")
    assert (check.health, "on 1" in check.found) == (Health.WARNING, True)
    assert diagnosis.devices == ("cuda", "cpu")


@pytest.mark.parametrize(
    ("found", "health", "said"),
    [
        ({"version": "0.15.4", "missing": []}, Health.ERROR, "0.16 or newer"),
        ({"version": "0.17.0", "missing": ["fetch"]}, Health.WARNING, "labels will be absent"),
        ({"version": "0.20.0", "missing": []}, Health.WARNING, "not known"),
        ({"version": "0.19.8+abc", "missing": []}, Health.OK, "All functions"),
    ],
)
def test_deepspeed_is_held_against_what_is_supported(found: dict[str, Any], health: Health, said: str) -> None:
    check = checks.check_deepspeed(Answer(found=found))
    assert check.health is health
    assert said in check.means


@pytest.mark.parametrize(
    ("change", "said"), [({"version": "2.3.1+cpu"}, "2.4 or newer"), ({"kineto": False}, "cannot write the traces")]
)
def test_a_torch_that_cannot_trace_is_an_error(change: dict[str, Any], said: str) -> None:
    check = checks.check_torch(Answer(found={**TORCH, **change}))
    assert check.health is Health.ERROR
    assert said in check.means


def test_without_torch_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else object())
    monkeypatch.setattr(doctor, "run_probes", lambda *_: pytest.fail("a probe was started"))
    done = CliRunner().invoke(main, ["doctor"])
    assert done.exit_code == 1
    assert "torch not installed" in done.stdout
    assert "pip install 'zerotrace[capture]'" in done.stdout
    assert "No capture is possible here." in done.stderr


@pytest.mark.parametrize(
    ("free", "health"), [(10 << 30, Health.OK), (500 << 20, Health.WARNING), (1 << 20, Health.ERROR)]
)
def test_free_space_is_that_of_the_nearest_folder_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, health: Health
) -> None:
    asked: list[Path] = []

    class Usage:
        def __init__(self, path: Path) -> None:
            asked.append(path)
            self.free = free

    monkeypatch.setattr("shutil.disk_usage", Usage)
    assert checks.check_space(tmp_path / "not" / "there").health is health
    assert asked == [tmp_path]


def test_a_probe_that_hangs_is_ended_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    start: Callable[..., Any] = doctor.subprocess.Popen
    marks = tmp_path / "pid"
    program = f"import os, time; open({str(marks)!r}, 'w').write(str(os.getpid())); time.sleep(60)"

    def hang(command: list[str], **options: Any) -> Any:
        return start([command[0], "-c", program], **options)

    monkeypatch.setattr(doctor.subprocess, "Popen", hang)
    answer = doctor.run_probes({"torch": [["torch"]]}, limit_s=1.0)["torch"]
    assert answer.failure == "no answer within 1 s"
    with pytest.raises(ProcessLookupError):
        os.kill(int(marks.read_text()), 0)


@pytest.mark.parametrize("out", ["/proc/nope", "x" * 300])
def test_a_folder_that_cannot_be_made_is_an_error_whatever_its_permissions(out: str) -> None:
    found = checks.check_space(Path(out))
    assert found.health is Health.ERROR
    assert "cannot be written" in found.found
