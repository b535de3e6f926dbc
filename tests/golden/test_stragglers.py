"""Lateness on the committed captures, against a second, plain reading that shares no code with the first."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.golden.test_blocking import ns
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Stragglers, StragglerVerdict

TRACES = Path(__file__).resolve().parents[2] / "traces"

Row = dict[str, Any]

PARTS = ("compute", "copy", "comm", "host_bound", "rest")


def rows_of(path: Path) -> list[Row]:
    """Device rows on the absolute clock, with the return of the call that launched each."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    base = document["baseTimeNanoseconds"]
    events = [e for e in document["traceEvents"] if e.get("ph") == "X"]
    returned = {}
    for event in sorted(events, key=lambda e: -e["ts"]):  # the earliest call of a correlation stays
        if event["cat"] in ("cuda_runtime", "cuda_driver"):
            returned[event["args"].get("correlation")] = base + ns(event["ts"]) + ns(event["dur"])
    rows = []
    for event in events:
        if event["cat"] in ("kernel", "gpu_memcpy", "gpu_memset"):
            kind = "compute" if event["cat"] == "kernel" else "copy"
            kind = "comm" if "Collective name" in event["args"] else kind
            start = base + ns(event["ts"])
            rows.append({"kind": kind, "start": start, "end": start + ns(event["dur"]),
                         "launched": returned[event["args"]["correlation"]]})  # fmt: skip
    return sorted(rows, key=lambda row: row["start"])


def own_time(rows: list[Row], low: int, high: int) -> dict[str, int]:
    """What a device does in [low, high), walked from border to border; a row starts at ``high``."""
    near = [row for row in rows if row["end"] > low and row["start"] <= high]
    borders = sorted((min(max(row[edge], low), high), change, row["kind"]) for row in near
                     for edge, change in (("start", 1), ("end", -1)))  # fmt: skip
    first_launch: dict[int, int] = {}
    for row in near:
        first_launch[row["start"]] = min(row["launched"], first_launch.get(row["start"], row["launched"]))
    found, running, last = dict.fromkeys(PARTS, 0), dict.fromkeys(PARTS, 0), low
    for time, change, kind in [*borders, (high, 0, "rest")]:
        busy = next((one for one in ("compute", "comm", "copy") if running[one]), None)
        if busy is not None:
            found[busy] += time - last
        elif time > last:
            bound = min(max(first_launch[time], last), time) - last
            found["host_bound"] += bound
            found["rest"] += time - last - bound
        last = max(last, time)
        running[kind] += change
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Stragglers:
    """What ``analyze`` says of stage 3."""
    out = tmp_path_factory.mktemp("stage3") / "out"
    analysis, _, _ = analyze([TRACES / "stage3"], out, AnalyzeOptions(hta=False))
    assert analysis.stragglers is not None
    return analysis.stragglers


def test_stage3_is_what_a_second_reading_finds(found: Stragglers) -> None:
    ranks = [rows_of(TRACES / "stage3" / f"rank_{rank}.pt.trace.json.gz") for rank in range(2)]
    comm = [[row for row in rows if row["kind"] == "comm"] for rows in ranks]
    pairs = list(zip(*comm, strict=True))
    spreads = sorted(abs(one["end"] - other["end"]) for one, other in pairs)
    tie = spreads[math.ceil(0.9 * len(spreads)) - 1]
    assert (len(pairs), tie) == (found.num_collectives, found.tie_ns)
    late_ns, num_last, own = [0, 0], [0, 0], [dict.fromkeys(PARTS, 0) for _ in range(2)]
    for number, pair in enumerate(pairs):
        rank = int(pair[1]["start"] > pair[0]["start"])
        late = pair[rank]["start"] - pair[1 - rank]["start"]
        num_last[rank] += late > 0
        if not number:
            continue  # the first has no previous one; it is looked at below
        ends = [min(pairs[number - 1][r]["end"], pair[r]["start"]) for r in range(2)]
        if late - max(ends[rank] - ends[1 - rank], 0) <= tie or late <= tie:
            continue
        late_ns[rank] += late
        for part, time in own_time(ranks[rank], ends[rank], pair[rank]["start"]).items():
            own[rank][part] += time
    first = abs(pairs[0][0]["start"] - pairs[0][1]["start"])
    assert [one.num_last for one in found.ranks] == num_last
    assert [one.late_ns for one in found.ranks] == [late_ns[0] + first, late_ns[1]], "rank 0 is last at the first one"
    assert {part: getattr(found.ranks[1].own, f"{part}_ns") for part in own[1]} == own[1]


def test_stage3_is_bound_by_hosts_and_no_rank_is_a_straggler(found: Stragglers) -> None:
    assert found.verdict is StragglerVerdict.WITHIN_NOISE
    (late,) = [one for one in found.ranks if one.rank == found.rank]
    assert (late.rank, late.num_last, late.num_collectives, late.num_independent) == (1, 188, 308, 10)
    assert late.own.host_bound_ns is not None and late.before.host_bound_ns is not None
    assert (late.own.host_bound_ns - late.before.host_bound_ns) / late.late_ns > 0.95
    assert found.largest_ns == 120_387_363
