"""The windows by themselves: their order and files, and what of them needs CUDA, on stand-ins."""

from __future__ import annotations

import gzip
import json
import pickle
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from zerotrace.capture import device, memory, snapshot
from zerotrace.capture.handoff import SessionPlan
from zerotrace.capture.labels import LabelHooks
from zerotrace.capture.memory import MemoryWindow
from zerotrace.capture.plan import WINDOWS, choose_steps
from zerotrace.capture.progress import PHASES
from zerotrace.capture.schedule import build_windows
from zerotrace.capture.trace import Activities
from zerotrace.capture.windows import DetailedWindow, LabelledWindow, LightWindow, SettleWindow


class Engine:
    def __init__(self) -> None:
        self.module = torch.nn.Linear(2, 2)


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """One process without a process group."""
    monkeypatch.setattr(torch.distributed, "barrier", lambda: None)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(device, "is_cuda", lambda: False)


def plan(folder: Path, **changes: int) -> SessionPlan:
    counts = {"num_warmup": 1, "num_timed": 2, "num_labelled": 2, "num_light": 1, "num_profiled": 1, "num_memory": 1}
    return SessionPlan(trace_folder=str(folder), work_folder=str(folder), **(counts | changes))


def test_windows_run_in_the_order_in_which_none_disturbs_another(tmp_path: Path) -> None:
    windows = build_windows(plan(tmp_path), 0, Engine(), LabelHooks(Engine()))
    phases = [window.phase for window in windows]
    assert phases == [
        "warmup", "timed", "labelled", "light-settle", "light", "detailed-settle", "detailed", "memory",
    ]  # fmt: skip
    # The launcher sorts ranks by these.
    assert sorted(phases, key=PHASES.index) == phases


def test_a_window_without_steps_is_left_out_with_its_settling_step(tmp_path: Path) -> None:
    windows = build_windows(plan(tmp_path, num_light=0, num_memory=0), 0, Engine(), LabelHooks(Engine()))
    assert [window.phase for window in windows] == ["warmup", "timed", "labelled", "detailed-settle", "detailed"]


@pytest.mark.parametrize(
    ("kind", "windows", "counts"),
    [
        ("cuda", WINDOWS, (15, 15, 2, 2, 1)),
        ("cpu", WINDOWS, (15, 15, 0, 2, 1)),
        ("cuda", ("timed",), (15, 0, 0, 0, 0)),
        ("cuda", ("light", "memory"), (0, 0, 2, 0, 1)),
        ("cuda", ("detailed",), (0, 0, 0, 2, 0)),
    ],
)
def test_chosen_windows_have_their_steps(kind: str, windows: tuple[str, ...], counts: tuple[int, ...]) -> None:
    steps = choose_steps(kind, timed=15, profiled=2, windows=windows)
    found = (steps.num_timed, steps.num_labelled, steps.num_light, steps.num_profiled, steps.num_memory)
    assert found == counts


def test_steps_without_and_with_labels_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    window = LabelledWindow(2, LabelHooks(engine))
    assert window.num_steps == 4
    window.start()
    hooked = []
    for step in range(7, 11):
        window.begin_step(step)
        hooked.append(bool(engine.module._forward_hooks))
        engine.module(torch.ones(2))
        window.end_step()
    window.finish()
    assert hooked == [False, True, False, True]
    assert not engine.module._forward_hooks
    without, with_labels = window.records(7, (10, 20, 30, 40))
    assert (without.kind, without.first_step, without.stride, without.step_ns) == ("unlabelled", 7, 2, (10, 30))
    assert (with_labels.kind, with_labels.first_step, with_labels.step_ns) == ("labelled", 8, (20, 40))


def test_the_light_trace_lies_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A CPU has no device activities: what is recorded here does not matter.
    monkeypatch.setattr(LightWindow, "activities", Activities.HOST_AND_DEVICE)
    window = LightWindow(1, tmp_path / "light" / "rank_0.pt.trace.json.gz")
    SettleWindow(window).start()
    window.start()
    window.begin_step(3)
    torch.ones(2).sum()
    window.end_step()
    window.finish()
    assert window.files == {"light_trace_file": "light/rank_0.pt.trace.json.gz"}
    names = trace_names(tmp_path / "light" / "rank_0.pt.trace.json.gz")
    assert "aten::sum" in names
    assert not any(name.startswith(("ProfilerStep", "zt1:")) for name in names)
    assert [path.name for path in tmp_path.iterdir()] == ["light"]


def test_a_trace_names_neither_machine_nor_folder_and_the_working_folder_stays(tmp_path: Path) -> None:
    folder = tmp_path / 'a "b\udcff'
    folder.mkdir()
    window = DetailedWindow(1, folder / "rank_0.pt.trace.json.gz", LabelHooks(Engine()), host=7)
    SettleWindow(window).start()
    window.start()
    window.begin_step(3)
    torch.ones(2).sum()
    window.end_step()
    seen: set[str] = set()
    done = threading.Event()

    def look() -> None:
        while not done.is_set():
            seen.add(str(Path.cwd()))

    looking = threading.Thread(target=look)
    looking.start()
    window.finish()
    done.set()
    looking.join()
    assert len(seen) == 1
    with gzip.open(folder / "rank_0.pt.trace.json.gz") as file:
        text = file.read().decode()
    trace = json.loads(text)
    assert trace.get("host_name", "host-7") == "host-7"
    assert trace["traceName"] == "rank_0.pt.trace.json"
    assert "aten::sum" in {event.get("name") for event in trace["traceEvents"]}
    assert f'"{socket.gethostname()}"' not in text
    assert "/proc/self" not in text


def test_the_detailed_trace_has_steps_and_labels_and_the_model_is_as_before(tmp_path: Path) -> None:
    engine = Engine()
    window = DetailedWindow(2, tmp_path / "rank_0.pt.trace.json.gz", LabelHooks(engine))
    SettleWindow(window).start()
    engine.module(torch.ones(2))
    window.start()
    for step in (5, 6):
        window.begin_step(step)
        engine.module(torch.ones(2))
        window.end_step()
    window.finish()
    names = trace_names(tmp_path / "rank_0.pt.trace.json.gz")
    assert [name for name in names if name.startswith(("ProfilerStep", "zt1:"))] == [
        "ProfilerStep#5", "zt1:forward module=", "ProfilerStep#6", "zt1:forward module=",
    ]  # fmt: skip
    assert not engine.module._forward_hooks
    assert [path.name for path in tmp_path.iterdir()] == ["rank_0.pt.trace.json.gz"]


def test_owners_and_snapshot_are_of_one_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    allocated = iter((1000, 400))
    blocks = {"segments": [], "device_traces": []}
    monkeypatch.setattr(device, "is_cuda", lambda: True)
    monkeypatch.setattr(device, "synchronize", lambda: None)
    monkeypatch.setattr(device, "reset_peak_memory", lambda: calls.append("reset peak"))
    monkeypatch.setattr(device, "current", lambda: torch.device("cuda", 0))
    gauges = device.MemoryGauges(resident_bytes=900, peak_bytes=2000, reserved_bytes=4096, device_used_bytes=5000)
    monkeypatch.setattr(device, "read_memory", lambda: gauges)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: next(allocated))
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: calls.append("clear"), raising=False)

    def history(**options: Any) -> None:
        calls.append(f"history {options['enabled']}")

    monkeypatch.setattr(torch.cuda.memory, "_record_memory_history", history)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: blocks)
    window = MemoryWindow(1, Engine(), tmp_path / "rank_0.owners.json", tmp_path / "rank_0.snapshot.pickle.gz")
    window.start()
    window.begin_step(7)
    window.end_step()
    window.finish()
    assert calls == ["clear", "history all", "reset peak", "history None"]
    owners = json.loads((tmp_path / "rank_0.owners.json").read_text())
    assert (owners["step"], owners["workspace_bytes"], owners["allocated_bytes"]) == (7, 600, 900)
    assert {storage["holder"] for storage in owners["storages"]} == {"module.weight", "module.bias"}
    with gzip.open(tmp_path / "rank_0.snapshot.pickle.gz") as file:
        assert pickle.load(file) == blocks
    assert window.files == {"owners_file": "rank_0.owners.json", "snapshot_file": "rank_0.snapshot.pickle.gz"}


def test_stand_ins_have_the_signatures_of_torch() -> None:
    import inspect

    inspect.signature(torch.cuda.memory._record_memory_history).bind(enabled="all", context="all", stacks="python")
    inspect.signature(torch.cuda.memory._snapshot).bind()
    assert memory.take_snapshot is snapshot.take_snapshot


def trace_names(path: Path) -> list[str]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = [event for event in json.load(file)["traceEvents"] if event["ph"] == "X"]
    return [event["name"] for event in sorted(events, key=lambda event: event["ts"])]
