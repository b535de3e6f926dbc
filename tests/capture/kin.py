"""Small captures of torch's own engines on two CPU ranks over gloo, each made when it is first asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.captures import NUM_RANKS
from zerotrace.capture.ds_config import build_ds_config
from zerotrace.capture.folder import reserve_folder
from zerotrace.capture.launch import run_capture
from zerotrace.capture.plan import CapturePlan

#: DDP settles its buckets in the third step.
NUM_WARMUP = 2
NUM_TIMED = 1
NUM_PROFILED = 2
#: Warm-up, timed, without and with labels, settling, detailed, memory.
NUM_STEPS = NUM_WARMUP + NUM_TIMED + 2 + 1 + NUM_PROFILED + 1
WORK = {"model": "nano", "micro_batch": 1, "sequence": 32, "seed": 1337}


class KinCaptures:
    """Engine and settings -> folder of a finished capture of the same work, kept once it is made."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._folders: dict[str, Path] = {}

    def of(self, engine: str, **settings: Any) -> Path:
        """A capture with an engine; DeepSpeed at stage 0 to hold it against."""
        name = "-".join([engine, *(f"{key}-{value}" for key, value in sorted(settings.items()))])
        if name not in self._folders:
            self._folders[name] = self._capture(engine, name, settings)
        return self._folders[name]

    def _capture(self, engine: str, name: str, settings: dict[str, Any]) -> Path:
        num_ranks = 1 if engine == "single" else NUM_RANKS
        deepspeed = {}
        if engine == "deepspeed":
            deepspeed = {"stage": 0, "ds_config": build_ds_config(stage=0, micro_batch=1, num_ranks=num_ranks)}
        plan = CapturePlan(
            engine=engine, num_ranks=num_ranks, device="cpu", num_warmup=NUM_WARMUP, num_timed=NUM_TIMED,
            num_labelled=1, num_profiled=NUM_PROFILED, num_memory=1, timeout_s=120, engine_settings=settings,
            command=("zerotrace", "capture", "--engine", engine), **WORK, **deepspeed,
        )  # fmt: skip
        folder = run_capture(plan, reserve_folder(self._base / name, plan.default_name)).folder
        assert folder is not None
        return folder
