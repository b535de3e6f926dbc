"""DDP's reductions by themselves, one rank: labels where DDP launches, and none where it does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.capture.test_hooks import Log
from zerotrace.capture.ddp_buckets import read_buckets
from zerotrace.capture.ddp_labels import DdpLabels
from zerotrace.capture.engine_facts import describe_engine
from zerotrace.capture.hooks import Hooks
from zerotrace.capture.owners import find_owners, find_unlocated


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


class Holder:
    """An engine with DDP beside the model."""

    def __init__(self, **settings: Any) -> None:
        torch.manual_seed(1)
        self.module = torch.nn.Sequential(*(torch.nn.Linear(300, 300) for _ in range(3)))
        self.parallel = DistributedDataParallel(self.module, bucket_cap_mb=0.3, **settings)

    def step(self) -> None:
        self.parallel(torch.ones(2, 300)).sum().backward()


def grads(engine: Holder) -> list[torch.Tensor]:
    return [param.grad.clone() for param in engine.module.parameters() if param.grad is not None]


def labelled(engine: Holder, steps: int = 1) -> tuple[list[str], Hooks]:
    log, hooks = Log(), Hooks()
    labels = DdpLabels(log, engine.parallel, {id(param): name for name, param in engine.module.named_parameters()})
    labels.install(hooks)
    for _ in range(steps):
        engine.step()
    labels.end_step()
    hooks.remove()
    return log.lines, hooks


@pytest.mark.usefixtures("process_group")
def test_a_label_is_open_while_ddp_launches_a_bucket_and_no_longer() -> None:
    engine = Holder()
    for _ in range(3):
        engine.step()
    engine.module.zero_grad()
    engine.step()
    expected = grads(engine)
    engine.module.zero_grad()
    lines, hooks = labelled(engine)
    size = 300 * 300 + 300
    assert [line for line in lines if line.startswith("+")] == [
        f"+reduce params={n}.bias,{n}.weight n=2 elements={size} bytes={4 * size}" for n in (2, 1, 0)
    ]
    assert [line[0] for line in lines] == ["+", "-"] * 3
    assert hooks.installed == ["reduce"]
    assert hooks.missing == {}
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(grads(engine), expected))


@pytest.mark.usefixtures("process_group")
def test_gradients_that_are_only_accumulated_are_not_reduced() -> None:
    engine = Holder()
    for _ in range(3):
        engine.step()
    with engine.parallel.no_sync():
        assert labelled(engine)[0] == []
    assert len(labelled(engine, steps=2)[0]) == 2 * 2 * 3


@pytest.mark.usefixtures("process_group")
def test_buckets_that_are_not_settled_have_no_labels_and_a_reason() -> None:
    lines, hooks = labelled(Holder())
    assert lines == []
    assert "warm up longer" in hooks.missing["reduce"]
    lines, hooks = labelled(Holder(find_unused_parameters=True))
    assert lines == []
    assert "looks for unused parameters" in hooks.missing["reduce"]


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("view", [False, True])
def test_every_bucket_is_owned_once_whether_it_can_be_seen_or_not(view: bool) -> None:
    engine = Holder(gradient_as_bucket_view=view)
    first = find_unlocated(engine, "cpu")
    size = 4 * (300 * 300 + 300)
    # Before the first step there is one bucket.
    assert [(entry.owner.value, entry.bytes) for entry in first] == [("reduce_bucket", 3 * size)]
    for _ in range(3):
        engine.step()
    assert read_buckets(engine.parallel) is not None
    seen = [storage.bytes for storage in find_owners(engine) if storage.owner.value == "reduce_bucket"]
    hidden = [entry.bytes for entry in find_unlocated(engine, "cpu")]
    assert (seen, hidden) == (([size] * 3, []) if view else ([], [size] * 3))
    engine.module.zero_grad()
    assert [entry.bytes for entry in find_unlocated(engine, "cpu")] == [size] * 3


@pytest.mark.usefixtures("process_group")
def test_a_wrapped_model_is_an_engine_itself() -> None:
    facts = describe_engine(Holder(static_graph=True).parallel)
    assert facts is not None
    assert (facts.name, facts.stage, facts.micro_batch) == ("ddp", None, None)
    assert facts.settings is not None and facts.settings["static_graph"] is True
