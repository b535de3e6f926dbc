"""How `--engine auto` finds what trains, and counts its steps: on one rank, in this process."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from zerotrace.capture import after_import
from zerotrace.capture.attach_torch import TorchWatch
from zerotrace.capture.engine_facts import count_params, describe_engine
from zerotrace.capture.torch_program import ProgramEngine, as_engine, count_models_beside, find_program


@pytest.fixture(autouse=True)
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.fixture
def found() -> Iterator[list[tuple[ProgramEngine, int]]]:
    """What a watch over torch's optimizers finds."""
    engines: list[tuple[ProgramEngine, int]] = []
    backward = torch.autograd.backward
    watch = TorchWatch(lambda engine, num_models: engines.append((engine, num_models)))
    watch.install(importlib.import_module("torch.optim.optimizer"))
    yield engines
    watch.remove()
    torch.autograd.backward = backward


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_model_is_the_one_whose_parameters_the_optimizer_holds(found: list[Any]) -> None:
    plain, first, second = nn.Linear(4, 4), DistributedDataParallel(nn.Linear(4, 4)), nn.Linear(4, 4)
    wrapped = DistributedDataParallel(second)
    train(plain, sgd(plain))
    assert found == []
    optimizer = sgd(second)
    train(wrapped, optimizer)
    assert [(engine.parallel, engine.module, number) for engine, number in found] == [(wrapped, second, 1)]
    # It is looked for no longer.
    train(first, sgd(first))
    assert len(found) == 1


def test_models_that_another_optimizer_updates_are_counted() -> None:
    generator, judge = DistributedDataParallel(nn.Linear(4, 4)), DistributedDataParallel(nn.Linear(4, 4))
    frozen = DistributedDataParallel(nn.Linear(4, 4))
    frozen.module.requires_grad_(requires_grad=False)
    assert count_models_beside(ProgramEngine(generator, sgd(generator))) == 1
    both = torch.optim.SGD([*generator.parameters(), *judge.parameters()], lr=0.1)
    assert count_models_beside(ProgramEngine(generator, both)) == 0


def test_parts_of_the_model_that_another_optimizer_updates_are_no_models() -> None:
    model = nn.Sequential(*(DistributedDataParallel(nn.Linear(4, 4)) for _ in range(3)))
    engine, _ = find_program(torch.optim.SGD([*model[0].parameters(), *model[2].parameters()], lr=0.1))
    assert engine is not None
    assert engine.parallel is model
    assert count_models_beside(engine) == 0


def test_a_model_is_found_that_the_program_has_taken_out_of_the_search_for_garbage() -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    gc.freeze()
    try:
        engine, _ = find_program(sgd(model))
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
    assert engine is not None
    assert engine.parallel is model


class Master(torch.optim.Optimizer):
    """An optimizer around another one, as those of mixed precision are."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=0.1)

    def step(self) -> None:  # type: ignore[override]
        self.inner.step()


@pytest.mark.filterwarnings("error:Seems like")
@pytest.mark.parametrize("scheduled", ["before", "after", "never"])
def test_each_step_of_the_outermost_optimizer_is_counted_once(found: list[Any], scheduled: str) -> None:
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = Master(model.parameters())
    if scheduled == "before":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train(model, optimizer)
    engine, _ = found[0]
    assert engine.optimizer is optimizer
    steps: list[int] = []
    engine.count_steps(lambda: steps.append(1))
    if scheduled == "after":
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for number in range(3):
        before = model.module.weight.detach().clone()
        train(model, optimizer)
        assert not torch.equal(before, model.module.weight)
        assert len(steps) == number + 1
        if scheduled != "never":
            scheduler.step()


def test_a_step_that_failed_hides_none_of_those_after_it(found: list[Any]) -> None:
    class Failing(torch.optim.SGD):
        def step(self) -> None:  # type: ignore[override]
            raise ValueError("no step")

    failing = Failing([nn.Parameter(torch.ones(1))], lr=0.1)
    model = DistributedDataParallel(nn.Linear(4, 4))
    for _ in range(2):
        with pytest.raises(ValueError, match="no step"):
            failing.step()
    optimizer = sgd(model)
    train(model, optimizer)
    train(model, optimizer)
    assert [engine.parallel for engine, _ in found] == [model]


def test_a_model_whose_blocks_alone_are_sharded_is_found_as_a_whole() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    holder = nn.ModuleDict({"model": model, "other": nn.Linear(2, 2)})
    for layer in (model[0], model[1]):
        fully_shard(layer, mesh=init_device_mesh("cpu", (1,)))
    engine, number = find_program(sgd(model))
    assert engine is not None
    assert (engine.parallel, engine.module, number) == (model, model, 1)
    facts = describe_engine(engine)
    assert facts is not None and facts.name == "fsdp2"
    assert count_params(holder["model"]) == 2 * 20 + 10


def test_of_two_models_of_one_optimizer_the_larger_is_taken_and_both_are_counted() -> None:
    small, large = (DistributedDataParallel(nn.Linear(4, width)) for width in (2, 8))
    engine, number = find_program(torch.optim.SGD([*small.parameters(), *large.parameters()], lr=0.1))
    assert engine is not None
    assert (engine.parallel, number) == (large, 2)


def test_a_model_in_ddp_can_stand_for_an_engine_and_other_things_stay_what_they_are() -> None:
    wrapped, plain = DistributedDataParallel(nn.Linear(4, 4)), object()
    assert as_engine(plain) is plain
    engine = as_engine(wrapped)
    assert (engine.parallel, engine.module, engine.optimizer) == (wrapped, wrapped.module, None)


def test_a_module_that_is_there_is_patched_at_once_and_one_that_is_not_on_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "imported_late.py").write_text("value = 1\n")
    seen: list[str] = []
    for name in ("json", "imported_late"):
        after_import.after_import(name, lambda module: seen.append(module.__name__))
    assert seen == ["json"]
    importlib.import_module("imported_late")
    assert seen == ["json", "imported_late"]
