"""How the DeepSpeed configuration is put together and checked. Nothing is launched."""

from __future__ import annotations

import copy
import importlib
from pathlib import Path
from typing import Any

import pytest

from zerotrace.capture.ds_config import (
    build_ds_config,
    default_ds_config,
    list_caveats,
    read_ds_config,
    resolve_micro_batch,
)
from zerotrace.capture.ds_keys import check_ds_config
from zerotrace.capture.ds_names import SECTIONS
from zerotrace.capture.ds_settings import parse_setting
from zerotrace.errors import CaptureError


def build(*settings: str, file_config: dict[str, Any] | None = None, stage: int = 3) -> dict[str, Any]:
    parsed = [parse_setting(text) for text in settings]
    return build_ds_config(stage=stage, micro_batch=4, num_ranks=2, file_config=file_config, settings=parsed)


def refuse(*settings: str, file_config: dict[str, Any] | None = None) -> CaptureError:
    with pytest.raises(CaptureError) as caught:
        check_ds_config(build(*settings, file_config=file_config), num_ranks=2)
    return caught.value


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_default_is_the_study_s_configuration(stage: int) -> None:
    config = build(stage=stage)
    assert config == default_ds_config(stage, 4)
    assert config["zero_optimization"] == {"stage": stage, "overlap_comm": True}
    assert config["bf16"] == {"enabled": True}
    check_ds_config(config, num_ranks=2)


def test_a_setting_overrides_the_file_which_overrides_the_default() -> None:
    file_config = {"gradient_clipping": 0.5, "zero_optimization": {"overlap_comm": False, "reduce_bucket_size": 7}}
    before = copy.deepcopy(file_config)
    config = build("zero_optimization.reduce_bucket_size=5e7", file_config=file_config)
    assert config["zero_optimization"] == {"stage": 3, "overlap_comm": False, "reduce_bucket_size": 50_000_000}
    assert config["gradient_clipping"] == 0.5
    assert file_config == before


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e7", 50_000_000),
        ("5e8", 500_000_000),
        ("1.0", 1.0),
        ("0.5", 0.5),
        ("1e-3", 0.001),
        ("true", True),
        ("null", None),
        ("cpu", "cpu"),
        ('"7"', "7"),
        ("[1, 2]", [1, 2]),
        ('{"device": "cpu"}', {"device": "cpu"}),
        ("a=b", "a=b"),
        ("", ""),
    ],
)
def test_the_value_of_a_setting_is_json_else_text(text: str, value: object) -> None:
    key, parsed = parse_setting(f"a.b={text}")
    assert (key, parsed) == ("a.b", value)
    assert type(parsed) is type(value)


@pytest.mark.parametrize("text", ["a.b", "=1", "a..b=1", ".a=1", "a=True", "a=False", "a=None"])
def test_a_setting_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(CaptureError) as caught:
        parse_setting(text)
    assert caught.value.code == "setting_invalid"
    assert caught.value.hint


@pytest.mark.parametrize(
    ("setting", "nearest"),
    [
        ("zero_optimization.reduce_bucket_siz=5e7", "zero_optimization.reduce_bucket_size"),
        ("zero_optimisation.overlap_comm=true", "zero_optimization"),
        ("zero_optimization.offload_optimizer.devic=cpu", "zero_optimization.offload_optimizer.device"),
        ("gradient_cliping=1.0", "gradient_clipping"),
        ("bf16.enable=true", "bf16.enabled"),
        ("flops_profiler.enable=true", "flops_profiler.enabled"),
    ],
)
def test_a_mistyped_key_is_refused_with_the_nearest_one(setting: str, nearest: str) -> None:
    error = refuse(setting)
    assert error.code == "ds_config_key_unknown"
    assert setting.split("=")[0].split(".")[0] in str(error)
    assert error.hint == f"Did you mean {nearest}?"


@pytest.mark.parametrize(
    "setting",
    [
        "zero_optimization.stage3_param_persistence_threshold=0",
        "zero_optimization.stage3_max_live_parameters=1e8",
        "zero_optimization.offload_optimizer.device=cpu",
        "zero_optimization.use_multi_rank_bucket_allreduce=false",
        "gradient_clipping=1",
        "gradient_accumulation_steps=4",
        "communication_data_type=fp32",
        "steps_per_print=100",
        "timers.throughput.synchronized=false",
        "scheduler.type=WarmupLR",
        "fp16.enabled=true",
        "bf16.enabled=false",
        "torch_autocast.enabled=true",
    ],
)
def test_keys_that_deepspeed_has_are_accepted(setting: str) -> None:
    check_ds_config(build(setting), num_ranks=2)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("zero_optimization.reduce_bucket_size=abc", "reduce_bucket_size"),
        ("zero_optimization.reduce_bucket_size=1.5", "reduce_bucket_size"),
        ("zero_optimization.stage3_prefetch_bucket_size=-1", "stage3_prefetch_bucket_size"),
        ("gradient_clipping=high", "expected a number"),
        ("steps_per_print=true", "expected a whole number"),
        ("bf16=false", "expected an object"),
        ("gradient_accumulation_steps=0", "above 0"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused(setting: str, said: str) -> None:
    error = refuse(setting)
    assert error.code in ("ds_config_value", "ds_config_invalid")
    assert said in str(error)


def test_what_deepspeed_has_removed_is_refused_in_its_own_words() -> None:
    error = refuse("zero_optimization.mics_shard_size=2")
    assert error.code == "ds_config_invalid"
    assert "removed" in str(error)


@pytest.mark.parametrize(
    ("key", "option"), [("zero_optimization.stage", "--stage"), ("train_micro_batch_size_per_gpu", "--micro-batch")]
)
def test_a_key_that_has_an_option_is_refused(key: str, option: str) -> None:
    error = refuse(f"{key}=1")
    assert error.code == "ds_config_protected"
    assert option in str(error)


def test_comms_logger_is_refused_with_the_reason_unless_it_is_off() -> None:
    error = refuse("comms_logger.enabled=true")
    assert error.code == "ds_config_refused"
    assert "synchronises" in str(error)
    # To DeepSpeed, a section without `enabled` is off; its presence alone already configures the logger.
    assert "comms_logger" not in build("comms_logger.enabled=false")


def test_an_optimizer_section_is_refused() -> None:
    error = refuse(file_config={"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}})
    assert error.code == "ds_config_refused"


@pytest.mark.parametrize(
    "file_config", [{"zero_optimization": {"stage": 2}}, {"train_batch_size": 9}], ids=["stage", "batch"]
)
def test_a_file_that_contradicts_an_option_is_refused(file_config: dict[str, Any]) -> None:
    assert refuse(file_config=file_config).code == "ds_config_conflict"


def test_auto_values_stand_for_the_default() -> None:
    file_config = {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "bf16": {"enabled": "auto"},
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
    }
    assert build(file_config=file_config) == default_ds_config(3, 4)


def test_fp16_takes_the_place_of_the_default_bf16() -> None:
    assert "bf16" not in build("fp16.enabled=true")
    assert "bf16" not in build(file_config={"fp16": {"enabled": True}})


def test_the_micro_batch_is_the_option_s_else_the_file_s_else_the_default() -> None:
    in_file = {"train_micro_batch_size_per_gpu": 8}
    assert resolve_micro_batch({}, None, 4) == 4
    assert resolve_micro_batch({}, 2, 4) == 2
    assert resolve_micro_batch(in_file, None, 4) == 8
    assert resolve_micro_batch(in_file, 8, 4) == 8
    with pytest.raises(CaptureError, match="--micro-batch is 2"):
        resolve_micro_batch(in_file, 2, 4)
    with pytest.raises(CaptureError, match="whole number above 0"):
        resolve_micro_batch({"train_micro_batch_size_per_gpu": "8"}, None, 4)


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b'{"a": 1,}', "ds_config_json_invalid", "line 1, column 9"),
        (b"[1]", "ds_config_json_invalid", "a JSON list"),
        (b'{"a": 1, "a": 2}', "ds_config_json_invalid", "twice"),
        (b'{"a": "\xff"}', "ds_config_json_invalid", "byte 7"),
        (None, "ds_config_unreadable", "No such file"),
    ],
    ids=["syntax", "list", "duplicate", "encoding", "missing"],
)
def test_a_file_that_is_no_configuration_is_refused(
    tmp_path: Path, content: bytes | None, code: str, said: str
) -> None:
    path = tmp_path / "ds.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CaptureError, match=said) as caught:
        read_ds_config(path)
    assert caught.value.code == code


def test_keys_with_a_side_effect_on_the_measurement_come_with_a_caveat() -> None:
    assert list_caveats(build()) == []
    assert "synchronises" in list_caveats(build("wall_clock_breakdown=true"))[0]
    assert "no effect" in list_caveats(build("activation_checkpointing.partition_activations=true"))[0]


def test_the_keys_listed_for_paper_are_those_of_deepspeed() -> None:
    config = importlib.import_module("deepspeed.runtime.zero.config")
    offload = importlib.import_module("deepspeed.runtime.zero.offload_config")
    precision = importlib.import_module("deepspeed.runtime.precision_config")
    classes = {
        "zero_optimization": config.DeepSpeedZeroConfig,
        "zero_optimization.offload_param": offload.DeepSpeedZeroOffloadParamConfig,
        "zero_optimization.offload_optimizer": offload.DeepSpeedZeroOffloadOptimizerConfig,
        "bf16": precision.DeepSpeedBF16Config,
        "fp16": precision.DeepSpeedFP16Config,
    }
    fields = {name: kind.model_fields.items() for name, kind in classes.items()}
    assert {name: {*keys} for name, keys in SECTIONS.items()} == {
        name: {key for key, _ in items} | {field.alias for _, field in items if field.alias}
        for name, items in fields.items()
    }
