"""Gathers of real captures at stage 3: the committed one, and those on this machine alone."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.labels import is_label
from zerotrace.model import Analysis

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "captures"

#: Run -> prefetches a step. Each refreshes 290 persisted parameters, one at a time.
PREFETCHES = {
    ROOT / "traces" / "stage3": 15,
    SHARED / "pcie" / "stage3": 16,
    SHARED / "pcie" / "stage3_live1e8": 193,
    SHARED / "nvlink" / "stage3": 16,
}
REFRESHES = 290

Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """A capture, analysed once for all tests."""

    path: Path
    out: Path
    analysis: Analysis
    rows: Rows


@pytest.fixture(scope="module", params=PREFETCHES, ids=lambda run: f"{run.parent.name}/{run.name}")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    path: Path = request.param
    if not path.is_dir():
        pytest.skip(f"{path.parent.name}/{path.name} is not on this machine")
    return analysed(path, tmp_path_factory.mktemp("analysed") / "a")


def analysed(path: Path, out: Path) -> Run:
    analysis, folder, _ = analyze([path], out, AnalyzeOptions(hta=False))
    return Run(path, folder, analysis, pq.read_table(folder / "gathers.parquet").to_pylist())


def without_labels(run: Path, folder: Path) -> Path:
    """The traces of a run with every label taken out."""
    folder.mkdir()
    for path in run.glob("rank_*.pt.trace.json.gz"):
        document = msgspec.json.decode(gzip.decompress(path.read_bytes()))
        document["traceEvents"] = [event for event in document["traceEvents"] if not is_label(str(event.get("name")))]
        (folder / path.name.removesuffix(".gz")).write_bytes(msgspec.json.encode(document))
    return folder


def test_every_gather_of_a_capture_is_found_and_closes(run: Run) -> None:
    analysis, rows = run.analysis, run.rows
    count = Counter((row["rank"], row["step"], row["kind"]) for row in rows)
    steps = {(window.rank, window.step) for window in analysis.windows}
    want = {(*step, "prefetch"): PREFETCHES[run.path] for step in steps} | {
        (*step, "refresh"): REFRESHES for step in steps
    }
    assert count == want
    assert all(row["num_collectives"] == 1 and row["gather_ns"] == row["end_ns"] - row["start_ns"] for row in rows)
    assert all(row["hidden_ns"] + row["exposed_ns"] == row["gather_ns"] for row in rows)
    assert all(row["transfer_ns"] + row["wait_ns"] == row["gather_ns"] for row in rows)
    assert all(row["need_ns"] >= row["end_ns"] and row["need_module"] for row in rows if row["kind"] == "prefetch")
    assert analysis.gathers is not None and analysis.gathers.num_persisted == REFRESHES


def test_hidden_time_of_gathers_is_that_of_their_rows_under_compute(run: Run) -> None:
    """A second reading: every all-gather row of the trace against every compute row, one by one."""
    columns = ["start_ns", "dur_ns", "category", "collective"]
    events = pq.ParquetFile(run.out / "events" / "rank=0" / "part-0.parquet").read(columns).to_pylist()
    compute = sorted(
        (event["start_ns"], event["start_ns"] + event["dur_ns"]) for event in events if event["category"] == "compute"
    )
    hidden = 0
    for event in events:
        if event["category"] != "comm" or "gather" not in (event["collective"] or ""):
            continue
        reached, end = event["start_ns"], event["start_ns"] + event["dur_ns"]
        for low, high in compute:
            if low >= end:
                break
            if high > reached:
                hidden += min(high, end) - max(low, reached)
                reached = min(high, end)
    assert sum(row["hidden_ns"] for row in run.rows if row["rank"] == 0) == hidden


def test_inference_without_labels_finds_kind_phase_and_need(run: Run, tmp_path: Path) -> None:
    labelled, bare = run.rows, analysed(without_labels(run.path, tmp_path / "bare"), tmp_path / "b").rows
    inferred = {(row["rank"], row["start_ns"]): row for row in bare}
    assert len(inferred) == len(labelled)
    same = [
        all(row[name] == inferred[row["rank"], row["start_ns"]][name] for name in ("kind", "phase", "need_ns"))
        for row in labelled
    ]
    for kind in ("prefetch", "refresh"):
        right = [hit for hit, row in zip(same, labelled) if row["kind"] == kind]
        assert sum(right) >= 0.95 * len(right)
    assert all(row["inferred"] for row in bare)


@pytest.mark.parametrize("stage", ["stage0", "stage1", "stage2"])
def test_lower_stages_say_why_they_have_no_gathers(stage: str, tmp_path: Path) -> None:
    analysis, folder, _ = analyze([ROOT / "traces" / stage], tmp_path / "a", AnalyzeOptions(hta=False))
    assert analysis.gathers is None and not (folder / "gathers.parquet").exists()
    assert analysis.no_gathers is not None and stage[-1] in analysis.no_gathers


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared captures are not on this machine")
@pytest.mark.parametrize("capture", ["pcie/stage0", "pcie/stage1", "pcie/stage2", "nvlink/stage2"])
def test_lower_stages_are_told_without_labels_and_manifest(capture: str, tmp_path: Path) -> None:
    analysis, _, _ = analyze([SHARED / capture], tmp_path / "a", AnalyzeOptions(hta=False))
    assert analysis.gathers is None and analysis.no_gathers is not None
