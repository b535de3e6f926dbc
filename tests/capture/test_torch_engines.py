"""torch's own engines: real captures that do the work of DeepSpeed's stages, with labels and owners of their own."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.capture.kin import NUM_PROFILED, NUM_STEPS, KinCaptures
from tests.capture.test_captures import load_manifest, load_trace
from tests.capture.test_labels import marked, spans_of
from tests.capture.test_owners import bytes_by_owner, load_owners
from tests.captures import NUM_RANKS
from zerotrace.capture.models import MODELS
from zerotrace.labels import LabelEvent
from zerotrace.store import read_manifest

pytestmark = pytest.mark.capture

PSI = MODELS["nano"].num_params
SMALL_BUCKETS = {"bucket_cap_mb": 1, "gradient_as_bucket_view": True}


@pytest.fixture(scope="module")
def kin(tmp_path_factory: pytest.TempPathFactory) -> KinCaptures:
    return KinCaptures(tmp_path_factory.mktemp("kin"))


def spans(folder: Path, rank: int = 0) -> Any:
    return spans_of(load_trace(folder, rank))


#: Engines, and the settings with which they are captured here.
ENGINES: dict[str, dict[str, Any]] = {"ddp": SMALL_BUCKETS}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_work_is_that_of_stage_0(kin: KinCaptures, engine: str) -> None:
    ours, theirs = load_manifest(kin.of(engine, **ENGINES[engine])), load_manifest(kin.of("deepspeed"))
    assert (ours["engine"], ours["stage"], ours["ds_config"], ours["world_size"]) == (engine, None, None, NUM_RANKS)
    assert ours["model"] == theirs["model"]
    assert [ours[key] for key in ("micro_batch", "sequence", "seed")] == [1, 32, 1337]
    assert len(ours["losses"]) == NUM_STEPS
    # The same weights and tokens to the bit; bf16 resolves 1/32 at 7.
    assert ours["losses"][0] == theirs["losses"][0]
    assert ours["losses"] == pytest.approx(theirs["losses"], abs=1 / 16)
    assert ours["labels"]["missing"] == {}
    assert "deepspeed" not in ours["versions"]


def test_ddp_s_settings_and_buckets_are_in_the_manifest(kin: KinCaptures) -> None:
    manifest = read_manifest(kin.of("ddp", **SMALL_BUCKETS))
    assert manifest is not None
    assert manifest.engine_settings == {**SMALL_BUCKETS, "static_graph": False, "find_unused_parameters": False,
                                        "comm_hooks": []}  # fmt: skip
    assert len(manifest.buckets) > 1
    assert sum(bucket.elements for bucket in manifest.buckets) == PSI
    assert {(bucket.dtype, bucket.bytes / bucket.elements) for bucket in manifest.buckets} == {("bfloat16", 2)}
    names = [name for bucket in manifest.buckets for name in bucket.params]
    # Tied weights once, the last layers first.
    assert len(set(names)) == len(names) == 52
    assert names[0] == "ln_f.weight"
    assert "tokens.weight" in manifest.buckets[-1].params


@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_each_bucket_of_ddp_is_one_label_around_its_all_reduce(kin: KinCaptures, rank: int) -> None:
    folder = kin.of("ddp", **SMALL_BUCKETS)
    buckets = load_manifest(folder)["buckets"]
    found = spans(folder, rank)
    labels = marked(found, LabelEvent.REDUCE)
    launches = [span for span in found if span.name == "c10d::allreduce_"]
    assert len(labels) == len(launches) == NUM_PROFILED * len(buckets)
    assert [sum(label.holds(launch) for label in labels) for launch in launches] == [1] * len(launches)
    told = [(label.label.elements, label.label.bytes, label.label.num_params, label.label.params[0])
            for label in labels]  # fmt: skip
    assert told == NUM_PROFILED * [(b["elements"], b["bytes"], len(b["params"]), b["params"][0]) for b in buckets]


def test_ddp_marks_phases_modules_and_the_optimizer(kin: KinCaptures) -> None:
    found = spans(kin.of("ddp", **SMALL_BUCKETS))
    counts = Counter(span.label.event for span in found if span.label)
    assert counts[LabelEvent.MICRO_STEP] == counts[LabelEvent.OPTIMIZER_STEP] == NUM_PROFILED
    assert counts[LabelEvent.PHASE] == 3 * NUM_PROFILED
    assert len(marked(found, LabelEvent.FORWARD, module="blocks.3.fc")) == NUM_PROFILED
    assert len(marked(found, LabelEvent.BACKWARD, module="blocks.3.fc")) == NUM_PROFILED


MIXED = {"params": 2 * PSI, "master": 4 * PSI, "exp_avg": 4 * PSI, "exp_avg_sq": 4 * PSI}


def test_ddp_holds_what_stage_0_holds_and_its_buckets(kin: KinCaptures) -> None:
    folder = kin.of("ddp", **SMALL_BUCKETS)
    owners = load_owners(folder, 1)
    found = bytes_by_owner(owners)
    # AdamW's step counters.
    assert found.pop("other") < 1000
    assert found == MIXED
    # The gradients are gone after the step, and with them what leads to the buckets.
    hidden = owners["unlocated"]
    assert {(entry["owner"], entry["device"]) for entry in hidden} == {("reduce_bucket", "cpu")}
    assert sum(entry["bytes"] for entry in hidden) == 2 * PSI
    assert len(hidden) == len(load_manifest(folder)["buckets"])
