"""The hooks by themselves: placed, taken away, and without effect on what they watch."""

from __future__ import annotations

import types
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from zerotrace.capture.hooks import Hooks
from zerotrace.capture.marks import Marker
from zerotrace.capture.module_labels import ModuleLabels
from zerotrace.capture.snapshot import clean_snapshot, source_name


class Log(Marker):
    """Keeps what would be written: ``+name`` when a label is opened, ``-name`` when it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.recording = True
        self._enter = self._note
        self._exit = lambda name: self.lines.append(f"-{name}")

    def _note(self, name: str) -> str:
        short = name.removeprefix("zt1:").replace("module=", "")
        self.lines.append(f"+{short}")
        return short


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(3, 3)
        self.act = torch.nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.act(self.fc(x))


class Model(torch.nn.Module):
    def __init__(self, recompute: bool = False) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(4, 3)
        self.block = Block()
        self.recompute = recompute

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        x = checkpoint(self.block, x, use_reentrant=False) if self.recompute else self.block(x)
        # In place, on the output of a module: torch's own full backward hooks forbid this.
        x *= 2
        return x.sum()


def run(model: Model, log: Log | None) -> dict[str, torch.Tensor]:
    if log is not None:
        labels = ModuleLabels(log)
        hooks = Hooks()
        labels.install(model, hooks)
    model(torch.tensor([0, 1, 3])).backward()
    if log is not None:
        labels.end_backward()
        hooks.remove()
    return {name: param.grad for name, param in model.named_parameters() if param.grad is not None}


@pytest.mark.parametrize("recompute", [False, True])
def test_modules_are_marked_forward_and_backward_and_gradients_stay_the_same(recompute: bool) -> None:
    torch.manual_seed(1)
    model = Model(recompute)
    expected = {name: grad.clone() for name, grad in run(model, None).items()}
    model.zero_grad()
    log = Log()
    found = run(model, log)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    again = [line for line in log.lines if "recompute" in line]
    assert again[:1] == (["+forward recompute=1 block"] if recompute else [])
    lines = [line for line in log.lines if "recompute" not in line]
    assert lines == [
        "+forward ", "+forward words", "-forward words", "+forward block", "+forward block.fc", "-forward block.fc",
        "+forward block.act", "-forward block.act", "-forward block", "-forward ",
        "+backward block.act", "-backward block.act", "+backward block.fc", "-backward block.fc",
        "+backward words", "-backward words",
    ]  # fmt: skip


def test_no_hook_stays_behind() -> None:
    model = Model()
    run(model, Log())
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks


def test_a_compiled_model_is_left_alone() -> None:
    model = Model()
    model.block._compiled_call_impl = lambda x: x  # type: ignore[assignment]
    hooks = Hooks()
    ModuleLabels(Log()).install(model, hooks)
    assert hooks.missing == {"modules": "the model is compiled"}


class Thing:
    def old_name(self, value: int) -> int:
        return value + 1


def double(original: Any) -> Any:
    return lambda *args: 2 * original(*args)


def test_a_function_is_found_by_any_of_its_names_and_put_back() -> None:
    thing, hooks = Thing(), Hooks()
    hooks.wrap("add", thing, ("new_name", "old_name"), double)
    assert thing.old_name(1) == 4
    hooks.remove()
    assert thing.old_name(1) == 2
    assert vars(thing) == {}
    assert hooks.installed == ["add"]


def test_classes_and_modules_get_their_own_function_back() -> None:
    module = types.ModuleType("module")
    module.work = lambda: 1  # type: ignore[attr-defined]
    before = module.work, vars(Thing)["old_name"]
    hooks = Hooks()
    hooks.wrap("work", module, ("work",), double)
    hooks.wrap("add", Thing, ("old_name",), double)
    assert (module.work(), Thing().old_name(1)) == (2, 4)
    hooks.remove()
    assert (module.work, vars(Thing)["old_name"]) == before


def test_a_function_that_is_not_there_is_accounted_for() -> None:
    hooks = Hooks()
    hooks.wrap("gather", Thing(), ("_Coordinator__all_gather_params", "gather"), double)
    assert hooks.missing == {"gather": "Thing has no all_gather_params or gather"}
    assert hooks.installed == []


def test_a_snapshot_names_no_machine(tmp_path: Any) -> None:
    package = tmp_path / "tool" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    shared = [{"filename": str(package / "work.py"), "name": "run", "line": 3}]
    snapshot = {
        "segments": [{"blocks": [{"frames": shared}], "frames": shared}],
        "device_traces": [[{"frames": [{"filename": "/x/lib/python3.11/site-packages/torch/optim/adamw.py"}]}]],
    }
    cleaned = clean_snapshot(snapshot)
    assert cleaned["segments"][0]["blocks"][0]["frames"][0]["filename"] == "tool/inner/work.py"
    assert cleaned["device_traces"][0][0]["frames"][0]["filename"] == "torch/optim/adamw.py"
    assert source_name(str(tmp_path / "train.py")) == "train.py"
    assert source_name("<frozen runpy>") == "<frozen runpy>"
