"""FSDP2's gathers in the committed captures, against a count of its own annotations in plain Python."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.labels import is_label
from zerotrace.model import Analysis

TRACES = Path(__file__).resolve().parents[2] / "traces"
NUM_BLOCKS = 36

Row = dict[str, Any]
Stretch = tuple[int, int]


@dataclass(frozen=True)
class Run:
    path: Path
    analysis: Analysis
    rows: list[Row]
    """Of gathers.parquet."""

    @property
    def reshards(self) -> bool:
        return self.path.name == "fsdp2"


@pytest.fixture(scope="module", params=["fsdp2", "fsdp2-kept"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return analysed(TRACES / request.param, tmp_path_factory.mktemp("fsdp") / "out")


def analysed(path: Path, out: Path) -> Run:
    analysis, folder, _ = analyze([path], out, AnalyzeOptions(hta=False))
    return Run(path, analysis, pq.read_table(folder / "gathers.parquet").to_pylist())


def without_labels(run: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in run.glob("rank_*.pt.trace.json.gz"):
        document = json.loads(gzip.decompress(path.read_bytes()))
        document["traceEvents"] = [event for event in document["traceEvents"] if not is_label(event.get("name", ""))]
        (folder / path.name.removesuffix(".gz")).write_text(json.dumps(document))
    return folder


def test_every_group_is_gathered_once_a_pass(run: Run) -> None:
    blocks = [f"blocks.{number}" for number in range(NUM_BLOCKS)]
    for rank in (0, 1):
        of_rank = [row for row in run.rows if row["rank"] == rank]
        assert Counter(row["need_module"] for row in of_rank if row["phase"] == "forward") == Counter(["", *blocks])
        again = Counter(blocks) if run.reshards else Counter()
        assert Counter(row["need_module"] for row in of_rank if row["phase"] == "backward") == again
        # The root comes first; the host is at every block before the device is, or FSDP2 asks for it ahead.
        assert Counter(row["need_module"] for row in of_rank if row["kind"] == "demand") == Counter([""])
        assert {row["kind"] for row in of_rank} == {"demand", "prefetch"}
        assert all(row["inferred"] is False and row["slack_ns"] is not None for row in of_rank)


def test_a_prefetch_in_backward_is_made_in_the_turn_of_the_block_behind(run: Run) -> None:
    prefetched = [row for row in run.rows if row["phase"] == "backward"]
    assert bool(prefetched) is run.reshards
    for row in prefetched:
        number = int(row["need_module"].removeprefix("blocks."))
        assert row["module"] == ("" if number == NUM_BLOCKS - 1 else f"blocks.{number + 1}")


def test_hidden_ratios_of_blocks_agree_with_a_count_of_the_annotations(run: Run) -> None:
    for rank in (0, 1):
        counted = count_annotations(run.path / f"rank_{rank}.pt.trace.json.gz")
        found: dict[tuple[str, str], Stretch] = defaultdict(lambda: (0, 0))
        for row in run.rows:
            if row["rank"] == rank:
                hidden, whole = found[row["need_module"], row["phase"]]
                found[row["need_module"], row["phase"]] = (hidden + row["hidden_ns"], whole + row["gather_ns"])
        assert found == counted  # to the nanosecond, and so the ratios
        assert len(counted) == (2 * NUM_BLOCKS if run.reshards else NUM_BLOCKS) + 1


def test_the_annotations_alone_tell_what_the_labels_tell(run: Run, tmp_path: Path) -> None:
    bare = analysed(without_labels(run.path, tmp_path / "bare"), tmp_path / "out")
    names = ("rank", "kind", "phase", "module", "need_module", "need_ns", "gather_ns", "hidden_ns", "bytes", "slack_ns")
    assert [[row[name] for name in names] for row in bare.rows] == [[row[name] for name in names] for row in run.rows]


def count_annotations(path: Path) -> dict[tuple[str, str], Stretch]:
    """(group, pass) -> hidden and whole time of its all-gathers, nanoseconds."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=str, parse_int=str)
    events = [event for event in document["traceEvents"] if event.get("ph") == "X"]
    calls = [event for event in events if event["cat"] in ("cuda_runtime", "cuda_driver")]
    launched = {(call["args"].get("correlation"), call["tid"]): time_of(call)[0] for call in calls}
    kernels = [event for event in events if event["cat"] == "kernel"]
    compute = [time_of(kernel) for kernel in kernels if "nccl" not in kernel["name"].lower()]
    gathers = [kernel for kernel in kernels if "AllGather" in kernel["name"]]
    found: dict[tuple[str, str], Stretch] = defaultdict(lambda: (0, 0))
    for annotation in events:
        if annotation["cat"] != "user_annotation" or not re.fullmatch(
            r"FSDP::all_gather(?: \(.*\))?", annotation["name"]
        ):
            continue
        begin, end = time_of(annotation)
        when = [launched.get((kernel["args"]["correlation"], annotation["tid"]), -1) for kernel in gathers]
        (gather,) = [time_of(kernel) for kernel, moment in zip(gathers, when) if begin <= moment < end]
        group = annotation["name"].removeprefix("FSDP::all_gather").strip(" ()")
        key = (group, "backward" if is_in(annotation, events, "FSDP::pre_backward") else "forward")
        hidden, whole = found[key]
        found[key] = (hidden + shared(gather, compute), whole + gather[1] - gather[0])
    return found


def is_in(annotation: Row, events: list[Row], prefix: str) -> bool:
    begin, end = time_of(annotation)
    return any(
        event["name"].startswith(prefix) and time_of(event)[0] <= begin and end <= time_of(event)[1]
        for event in events
        if event["tid"] == annotation["tid"]
    )


def time_of(event: Row) -> Stretch:
    begin = nanoseconds(event["ts"])
    return begin, begin + nanoseconds(event["dur"])


def nanoseconds(microseconds: str) -> int:
    whole, _, part = microseconds.partition(".")
    return int(whole) * 1000 + int(part.ljust(3, "0"))


def shared(one: Stretch, others: list[Stretch]) -> int:
    """How much of one stretch the others cover together."""
    covered, reach = 0, one[0]
    for begin, end in sorted(others):
        begin, end = max(begin, reach), min(end, one[1])
        if end > begin:
            covered, reach = covered + end - begin, end
    return covered
