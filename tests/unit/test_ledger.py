"""Ledgers on paper: theory, DeepSpeed's lines, what they add up to, and what would fit."""

from __future__ import annotations

from typing import Any

import pytest

from zerotrace.capture.models import MODELS
from zerotrace.errors import LedgerError
from zerotrace.ledger import (
    Shapes,
    compare_ledgers,
    decoder_activations,
    decoder_shapes,
    deepspeed_ledger,
    fit,
    paper_ledger,
    parse_shapes,
    read_settings,
    shapes_of,
    wire_ratio,
)
from zerotrace.ledger.allocator import given_bytes
from zerotrace.ledger.estimators import estimate
from zerotrace.ledger.fit import with_changes
from zerotrace.ledger.workspaces import workspace_bytes
from zerotrace.model import ModelShape, Owner

GIB, MIB = 1 << 30, 1 << 20
STUDY: dict[str, Any] = {"bf16": {"enabled": True}, "zero_optimization": {"overlap_comm": True}}
LARGE = MODELS["gpt2-large"].shape(MODELS["gpt2-large"].num_params)
PSI = LARGE.num_params


def held(stage: int, world: int, config: dict[str, Any] | None = None) -> float:
    settings = read_settings(STUDY if config is None else config, stage)
    return deepspeed_ledger(decoder_shapes(LARGE), settings, world).bytes / GIB


@pytest.mark.parametrize(
    ("stage", "world", "expected"),
    [
        (0, 8, 16 * PSI),
        (1, 8, 4 * PSI + 12 * PSI / 8),
        (2, 8, 2 * PSI + 14 * PSI / 8),
        (3, 8, 2 * PSI),
        (3, 1, 16 * PSI),
    ],
)
def test_the_paper_s_ledger(stage: int, world: int, expected: float) -> None:
    ledger = paper_ledger(Shapes(num_params=PSI), stage, world)
    assert ledger.bytes == expected == sum(line.bytes for line in ledger.lines)


# What a study measured with N = 8, and captures with N = 2: after a step, in GiB.
@pytest.mark.parametrize(("stage", "measured"), [(0, 10.47), (1, 2.68), (2, 2.68), (3, 2.53)])
def test_eight_ranks_hold_what_was_measured_within_5_percent(stage: int, measured: float) -> None:
    assert held(stage, 8) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(("stage", "measured"), [(0, 10.367), (0, 10.406), (1, 5.831), (2, 5.831), (3, 6.762)])
def test_two_ranks_hold_what_was_measured_within_half_a_percent(stage: int, measured: float) -> None:
    assert held(stage, 2) == pytest.approx(measured, rel=0.005)


def test_a_smaller_bucket_is_worth_its_bytes_at_stage_3() -> None:
    smaller = {**STUDY, "zero_optimization": {"reduce_bucket_size": 5e7}}
    assert held(3, 2, smaller) == pytest.approx(5.924, rel=0.001)


@pytest.mark.parametrize(("stage", "measured"), [(0, 17.798), (1, 13.574), (2, 13.574), (3, 15.104)])
def test_the_peak_of_a_known_decoder_is_within_1_percent_of_what_was_measured(stage: int, measured: float) -> None:
    activations = decoder_activations(LARGE, 4, 1024, 2)
    ledger = deepspeed_ledger(decoder_shapes(LARGE), read_settings(STUDY, stage), 2, activations=activations)
    assert ledger.peak_bytes / GIB == pytest.approx(measured, rel=0.01)


def test_the_words_name_the_study_s_1_2_gib() -> None:
    shapes = decoder_shapes(LARGE)
    words = " ".join(compare_ledgers(paper_ledger(shapes, 3, 8), deepspeed_ledger(shapes, read_settings(STUDY, 3), 8)))
    assert "the reduce bucket (954 MiB, reduce_bucket_size) and the flat gradient shard (185 MiB)" in words
    assert "1.11 GiB of 1.18 GiB more, none of it all-gather buffers" in words


def test_stages_1_and_2_hold_the_same_and_the_words_say_why() -> None:
    assert held(1, 8) == held(2, 8)
    shapes = decoder_shapes(LARGE)
    words = compare_ledgers(paper_ledger(shapes, 2, 8), deepspeed_ledger(shapes, read_settings(STUDY, 2), 8))
    assert any("stages 1 and 2 hold the same between steps" in sentence for sentence in words)


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_shapes_of_our_decoders_add_up(model: Any) -> None:
    shapes = decoder_shapes(model.shape(model.num_params))
    assert shapes.numels is not None
    assert sum(shapes.numels) == model.num_params
    assert len(shapes.numels) == 12 * model.num_layers + 4


def test_other_models_have_no_shapes_and_the_ledger_says_what_it_leaves_out() -> None:
    shapes = decoder_shapes(ModelShape(name="train.py", num_params=PSI))
    assert shapes.numels is None
    ledger = deepspeed_ledger(shapes, read_settings(STUDY, 3), 8)
    assert any("sizes of single parameters are unknown" in note for note in ledger.notes)
    assert ledger.estimate_bytes is None


def test_padding() -> None:
    shapes = shapes_of([1001, 7, 3, 2])
    assert [shapes.flat_partition_numel(4), shapes.partition_numel(4)] == [254, 255]
    assert [paper_ledger(shapes, stage, 4).padded_bytes for stage in range(4)] == [16208, 7100, 5582, 4080]
    assert paper_ledger(Shapes(num_params=1013), 3, 4).padded_bytes is None


def test_deepspeed_s_own_estimators() -> None:
    shapes = shapes_of([1001, 7, 3, 2])
    assert [estimate(shapes, read_settings(STUDY, stage), 4)[0] for stage in range(4)] == [None, None, 6584, 8562]
    assert "no estimator" in estimate(shapes, read_settings(STUDY, 1), 4)[1]
    offload = {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}
    assert estimate(shapes, read_settings(offload, 2), 4)[0] == 2 * 1013
    assert estimate(shapes, read_settings(offload, 3), 4)[0] == 4 * 1001 + int(2 * 1013 / 4)


def test_estimators_are_those_of_the_installed_deepspeed() -> None:
    two = pytest.importorskip("deepspeed.runtime.zero.stage_1_and_2").estimate_zero2_model_states_mem_needs
    three = pytest.importorskip("deepspeed.runtime.zero.stage3").estimate_zero3_model_states_mem_needs
    shapes = shapes_of([1001, 7, 3, 2])
    for offload in (False, True):
        config = {"zero_optimization": {"offload_optimizer": {"device": "cpu" if offload else "none"}}}
        assert estimate(shapes, read_settings(config, 2), 4)[0] == two(1013, 4, 1, cpu_offload=offload)[1]
        theirs = three(1013, 1001, 4, 1, cpu_offload=offload, cpu_offload_params=False)[1]
        assert estimate(shapes, read_settings(config, 3), 4)[0] == theirs


@pytest.mark.parametrize(
    ("size", "given_mib"),
    [
        (1, 512 / MIB),
        (MIB, 1),
        (MIB + 1, 20 / 19),  # 19 in a segment of 20 MiB; the last gets the rest: on average
        (25 * MIB, 26),  # of its own segment of 26 MiB no more than 1 MiB would be left
        (25 * MIB // 2, 12.5),  # of 14 MiB 1.5 would: split off
        (25 * MIB // 4, 6.25),  # three in a segment of 20 MiB, 1.25 left
        (39 * MIB // 4, 10),  # two in a segment of 20 MiB, 0.5 left
    ],
)
def test_what_the_allocator_gives_for_a_tensor(size: int, given_mib: float) -> None:
    assert given_bytes(size) / MIB == pytest.approx(given_mib)


@pytest.mark.parametrize(
    ("device", "mib"),
    [(None, 32), ("NVIDIA H200", 32), ("NVIDIA H100 80GB HBM3", 32), ("NVIDIA B200", 32), ("AMD Instinct MI300X", 128),
     ("NVIDIA A100-SXM4-80GB", 8.125), ("NVIDIA L40S", 8.125), ("NVIDIA GeForce RTX 4090", 8.125),
     ("NVIDIA RTX PRO 6000 Blackwell Server Edition", 32)],
)  # fmt: skip
def test_workspaces_by_device(device: str | None, mib: float) -> None:
    assert workspace_bytes(device) == mib * MIB


@pytest.mark.parametrize(
    ("zero", "stage", "ratio"),
    [
        ({}, 0, 2),
        ({}, 1, 3),
        ({"use_multi_rank_bucket_allreduce": False}, 2, 2),
        ({}, 3, 2),
        ({"stage3_max_live_parameters": 1e8}, 3, 3),
        ({"max_reuse_distance": 1e8}, 3, 3),
    ],
)
def test_the_wire_ratio_of_a_configuration(zero: dict[str, Any], stage: int, ratio: float) -> None:
    assert wire_ratio(decoder_shapes(LARGE), read_settings({**STUDY, "zero_optimization": zero}, stage)) == ratio


def test_gradient_accumulation_sends_gradients_again_from_stage_2_on() -> None:
    config = {**STUDY, "gradient_accumulation_steps": 4}
    ratios = [wire_ratio(decoder_shapes(LARGE), read_settings(config, stage)) for stage in range(4)]
    assert ratios == [2, 3, 9, 8]


def test_what_fits_comes_first_and_the_least_costly_of_it_leads() -> None:
    activations = decoder_activations(LARGE, 4, 1024, 2)
    roomy, tight = (
        fit(decoder_shapes(LARGE), STUDY, 8, size, activations=activations) for size in (80 * GIB, 10 * GIB)
    )
    assert (roomy[0].stage, roomy[0].changes, roomy[0].wire_ratio) == (0, {}, 2)
    assert all(option.fits == (option.needed_bytes <= 10 * GIB) for option in tight)
    assert [option.fits for option in tight] == sorted((option.fits for option in tight), reverse=True)
    assert tight[0].stage == 3
    assert tight[0].host_bytes == 0
    assert tight[0].wire_ratio == 3
    assert not any(option.fits for option in fit(decoder_shapes(LARGE), STUDY, 8, GIB))


def test_a_changed_configuration_leaves_the_given_one_alone() -> None:
    config = {"zero_optimization": {"stage": 1}}
    changed = with_changes(config, {"zero_optimization.offload_optimizer.device": "cpu"})
    assert changed == {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}}
    assert config == {"zero_optimization": {"stage": 1}}


@pytest.mark.parametrize(
    "content",
    [{"a": [2, 3], "b": 4}, [[2, 3], [4]], [6, 4]],
)
def test_shapes_from_a_file(content: Any) -> None:
    assert parse_shapes(content, "f").numels == (6, 4)


@pytest.mark.parametrize("content", [3, [], {}, [[]], [0], ["a"], [True], [[2, -1]], None])
def test_what_is_no_shape_is_refused(content: Any) -> None:
    if content == [[]]:
        assert parse_shapes(content, "f").num_params == 1  # a scalar
        return
    with pytest.raises(LedgerError, match=r"shapes\.json"):
        parse_shapes(content, "shapes.json")


@pytest.mark.parametrize(
    "config",
    [
        {"zero_optimization": 3},
        {"zero_optimization": {"stage": 4}},
        {"zero_optimization": {"stage": "one"}},
        {"zero_optimization": {"reduce_bucket_size": -1}},
        {"zero_optimization": {"overlap_comm": 1}},
        {"data_types": {"grad_accum_dtype": "int8"}},
        {"zero_optimization": {"offload_optimizer": {"device": "cpu", "ratio": 2}}},
    ],
)
def test_a_configuration_that_means_nothing_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(LedgerError):
        read_settings(config)


def test_auto_values_are_deepspeed_s_defaults_and_are_named() -> None:
    settings = read_settings({"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}})
    assert settings.reduce_bucket_size == 500_000_000
    assert any("reduce_bucket_size" in note for note in settings.notes)


def test_offloaded_states_leave_the_device_and_are_counted_there() -> None:
    config = {
        **STUDY,
        "zero_optimization": {"offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    }
    ledger = deepspeed_ledger(decoder_shapes(LARGE), read_settings(config, 3), 2)
    gone = {line.owner for line in ledger.lines if line.offloaded_bytes}
    assert gone == {Owner.PARAMS, Owner.MASTER, Owner.EXP_AVG, Owner.EXP_AVG_SQ, Owner.GRADS, Owner.GRAD_PARTITION}
    assert all(not line.bytes for line in ledger.lines if line.offloaded_bytes)
    whole = deepspeed_ledger(decoder_shapes(LARGE), read_settings(STUDY, 3), 2)
    assert ledger.bytes < whole.bytes - 12 * PSI / 2


def test_a_part_of_the_optimizer_can_stay_on_the_device() -> None:
    offload = {"device": "cpu", "ratio": 0.5}
    zero = {"offload_optimizer": offload, "sub_group_size": 100_000_000}
    ledger = deepspeed_ledger(decoder_shapes(LARGE), read_settings({**STUDY, "zero_optimization": zero}, 3), 2)
    master = [line for line in ledger.lines if line.owner is Owner.MASTER]
    assert [line.bytes for line in master if line.bytes] == pytest.approx([4 * 200_000_000], rel=0.001)
    assert sum(line.offloaded_bytes for line in master) == 4 * (PSI // 2 - 200_000_000)


@pytest.mark.parametrize("size", [float("inf"), float("nan"), 0.5, -1, True])
def test_a_size_that_is_no_whole_number_is_refused(size: float) -> None:
    with pytest.raises(LedgerError, match="expected a whole number"):
        read_settings({"zero_optimization": {"reduce_bucket_size": size}}, 3)
