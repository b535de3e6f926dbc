"""Blocking time by launches and by the waits of streams, on the committed captures: both agree, and the rest is named.

The figures below are what the two readings gave when they were first compared; a second, plain reading of the traces
that shares no code with the first confirms the queued ones.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import BlockingCheck

TRACES = Path(__file__).resolve().parents[2] / "traces"

#: run -> rank -> queued by launches, of it confirmed; sync by launches, of it confirmed, of it without record; ns.
AGREEMENT = {
    "stage0": {
        0: (51_761_348, 51_761_348, 0, 0, 0),
        1: (89_652_040, 89_652_040, 0, 0, 0),
    },
    "stage1": {
        0: (1_601_606, 0, 12_405_354, 9_067_336, 3_338_018),
        1: (64_579_520, 63_927_631, 28_916_821, 26_337_856, 2_578_965),
    },
    "stage2": {
        0: (9_119_081, 6_788_438, 40_086_959, 37_453_169, 2_633_790),
        1: (7_321_448, 5_032_201, 21_903_436, 19_495_430, 2_408_006),
    },
    "stage3": {
        0: (37_708_315, 37_225_149, 166_831_738, 161_852_055, 4_979_683),
        1: (1_879_360, 1_788_847, 6_131_977, 1_698_617, 4_433_360),
    },
}


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, BlockingCheck]:
    """What ``analyze`` says of each run."""
    found = {}
    for run in AGREEMENT:
        analysis, _, _ = analyze([TRACES / run], tmp_path_factory.mktemp(run) / "out", AnalyzeOptions(hta=False))
        assert analysis.blocking_check is not None
        found[run] = analysis.blocking_check
    return found


@pytest.mark.parametrize("run", AGREEMENT)
def test_both_readings_agree_but_for_what_is_named(run: str, checks: dict[str, BlockingCheck]) -> None:
    found = checks[run]
    assert {
        step.rank: (
            step.queued_ns,
            step.queued_confirmed_ns,
            step.sync_ns,
            step.sync_confirmed_ns,
            step.sync_unrecorded_ns,
        )
        for step in found.steps
    } == AGREEMENT[run]
    assert found.num_named_waits == 0, "CUDA 13 leaves out which stream a wait is for"
    assert all(step.sync_elsewhere_ns == 0 for step in found.steps)
    assert found.confirmed_ratio is not None
    assert found.confirmed_ratio > 0.87


def rows_of(path: Path) -> tuple[list[dict[str, Any]], tuple[int, int]]:
    """Device rows and waits with their launches, in integer nanoseconds after the first digit of the trace."""
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("ph") == "X"]
    calls = {}
    for event in sorted(events, key=lambda e: -e["ts"]):  # the earliest call of a correlation stays
        if event["cat"] in ("cuda_runtime", "cuda_driver"):
            calls[event["args"].get("correlation")] = event
    found = []
    for event in events:
        if event["cat"] not in ("kernel", "gpu_memcpy", "gpu_memset") and event["name"] != "Stream Wait Event":
            continue
        call = calls.get(event["args"]["correlation"])
        kind = "wait" if event["cat"] == "cuda_sync" else "copy" if event["cat"] != "kernel" else "compute"
        kind = "comm" if "Collective name" in event["args"] else kind
        found.append({"kind": kind, "stream": event["args"]["stream"], "start": ns(event["ts"]),
                      "end": ns(event["ts"]) + ns(event["dur"]), "launch": call and ns(call["ts"]),
                      "launched": call and ns(call["ts"]) + ns(call["dur"])})  # fmt: skip
    window = next(e for e in events if e["name"].startswith("ProfilerStep#") and e["cat"] == "user_annotation")
    return found, (ns(window["ts"]), ns(window["ts"]) + ns(window["dur"]))


def ns(microseconds: float) -> int:
    return int(microseconds) * 1000 + round((microseconds - int(microseconds)) * 1000)


def stretches(rows: list[dict[str, Any]], window: tuple[int, int]) -> Iterator[tuple[int, int, list[Any], Any]]:
    """Every stretch of exposed time between two borders: what communicates, and which compute kernel starts next."""
    compute = sorted((r for r in rows if r["kind"] == "compute"), key=lambda r: r["start"])
    comm = [r for r in rows if r["kind"] == "comm"]
    borders = {*window}
    for row in compute + comm:
        borders |= {row["start"], row["end"]} | ({row["launched"]} if row["kind"] == "compute" else set())
    cuts = sorted(b for b in borders if b is not None and window[0] <= b <= window[1])
    following, open_until = 0, -1
    for low, high in pairwise(cuts):
        while following < len(compute) and compute[following]["start"] <= low:
            open_until = max(open_until, compute[following]["end"])
            following += 1
        running = [r for r in comm if r["start"] <= low < r["end"]]
        if running and open_until <= low and following < len(compute):
            yield low, high, running, compute[following]


@pytest.mark.parametrize("run", AGREEMENT)
def test_a_plain_reading_confirms_the_queued_time(run: str, checks: dict[str, BlockingCheck]) -> None:
    steps = {step.rank: step for step in checks[run].steps}
    for rank, step in steps.items():
        rows, window = rows_of(TRACES / run / f"rank_{rank}.pt.trace.json.gz")
        waits = [(r["stream"], r["start"]) for r in rows if r["kind"] == "wait"]
        queued = confirmed = 0
        for low, high, running, kernel in stretches(rows, window):
            if kernel["launch"] is None or kernel["launched"] > low:
                continue
            queued += high - low
            told = [
                r["stream"] == kernel["stream"]
                or (
                    kernel["start"] >= r["end"]
                    and any(s == kernel["stream"] and r["launch"] < at < kernel["launch"] for s, at in waits)
                )
                for r in running
            ]
            confirmed += (high - low) * any(told)
        assert (queued, confirmed) == (step.queued_ns, step.queued_confirmed_ns)
