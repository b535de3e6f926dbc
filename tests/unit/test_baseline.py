"""A run held against a single device: the study's figure, and what does not compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders import TraceBuilder
from tests.page.runs import MS, manifest
from zerotrace.analysis.run import AnalyzeOptions, Renderer, analyze
from zerotrace.errors import StoreError, ZerotraceError
from zerotrace.model import Analysis, RankRecord, WindowKind, WindowRecord

BF16 = {"bf16": {"enabled": True}}
ALONE = {"engine": "single", "stage": None, "ds_config": None, "world_size": 1}


def write_manifest(folder: Path, *step_ms: int, **changes: Any) -> None:
    fields: dict[str, Any] = {"ds_config": BF16, "world_size": 2, **changes}
    window = WindowRecord(kind=WindowKind.TIMED, first_step=5, step_ns=tuple(ms * MS for ms in step_ms))
    ranks = tuple(
        RankRecord(rank=rank, host=0, device="NVIDIA H200", windows=(window,)) for rank in range(fields["world_size"])
    )
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "manifest.json").write_bytes(msgspec.json.encode(manifest(**{"ranks": ranks, **fields})))


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """A run on two ranks that takes 250 ms, and a single device that takes 100 ms."""
    for rank in range(2):
        TraceBuilder(rank, 2).step(2, 0, 500).compute(100, 200).all_gather(150, 250).write(tmp_path / "runs" / "three")
    write_manifest(tmp_path / "runs" / "three", 200, 260, 250)
    write_manifest(tmp_path / "runs" / "single", 90, 100, 140, **ALONE)
    return tmp_path / "runs" / "three", tmp_path / "runs" / "single"


def analysed(run: Path, baseline: Path | None, **options: Any) -> tuple[Analysis, bool]:
    chosen = AnalyzeOptions(**{"hta": False, "jobs": 1, "baseline": baseline, **options})
    analysis, _, reused = analyze([run], options=chosen)
    return analysis, reused


def test_the_study_s_exposed_is_step_minus_baseline(runs: tuple[Path, Path]) -> None:
    verdict = analysed(*runs)[0].verdict
    assert (verdict.baseline_name, verdict.baseline_step_ns) == ("runs/single", 100 * MS)
    assert verdict.study_exposed_ns == 150 * MS
    # The trace's own figure stands as it is.
    assert verdict.exposed_ns is not None
    assert verdict.exposed_ns.max == 50_000
    stored = json.loads((runs[0] / "analysis" / "analysis.json").read_text())["verdict"]
    assert stored["study_exposed_ns"] == 150 * MS


def test_without_a_baseline_there_is_no_such_figure(runs: tuple[Path, Path]) -> None:
    analysed(runs[0], None)
    stored = json.loads((runs[0] / "analysis" / "analysis.json").read_text())["verdict"]
    assert [stored[name] for name in ("baseline_name", "baseline_step_ns", "study_exposed_ns")] == [None, None, None]


def test_a_step_below_the_baseline_is_negative(runs: tuple[Path, Path]) -> None:
    write_manifest(runs[1], 300, **ALONE)
    assert analysed(*runs)[0].verdict.study_exposed_ns == -50 * MS


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"micro_batch": 8}, "baseline_differs", "micro-batch 8, not 4"),
        ({"sequence": 512}, "baseline_differs", "tokens a sequence 512, not 1024"),
        ({"ds_config": {"fp16": {"enabled": True}}, "engine": "deepspeed"}, "baseline_differs", "precision fp16"),
        ({"world_size": 2}, "baseline_not_single", "a run of 2 ranks; expected a single device"),
        ({"ranks": ()}, "manifest_contradicts", "world_size is 1, and 1 of its ranks has no record"),
    ],
)
def test_other_work_is_refused_before_a_trace_is_read(
    runs: tuple[Path, Path], changes: dict[str, Any], code: str, said: str
) -> None:
    write_manifest(runs[1], 100, **{**ALONE, **changes})
    with pytest.raises(ZerotraceError, match=said) as caught:
        analysed(*runs)
    assert caught.value.code == code
    assert caught.value.hint
    assert not (runs[0] / "analysis").exists()


@pytest.mark.parametrize("which", [0, 1])
def test_a_run_without_timed_steps_is_refused(runs: tuple[Path, Path], which: int) -> None:
    write_manifest(runs[which], **(ALONE if which else {}))
    with pytest.raises(ZerotraceError, match=f"runs/{('three', 'single')[which]} has no timed window") as caught:
        analysed(*runs)
    assert caught.value.code == "no_timed_window"


def test_traces_without_a_manifest_have_no_step_to_hold_against_anything(runs: tuple[Path, Path]) -> None:
    (runs[0] / "manifest.json").unlink()
    with pytest.raises(ZerotraceError, match="runs/three has no manifest"):
        analysed(*runs)


def test_a_folder_that_is_no_capture_is_no_baseline(runs: tuple[Path, Path]) -> None:
    with pytest.raises(StoreError, match="no capture's folder"):
        analysed(runs[0], runs[0].parent)


def test_a_baseline_is_added_to_a_result_and_another_one_needs_force(runs: tuple[Path, Path]) -> None:
    run, single = runs
    analysed(run, None)
    assert analysed(run, single)[0].verdict.study_exposed_ns == 150 * MS
    assert analysed(run, single)[1]
    # The same name for another capture is another baseline.
    write_manifest(single, 120, **ALONE)
    with pytest.raises(StoreError, match=r"made with other options \(baseline: runs/single\)"):
        analysed(run, single)
    assert analysed(run, None)[1], "what is asked for without a baseline is there"
    assert analysed(run, single, force=True)[0].verdict.study_exposed_ns == 130 * MS


def test_completing_a_result_loses_nothing_that_is_in_it(runs: tuple[Path, Path]) -> None:
    run, single = runs
    drawn = Renderer(lambda *_: "<html>", ())
    analyze([run], options=AnalyzeOptions(hta=False, jobs=1), render=drawn)
    with pytest.raises(StoreError, match=r"holds more than is asked for \(report\)"):
        analysed(run, single)
    assert (run / "analysis" / "report.html").is_file()
    analyze([run], options=AnalyzeOptions(hta=False, jobs=1, baseline=single), render=drawn)
    assert analysed(run, None)[1]


def test_files_of_others_in_a_result_are_not_removed_by_completing_it(runs: tuple[Path, Path]) -> None:
    run, single = runs
    analysed(run, None)
    (run / "analysis" / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"holds more than is asked for \(notes.txt\)"):
        analysed(run, single)
    assert (run / "analysis" / "notes.txt").read_text() == "mine"
