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
from zerotrace.labels import GatherKind, LabelEvent, Phase
from zerotrace.store import read_manifest

pytestmark = pytest.mark.capture

PSI = MODELS["nano"].num_params
SMALL_BUCKETS = {"bucket_cap_mb": 1, "gradient_as_bucket_view": True}


def spans(folder: Path, rank: int = 0) -> Any:
    return spans_of(load_trace(folder, rank))


#: Engines, and the settings with which they are captured here.
ENGINES: dict[str, dict[str, Any]] = {"ddp": SMALL_BUCKETS, "zero1": {}, "fsdp2": {}}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_work_is_that_of_stage_0(kin: KinCaptures, engine: str) -> None:
    ours, theirs = load_manifest(kin.of(engine, **ENGINES[engine])), load_manifest(kin.of("deepspeed"))
    assert (ours["engine"], ours["stage"], ours["ds_config"], ours["world_size"]) == (engine, None, None, NUM_RANKS)
    assert ours["model"] == theirs["model"]
    assert [ours[key] for key in ("micro_batch", "sequence", "seed")] == [1, 32, 1337]
    assert len(ours["losses"]) == NUM_STEPS
    # The same weights and tokens to the bit, and what torch's engines do with them; bf16 resolves 1/32 at 7.
    assert ours["losses"][0] == theirs["losses"][0]
    assert ours["losses"] == pytest.approx(theirs["losses"], abs=1 / 16)
    assert ours["labels"]["missing"] == {}
    assert "deepspeed" not in ours["versions"]


def test_ddp_s_settings_and_buckets_are_in_the_manifest(kin: KinCaptures) -> None:
    manifest = read_manifest(kin.of("ddp", **SMALL_BUCKETS))
    assert manifest is not None
    assert manifest.engine_settings == {
        **SMALL_BUCKETS,
        "first_bucket_cap_mb": 1,
        "static_graph": False,
        "find_unused_parameters": False,
        "comm_hooks": [],
    }
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


@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_zero1_reduces_all_gradients_and_broadcasts_every_parameter_in_bf16(kin: KinCaptures, rank: int) -> None:
    found = spans(kin.of("zero1"), rank)
    reductions, broadcasts = marked(found, LabelEvent.REDUCE), marked(found, LabelEvent.POST_STEP_GATHER)
    # DDP's first bucket is closed at 1 MiB, the next one holds the rest of nano.
    assert len(reductions) == 2 * NUM_PROFILED
    assert sum(span.label.elements for span in reductions) == NUM_PROFILED * PSI
    assert {span.label.bytes / span.label.elements for span in reductions} == {2}
    assert reductions[0].label.bytes < 2 << 20
    told = [(span.label.num_params, span.label.elements, span.label.bytes) for span in broadcasts]
    assert told == [(52, PSI, 2 * PSI)] * NUM_PROFILED
    steps = marked(found, LabelEvent.OPTIMIZER_STEP)
    assert all(sum(step.holds(span) for step in steps) == 1 for span in broadcasts)
    launches = [span for span in found if span.name == "c10d::broadcast_"]
    assert len(launches) == NUM_PROFILED * 52
    assert all(sum(span.holds(launch) for span in broadcasts) == 1 for launch in launches)


def test_zero1_keeps_master_weights_and_states_of_its_share_alone(kin: KinCaptures) -> None:
    folder = kin.of("zero1")
    assert load_manifest(folder)["engine_settings"]["parameters_as_bucket_view"] is False
    ranks = [bytes_by_owner(load_owners(folder, rank)) for rank in range(NUM_RANKS)]
    for found in ranks:
        assert found["params"] == 2 * PSI
        assert found["master"] == found["exp_avg"] == found["exp_avg_sq"]
        # Whole parameters are dealt out: the shares are not quite equal.
        assert found["master"] == pytest.approx(2 * PSI, rel=0.02)
    assert sum(found["master"] for found in ranks) == 4 * PSI


#: Nano's groups: the root with what is in no block, then the blocks.
ROOT, BLOCK = 246_144, 444_864


@pytest.mark.parametrize("reshard", [True, False])
def test_every_gather_and_reduction_of_fsdp2_is_one_label(kin: KinCaptures, reshard: bool) -> None:
    folder = kin.of("fsdp2", **({} if reshard else {"reshard_after_forward": False}))
    for rank in range(NUM_RANKS):
        found = spans(folder, rank)
        for event, operator in ((LabelEvent.GATHER, "_allgather_base_"), (LabelEvent.REDUCE, "_reduce_scatter_base_")):
            labels = marked(found, event)
            launches = [span for span in found if span.name == f"c10d::{operator}"]
            assert [sum(label.holds(launch) for label in labels) for launch in launches] == [1] * len(launches)
            assert len(labels) == len(launches)
        # FSDP2's own annotations count the same.
        own = Counter(span.name for span in found if span.name.startswith("FSDP::all_gather ("))
        times = 2 if reshard else 1
        assert own == {f"FSDP::all_gather (blocks.{n})": times * NUM_PROFILED for n in range(4)}
        gathers = Counter(
            (span.label.kind, span.label.phase, span.label.module, span.label.elements)
            for span in marked(found, LabelEvent.GATHER)
        )
        forward = {(GatherKind.PREFETCH, Phase.FORWARD, f"blocks.{n}", BLOCK): NUM_PROFILED for n in range(4)}
        # Each block is gathered while the one behind it has its turn, the last one when the root has.
        turns = ("", "blocks.3", "blocks.2", "blocks.1") if reshard else ()
        backward = {(GatherKind.PREFETCH, Phase.BACKWARD, turn, BLOCK): NUM_PROFILED for turn in turns}
        assert gathers == {(GatherKind.DEMAND, Phase.FORWARD, "", ROOT): NUM_PROFILED, **forward, **backward}
        reduced = Counter((span.label.module, span.label.elements) for span in marked(found, LabelEvent.REDUCE))
        assert reduced == {("", ROOT): NUM_PROFILED, **{(f"blocks.{n}", BLOCK): NUM_PROFILED for n in range(4)}}


def test_a_gather_of_fsdp2_names_its_parameters_in_the_order_of_their_use(kin: KinCaptures) -> None:
    labels = [span.label for span in marked(spans(kin.of("fsdp2")), LabelEvent.GATHER)]
    assert [label.submission for label in labels] == list(range(len(labels)))
    assert {label.bytes / label.elements for label in labels} == {2}
    firsts = {label.params[0] for label in labels if label.phase is Phase.BACKWARD}
    assert firsts == {f"blocks.{n}.proj.bias" for n in range(4)}
    firsts = {label.params[0] for label in labels if label.phase is Phase.FORWARD}
    assert firsts == {"tokens.weight", *(f"blocks.{n}.ln_1.weight" for n in range(4))}


def test_the_groups_and_settings_of_fsdp2_are_in_the_manifest(kin: KinCaptures) -> None:
    for reshard in (True, False):
        manifest = read_manifest(kin.of("fsdp2", **({} if reshard else {"reshard_after_forward": False})))
        assert manifest is not None
        assert manifest.engine_settings is not None
        assert manifest.engine_settings["reshard_after_forward"] is reshard
        assert (manifest.engine_settings["param_dtype"], manifest.engine_settings["reduce_dtype"]) == ("bfloat16",) * 2
        told = [(group.module, group.elements, group.reshard_after_forward) for group in manifest.shard_groups]
        # FSDP2 keeps the root from the forward to the backward.
        assert told == [("", ROOT, False), *((f"blocks.{n}", BLOCK, reshard) for n in range(4))]
        assert sum(group.padded_elements for group in manifest.shard_groups) == PSI
        assert manifest.model.num_params == PSI


def test_fsdp2_holds_fp32_shards_and_their_states(kin: KinCaptures) -> None:
    found = bytes_by_owner(load_owners(kin.of("fsdp2"), 1))
    assert found.pop("other") < 1000
    assert found == {"master": 2 * PSI, "exp_avg": 2 * PSI, "exp_avg_sq": 2 * PSI}
