"""What `--script` does to a call of deepspeed.initialize, without DeepSpeed."""

from __future__ import annotations

import importlib.util
import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from zerotrace.capture.attach import Attachment
from zerotrace.capture.handoff import AttachOrders, SessionPlan
from zerotrace.errors import CaptureError

CONFIG = {"train_batch_size": 8, "zero_optimization": {"stage": 2, "overlap_comm": True}}


class Model:
    def __init__(self, **marks: Any) -> None:
        self._marks = marks

    def parameters(self) -> list[Any]:
        return [SimpleNamespace(**self._marks)]


class FakeDeepSpeed(ModuleType):
    """Remembers the configuration that its ``initialize`` was given; the engine it returns cannot train."""

    def __init__(self) -> None:
        super().__init__("deepspeed")
        self.config: Any = None

        def initialize(
            args: Any = None, model: Any = None, optimizer: Any = None, config: Any = None, config_params: Any = None
        ) -> tuple[Any, None]:
            assert config_params is None
            assert getattr(args, "deepspeed_config", None) is None
            self.config = config
            return SimpleNamespace(optimizer=None), None

        self.initialize: Any = initialize


@pytest.fixture
def deepspeed(monkeypatch: pytest.MonkeyPatch) -> FakeDeepSpeed:
    module = FakeDeepSpeed()
    monkeypatch.setitem(sys.modules, "deepspeed", module)
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    return module


def attach(stage: int, **settings: Any) -> Attachment:
    plan = SessionPlan(num_warmup=1, num_timed=1, num_profiled=1)
    orders = AttachOrders(stage=stage, settings=tuple((key.replace("__", "."), v) for key, v in settings.items()))
    attachment = Attachment(plan, orders, leave=lambda: pytest.fail("it has left"))
    attachment.install()
    return attachment


@pytest.mark.parametrize("way", ["dict", "file", "config_params", "args", "args by position"])
def test_stage_and_keys_are_set_wherever_the_configuration_is_passed(
    deepspeed: FakeDeepSpeed, tmp_path: Path, way: str
) -> None:
    path = tmp_path / "ds.json"
    # DeepSpeed reads Hjson, which has comments.
    path.write_text("# a comment\n" + json.dumps(CONFIG))
    attach(3, zero_optimization__reduce_bucket_size=5)
    args = Namespace(deepspeed_config=str(path))
    if way == "dict":
        deepspeed.initialize(model=Model(), config=CONFIG)
    elif way == "file":
        deepspeed.initialize(model=Model(), config=str(path))
    elif way == "config_params":
        deepspeed.initialize(model=Model(), config_params=CONFIG)
    elif way == "args":
        deepspeed.initialize(args=args, model=Model())
    else:
        deepspeed.initialize(args, Model())
    assert deepspeed.config == {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 3, "overlap_comm": True, "reduce_bucket_size": 5},
    }
    assert CONFIG["zero_optimization"] == {"stage": 2, "overlap_comm": True}


def test_an_old_way_to_write_stage_1_means_what_it_means_to_deepspeed(deepspeed: FakeDeepSpeed) -> None:
    attach(3)
    deepspeed.initialize(model=Model(), config={"zero_optimization": True, "allgather_size": 7})
    assert deepspeed.config["zero_optimization"] == {"stage": 3, "allgather_bucket_size": 7}


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (None, "ds_config_unreadable", "ds.json', which the program passes to deepspeed.initialize, does not exist"),
        ("{", "ds_config_json_invalid", "is no valid Hjson"),
        ("[1]", "ds_config_json_invalid", "holds no object"),
        ('{"a": 1, "a": 2}', "ds_config_json_invalid", "'a' stands twice"),
        ('{"zero_optimization": null}', "ds_config_value", "zero_optimization is None"),
        ('{"zero_optimization": 3}', "ds_config_value", "zero_optimization is 3"),
    ],
)
def test_what_is_no_configuration_is_named(
    deepspeed: FakeDeepSpeed, tmp_path: Path, content: str | None, code: str, said: str
) -> None:
    path = tmp_path / "ds.json"
    if content is not None:
        path.write_text(content)
    attach(3)
    with pytest.raises(CaptureError) as caught:
        deepspeed.initialize(model=Model(), config=str(path))
    assert caught.value.code == code
    assert said in str(caught.value)
    assert caught.value.hint


def test_a_key_that_deepspeed_would_ignore_is_refused(deepspeed: FakeDeepSpeed) -> None:
    attach(3, optimizer__type="Foo")
    with pytest.raises(CaptureError, match="would ignore the section optimizer") as caught:
        deepspeed.initialize(model=Model(), optimizer=object(), config=CONFIG)
    assert caught.value.code == "setting_ignored"
    deepspeed.initialize(model=Model(), config=CONFIG)
    assert deepspeed.config["optimizer"] == {"type": "Foo"}


def test_a_model_built_under_zero_init_is_refused_at_another_stage_than_3(deepspeed: FakeDeepSpeed) -> None:
    attach(1)
    with pytest.raises(CaptureError, match=r"zero\.Init") as caught:
        deepspeed.initialize(model=Model(ds_id=4), config=CONFIG)
    assert caught.value.code == "stage_conflict"
    attach(2)
    deepspeed.initialize(model=Model(), config=CONFIG)


def test_a_refusal_that_the_program_catches_is_still_the_reason_it_ends_with(deepspeed: FakeDeepSpeed) -> None:
    attachment = attach(2)
    with pytest.raises(CaptureError):
        deepspeed.initialize(model=Model(), config={**CONFIG, "comms_logger": {"enabled": True}})
    with pytest.raises(CaptureError, match="comms_logger"):
        attachment.check_ended("train.py")


def test_an_engine_without_an_optimizer_is_none_to_measure(deepspeed: FakeDeepSpeed) -> None:
    attachment = attach(2)
    deepspeed.initialize(model=Model(), config=CONFIG)
    with pytest.raises(CaptureError, match=r"train\.py ended without a call of deepspeed\.initialize that returned"):
        attachment.check_ended("train.py")


@pytest.fixture
def no_deepspeed() -> Iterator[None]:
    """DeepSpeed as if it had not been imported, and its import as it was before."""
    before = sys.modules.pop("deepspeed", None)
    yield
    sys.modules.pop("deepspeed", None)
    if before is not None:
        sys.modules["deepspeed"] = before


@pytest.mark.usefixtures("no_deepspeed")
def test_looking_for_deepspeed_does_not_spoil_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "deepspeed.py").write_text("def initialize(model=None, config=None):\n    return (None,)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    attach(2)
    # As accelerate does, to see whether it is there.
    assert importlib.util.find_spec("deepspeed") is not None
    module = importlib.import_module("deepspeed")
    assert module.initialize.__qualname__.startswith("Attachment.")
    assert module.__spec__ is not None
    assert type(module.__spec__.loader).__name__ == "SourceFileLoader"
