"""Captures over NCCL on two CUDA devices: what no CPU can show. Run with ``pytest -m gpu`` on such a machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Mode

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices"),
]


def capture(stage: int, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "zerotrace", "capture", "--stage", str(stage), "--gpus", "2", "--model", "gpt2",
               "--timed", "3", "--warmup", "2", "--steps", "1", "--timeout", "150", "--out", str(out)]  # fmt: skip
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=200, check=False)


@pytest.mark.parametrize("stage", range(4))
def test_a_capture_over_nccl_closes(stage: int, tmp_path: Path) -> None:
    done = capture(stage, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert (manifest["device"], manifest["backend"], manifest["world_size"]) == ("cuda", "nccl", 2)
    assert all(rank["peak_bytes"] > rank["resident_bytes"] > 0 for rank in manifest["ranks"])
    analysis, _, _ = analyze([tmp_path / "run"], options=AnalyzeOptions(hta=False))
    assert analysis.mode is Mode.DEVICE
    assert [(part.rank, part.known) for part in analysis.partition] == [(0, True), (1, True)]
    assert all(part.comm_ns for part in analysis.partition)


def test_more_ranks_than_devices_is_refused_before_anything_starts(tmp_path: Path) -> None:
    done = capture(3, tmp_path / "run", "--gpus", str(torch.cuda.device_count() + 1))
    assert done.returncode == 1
    assert "CUDA device" in done.stderr
    assert list(tmp_path.iterdir()) == []
