"""Who owns the memory of an engine, held against what each stage keeps in theory."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.captures import NUM_RANKS, CpuCaptures
from zerotrace.capture.ds_config import build_ds_config
from zerotrace.capture.folder import reserve_folder
from zerotrace.capture.launch import run_capture
from zerotrace.capture.models import MODELS
from zerotrace.capture.plan import CapturePlan

pytestmark = pytest.mark.capture

PSI = MODELS["nano"].num_params
BUCKET = 500_000_000 * 2


def load_owners(folder: Path, rank: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / f"rank_{rank}.owners.json").read_text())
    return content


def bytes_by_owner(content: dict[str, Any]) -> Counter[str]:
    total: Counter[str] = Counter()
    for storage in content["storages"]:
        total[storage["owner"]] += storage["bytes"]
    return total


# Nano's parameters need no padding for two ranks, and the gradients are gone after the step.
EXPECTED = {
    0: {"params": 2 * PSI, "master": 4 * PSI, "exp_avg": 4 * PSI, "exp_avg_sq": 4 * PSI},
    1: {"params": 2 * PSI, "master": 2 * PSI, "exp_avg": 2 * PSI, "exp_avg_sq": 2 * PSI},
    2: {"params": 2 * PSI, "master": 2 * PSI, "exp_avg": 2 * PSI, "exp_avg_sq": 2 * PSI},
    3: {"params": PSI, "master": 2 * PSI, "exp_avg": 2 * PSI, "exp_avg_sq": 2 * PSI, "grad_partition": PSI,
        "reduce_bucket": BUCKET},
}  # fmt: skip


@pytest.mark.parametrize("rank", range(NUM_RANKS))
@pytest.mark.parametrize("stage", range(4))
def test_every_stage_holds_what_theory_says(cpu_captures: CpuCaptures, stage: int, rank: int) -> None:
    found = bytes_by_owner(load_owners(cpu_captures[stage], rank))
    # Adam's step counters, flags and norms: a few bytes each.
    assert found.pop("other") < 1000
    if stage == 3:
        persisted = _persisted_elements()
        assert found.pop("gathered_params") == 2 * persisted
    assert found == EXPECTED[stage]


@pytest.mark.parametrize("stage", range(4))
def test_a_storage_is_listed_once_with_its_holder(cpu_captures: CpuCaptures, stage: int) -> None:
    content = load_owners(cpu_captures[stage], 0)
    assert (content["version"], content["rank"], content["device"]) == (1, 0, "cpu")
    addresses = [storage["address"] for storage in content["storages"]]
    assert len(set(addresses)) == len(addresses)
    assert all(storage["holder"] and storage["num_tensors"] >= 1 for storage in content["storages"])


def test_the_bf16_optimizer_s_fp32_gradients_are_gradients(tmp_path: Path) -> None:
    config = build_ds_config(stage=1, micro_batch=1, num_ranks=2, settings=[("data_types.grad_accum_dtype", "fp32")])
    plan = CapturePlan(
        stage=1, num_ranks=2, device="cpu", model="nano", micro_batch=1, sequence=16, seed=1, num_warmup=1, num_timed=0,
        num_profiled=1, num_memory=1, timeout_s=100, ds_config=config,
    )  # fmt: skip
    result = run_capture(plan, reserve_folder(tmp_path / "out", "stage3"))
    assert result.folder is not None and result.manifest is not None
    found = bytes_by_owner(load_owners(result.folder, 0))
    assert found.pop("other") < 1000
    assert found == {**EXPECTED[1], "grads": 4 * PSI}
    labels = result.manifest.labels
    assert labels is not None and not labels.missing
    assert {"reduce", "post_step_gather"} <= set(labels.hooks)


def _persisted_elements() -> int:
    """Elements of nano's parameters below DeepSpeed's default persistence threshold of 100,000."""
    model = MODELS["nano"]
    hidden = model.hidden_size
    per_layer = [hidden] * 4 + [3 * hidden, hidden, 4 * hidden, hidden, hidden * hidden]
    return model.num_layers * sum(per_layer) + 2 * hidden + model.num_positions * hidden
