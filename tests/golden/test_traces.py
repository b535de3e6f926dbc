"""The committed captures, against a second, plain reading of the same files that shares no code with the first."""

from __future__ import annotations

import gzip
import json
import re
from decimal import Decimal
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.cli import main

TRACES = Path(__file__).resolve().parents[2] / "traces"
SHIPPED = ("stage0", "stage1", "stage2", "stage3", "single")
COMM = re.compile(r"nccl\w*Kernel", re.IGNORECASE)
KINDS = {"kernel": "compute", "gpu_memcpy": "copy", "gpu_memset": "copy"}


def nanoseconds(value: Decimal | int) -> int:
    scaled = Decimal(value) * 1000
    assert scaled == int(scaled)
    return int(scaled)


def walk(path: Path) -> dict[int, dict[str, int]]:
    """Each step by walking from border to border, counting what is open: slow, and with nothing to get wrong."""
    document: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    borders: list[tuple[int, int, str]] = []
    windows: dict[int, tuple[int, int]] = {}
    for event in document["traceEvents"]:
        if event.get("ph") != "X":
            continue
        start, end = nanoseconds(event["ts"]), nanoseconds(event["ts"]) + nanoseconds(event["dur"])
        if event["cat"] == "user_annotation" and event["name"].startswith("ProfilerStep#"):
            windows[int(event["name"].partition("#")[2])] = (start, end)
        elif event["cat"] in KINDS:
            args = event["args"]
            kind = "comm" if "Collective name" in args or COMM.match(event["name"]) else KINDS[event["cat"]]
            borders += [(start, 1, kind), (end, -1, kind)]
    return {step: count(sorted(borders), low, high) for step, (low, high) in windows.items()}


def count(borders: list[tuple[int, int, str]], low: int, high: int) -> dict[str, int]:
    totals = dict.fromkeys(("compute_ns", "comm_ns", "overlapped_ns", "exposed_ns", "copy_only_ns", "idle_ns"), 0)
    running = {"compute": 0, "comm": 0, "copy": 0}
    last = low
    for time, change, kind in [*borders, (high, 0, "copy")]:
        stretch = max(0, min(time, high) - max(last, low))
        compute, comm, copy = (running[name] > 0 for name in ("compute", "comm", "copy"))
        totals["compute_ns"] += stretch * compute
        totals["comm_ns"] += stretch * comm
        totals["overlapped_ns"] += stretch * (comm and compute)
        totals["exposed_ns"] += stretch * (comm and not compute)
        totals["copy_only_ns"] += stretch * (copy and not comm and not compute)
        totals["idle_ns"] += stretch * (not copy and not comm and not compute)
        last = max(last, time)
        running[kind] += change
    return totals | {"span_ns": high - low}


@pytest.mark.parametrize("run", SHIPPED)
def test_committed_trace_is_what_a_second_reading_finds(run: str, tmp_path: Path) -> None:
    analysis, _, _ = analyze([TRACES / run], tmp_path / "out", AnalyzeOptions(hta=False))
    for source in analysis.sources:
        second = walk(TRACES / run / source.file)
        for part in [part for part in analysis.partition if part.rank == source.rank]:
            want = second.pop(part.step)
            assert {name: getattr(part, name) for name in want} == want
        assert not second, "a step was left out"


@pytest.mark.parametrize("run", SHIPPED)
def test_the_readme_says_what_the_manifests_say(run: str) -> None:
    manifest = json.loads((TRACES / run / "manifest.json").read_text())
    readme = (TRACES / "README.md").read_text()
    alone = run == "single"
    assert (manifest["world_size"], manifest["model"]["num_params"]) == (1 if alone else 2, 774_090_240)
    assert all(version in readme for name, version in manifest["versions"].items() if name != "cuda")
    row = [
        run if alone else str(manifest["stage"]),
        *(f"{manifest['ranks'][0][f'{gauge}_bytes'] / 2**30:.3f}" for gauge in ("resident", "peak")),
    ]
    for kind in ("timed", "labelled", "light", "detailed", "memory"):
        steps = zip(*(w["step_ns"] for rank in manifest["ranks"] for w in rank["windows"] if w["kind"] == kind))
        row.append(f"{median(max(step) for step in steps) / 1e6:.0f}")
    assert f"| {' | '.join(row)} |" in readme


def test_the_table_of_the_study_is_what_compare_makes_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["compare", "--csv", *(str(TRACES / run) for run in SHIPPED)])
    assert ended.value.code == 0
    assert capsys.readouterr().out == (TRACES / "results.csv").read_text()
