"""The ledger on paper, against what real DeepSpeed engines hold under many configurations."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.capture.programs.holding import WIDTHS
from tests.captures import NUM_RANKS, CpuCaptures
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.ledger import deepspeed_ledger, read_settings, shapes_of
from zerotrace.model import Owner

pytestmark = pytest.mark.capture

ROOT = Path(__file__).resolve().parents[2]
NUMELS = [n for width, after in pairwise(WIDTHS) for n in (width * after, after, after, after)]
BF16: dict[str, Any] = {"bf16": {"enabled": True}}
FP32_ACCUMULATION: dict[str, Any] = {"data_types": {"grad_accum_dtype": "fp32"}}
OFFLOAD = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}


def config(stage: int, precision: dict[str, Any] | None = None, **zero: Any) -> dict[str, Any]:
    bucket = {} if "reduce_bucket_size" in zero else {"reduce_bucket_size": 4000}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": stage, **bucket, **zero},
        **(BF16 if precision is None else precision),
    }


CONFIGS = {
    **{f"stage{stage}-bf16": config(stage) for stage in range(4)},
    **{f"stage{stage}-fp32": config(stage, {}) for stage in range(4)},
    **{f"stage{stage}-bf16-accumulate-fp32": config(stage, {**BF16, **FP32_ACCUMULATION}) for stage in (1, 2, 3)},
    **{f"stage{stage}-offload": config(stage, **OFFLOAD) for stage in (1, 2, 3)},
    "stage3-no-bucket": config(3, contiguous_gradients=False),
    "stage3-none-persisted": config(3, stage3_param_persistence_threshold=0),
    "stage3-some-persisted": config(3, stage3_param_persistence_threshold=20),
    "stage3-few-persisted": config(3, param_persistence_threshold=20, stage3_model_persistence_threshold=40),
    "stage3-sub-groups": config(3, sub_group_size=100),
    "stage3-fp32-communication": config(3, {**BF16, "communication_data_type": "fp32"}),
    "stage3-bucket": config(3, reduce_bucket_size=7000),
}


@pytest.fixture(scope="module", params=[2, 3])
def held(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    world: int = request.param
    folder = tmp_path_factory.mktemp(f"held{world}")
    configs = folder / "configs.json"
    configs.write_text(json.dumps(CONFIGS))
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world),
        str(ROOT / "tests/capture/programs/holding.py"), str(configs), str(folder),
    ]  # fmt: skip
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    return world, folder


@pytest.mark.parametrize("name", CONFIGS)
def test_the_ledger_is_what_an_engine_holds_to_the_byte(name: str, held: tuple[int, Path]) -> None:
    world, folder = held
    ledger = deepspeed_ledger(shapes_of(NUMELS), read_settings(CONFIGS[name]), world, device="cpu")
    expected: dict[str, int] = {}
    for line in ledger.lines:
        # host and device are one here
        expected[line.owner.value] = expected.get(line.owner.value, 0) + int(line.bytes) + line.offloaded_bytes
    for rank in range(world):
        found: dict[str, int] = {}
        for storage in json.loads((folder / f"{name}.{rank}.json").read_text()):
            found[storage["owner"]] = found.get(storage["owner"], 0) + storage["bytes"]
        # flags, norms and Adam's step counters: a few bytes each; with offload also buffers of the size of a gradient
        other = found.pop(Owner.OTHER.value, 0)
        assert other < 400 or "offload" in name
        assert found == {owner: size for owner, size in expected.items() if size and owner != Owner.OTHER.value}


@pytest.mark.parametrize("stage", range(4))
def test_a_capture_on_cpu_reconciles_but_for_flags_and_norms(
    cpu_captures: CpuCaptures, stage: int, tmp_path: Path
) -> None:
    analysis, folder, _ = analyze([cpu_captures[stage]], tmp_path / "out", AnalyzeOptions(hta=False))
    memory = analysis.memory
    assert memory is not None and memory.resident is not None
    assert memory.resident.unexplained_bytes < 1000
    assert memory.peak is None
    assert "no history of a CPU" in (memory.reason or "")
    assert [(rank.resident_bytes, rank.peak_bytes) for rank in memory.ranks] == [(None, None)] * NUM_RANKS
    assert not (folder / "memory.parquet").exists()
