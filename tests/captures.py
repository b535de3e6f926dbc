"""Real captures on two CPU ranks over gloo, shared by all tests that need one. Loaded as a pytest plugin."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

NUM_RANKS = 2
NUM_WARMUP = 2
NUM_TIMED = 3
NUM_LABELLED = 2
NUM_PROFILED = 2


class CpuCaptures(Mapping[int, Path]):
    """Stage -> folder of a finished capture. A stage is captured when it is first asked for, then kept."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._folders: dict[int, Path] = {}

    def __getitem__(self, stage: int) -> Path:
        if stage not in self._folders:
            self._folders[stage] = self._capture(stage)
        return self._folders[stage]

    def __iter__(self) -> Iterator[int]:
        return iter((0, 1, 2, 3))

    def __len__(self) -> int:
        return 4

    def _capture(self, stage: int) -> Path:
        from zerotrace.capture.ds_config import build_ds_config
        from zerotrace.capture.folder import reserve_folder
        from zerotrace.capture.launch import run_capture
        from zerotrace.capture.plan import DEFAULTS, CapturePlan

        defaults = DEFAULTS["cpu"]
        plan = CapturePlan(
            stage=stage,
            num_ranks=NUM_RANKS,
            device="cpu",
            model=defaults.model,
            micro_batch=defaults.micro_batch,
            sequence=defaults.sequence,
            seed=1337,
            num_warmup=NUM_WARMUP,
            num_timed=NUM_TIMED,
            num_profiled=NUM_PROFILED,
            num_labelled=NUM_LABELLED,
            num_memory=1,
            timeout_s=120,
            ds_config=build_ds_config(stage=stage, micro_batch=defaults.micro_batch, num_ranks=NUM_RANKS),
            command=("zerotrace", "capture", "--stage", str(stage), "--gpus", str(NUM_RANKS), "--device", "cpu"),
        )
        return run_capture(plan, reserve_folder(self._base / f"stage{stage}", plan.default_name)).folder


@pytest.fixture(scope="session")
def cpu_captures(tmp_path_factory: pytest.TempPathFactory) -> CpuCaptures:
    """Captures of the four ZeRO stages on two ranks, with every window that a CPU has."""
    return CpuCaptures(tmp_path_factory.mktemp("captures"))
