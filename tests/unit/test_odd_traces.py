"""Traces and folders that nobody should have, and that somebody has: a right figure, or a clear word."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.unit.test_ingest import assert_is_one_step, codes, one_step
from zerotrace.analysis.run import AnalyzeOptions, Renderer, analyze
from zerotrace.errors import StoreError, TraceError

PLAIN = AnalyzeOptions(hta=False, jobs=1)
PAGE = Renderer(lambda *_: "<html>", ["name"])


def run_of(tmp_path: Path, *traces: TraceBuilder) -> Path:
    for trace in traces:
        trace.write(tmp_path / "run")
    return tmp_path / "run"


# ------------------------------------------------------------------ what lies beside the traces


@pytest.mark.parametrize(
    ("name", "content"),
    [("train.log", "[2026-11-29 10:00:00,1] [INFO] [engine.py] step"), ("metrics.json", "[1, 2]"), ("x.json", "{}"),
     ("merged_all_ranks.json", '{"traceEvents": []}'), ("empty.json", ""), ("notes.json", "not json")],
)  # fmt: skip
def test_files_of_another_kind_are_skipped_and_named(tmp_path: Path, name: str, content: str) -> None:
    run = run_of(tmp_path, one_step())
    (run / name).write_text(content)
    analysis, _, _ = analyze([run], options=PLAIN)
    assert_is_one_step(analysis)
    skipped = [note.file for note in analysis.diagnostics if note.code == "file_skipped"]
    assert skipped == ([] if name == "train.log" and not skipped else [name])


@pytest.mark.parametrize("name", ["rank_0.json.tmp", "rank_0.json.partial", "rank_0.json.bak", "rank_0.json~"])
def test_unfinished_files_and_backups_are_no_traces(tmp_path: Path, name: str) -> None:
    run = run_of(tmp_path, one_step())
    (run / name).write_text(one_step().text()[:100])
    assert_is_one_step(analyze([run], options=PLAIN)[0])


@pytest.mark.parametrize("content", ["junk", "", "[1]"])
def test_a_file_that_is_named_like_a_rank_must_be_its_trace(tmp_path: Path, content: str) -> None:
    run = run_of(tmp_path, one_step(0, 2))
    (run / "rank_1.json").write_text(content)
    assert ("rank_failed", "rank_1.json") in [
        (note.code, note.file) for note in analyze([run], options=PLAIN)[0].diagnostics
    ]


def test_two_files_of_one_rank_are_both_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, one_step())
    one_step().write(run, "copy.json")
    with pytest.raises(TraceError, match=r"copy\.json and rank_0\.json both claim rank 0"):
        analyze([run], options=PLAIN)


def test_names_that_are_no_utf8_can_be_read_and_said(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/run\xe9"))
    one_step().write(folder, os.fsdecode(b"rank_0\xff.json"))
    analysis, where, _ = analyze([folder], options=PLAIN, render=PAGE)
    assert_is_one_step(analysis)
    assert "\\xff" in analysis.sources[0].file
    assert (where / "report.html").exists()


# ------------------------------------------------------------------ odd values


@pytest.mark.parametrize(
    "event",
    [
        {"name": None},
        {"args": {"device": 0, "stream": 7, "External id": [1]}},
        {"args": {"device": 0, "stream": 7, "External id": {"a": 1}, "correlation": "x" * 100_000}},
        {"args": {"device": 0, "stream": 7, "correlation": 2**70}},
        {"args": {"device": 0, "stream": 7, "Collective name": ""}},
    ],
)
def test_odd_fields_of_a_kernel_leave_its_time_in_the_figures(analyse: Analyse, event: dict[str, Any]) -> None:
    trace = TraceBuilder().step(2, 0, 500).all_gather(150, 250)
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 100, "dur": 100,
              "args": {"device": 0, "stream": 7}}  # fmt: skip
    assert_is_one_step(analyse(trace.event(**(kernel | event))))


@pytest.mark.parametrize("ts", [[1], True, "abc", 9007199254740992.4, 1e300])
def test_a_time_that_is_none_is_dropped_and_counted(analyse: Analyse, ts: Any) -> None:
    trace = one_step().event(ph="X", cat="kernel", name="k", pid=0, tid=7, ts=ts, dur=1, args={})
    trace.host("epoch", 1790857026123456.75, 1790857026123457.75)
    analysis = analyse(trace)
    assert analysis.partition[0].compute_ns in (100_000, 101_000)  # true is a number to JSON readers
    if ts is not True:
        assert "events_dropped" in codes(analysis)


def test_durations_of_centuries_do_not_wrap_around(analyse: Analyse) -> None:
    analysis = analyse(one_step().compute(300, 9e15))
    assert_is_one_step(analysis)
    assert "events_dropped" in codes(analysis)


@pytest.mark.parametrize("base", ["abc", [1], 2**63 - 1])
def test_a_base_time_that_is_none_is_said(analyse: Analyse, base: Any) -> None:
    analysis = analyse(one_step().with_metadata(baseTimeNanoseconds=base))
    assert_is_one_step(analysis)
    assert "base_time_invalid" in codes(analysis)


@pytest.mark.parametrize("device", [2**31, "gpu", -(2**40)])
def test_a_device_that_is_none_is_taken_as_the_first_and_said(analyse: Analyse, device: Any) -> None:
    analysis = analyse(TraceBuilder().step(2, 0, 500).compute(100, 200, device=device).all_gather(150, 250))
    assert_is_one_step(analysis)
    assert "device_unknown" in codes(analysis)


def test_a_billion_ranks_cost_nothing_to_miss(analyse: Analyse) -> None:
    start = time.perf_counter()
    (note,) = [n for n in analyse(one_step(0, 10**9)).diagnostics if n.code == "missing_ranks"]
    assert note.count == 10**9 - 1
    assert time.perf_counter() - start < 5


def test_a_rank_beyond_all_ranks_is_refused(analyse: Analyse) -> None:
    with pytest.raises(TraceError, match="rank 4294967301"):
        analyse(one_step(2**32 + 5))


def test_deep_nesting_is_an_error_and_no_traceback(tmp_path: Path) -> None:
    text = one_step().text()[:-1] + ', "x": ' + "[" * 100_000 + "]" * 100_000 + "}"
    (tmp_path / "rank_0.json").write_text(text)
    with pytest.raises(TraceError, match="nested too deeply"):
        analyze([tmp_path], options=PLAIN)


# ------------------------------------------------------------------ odd steps


def test_one_step_in_two_places_is_said(analyse: Analyse) -> None:
    analysis = analyse(TraceBuilder().step(2, 0, 1000).step(2, 5000, 5900).compute(100, 200).compute(5100, 5800))
    assert "step_annotated_twice" in codes(analysis)
    assert len(analysis.partition) == 1


def test_overlapping_windows_are_said(analyse: Analyse) -> None:
    assert "steps_overlap" in codes(analyse(TraceBuilder().step(2, 0, 600).step(3, 500, 900).compute(510, 590)))
    assert "steps_overlap" not in codes(analyse(TraceBuilder().step(2, 0, 500).step(3, 500, 900).compute(510, 590)))


def test_ranks_profiled_in_different_steps_are_said(analyse: Analyse) -> None:
    second = TraceBuilder(1, 2).step(10, 0, 500).compute(100, 200)
    assert "steps_differ" in codes(analyse(one_step(0, 2), second))


# ------------------------------------------------------------------ results that are there already


def change_trace(run: Path) -> None:
    TraceBuilder(0, 2).step(2, 0, 500).compute(100, 130).write(run)


def add_trace(run: Path) -> None:
    one_step(1, 2).write(run)


def add_manifest(run: Path) -> None:
    (run / "manifest.json").write_text('{"schema_version": "1.0", "stage": "three"}')


def fill_skipped(run: Path) -> None:
    one_step(1, 2).write(run, "later.json")


@pytest.mark.parametrize("change", [change_trace, add_trace, add_manifest, fill_skipped])
def test_no_stale_result_is_given_for_changed_inputs(tmp_path: Path, change: Any) -> None:
    run = run_of(tmp_path, one_step(0, 2))
    (run / "later.json").write_text("{}")
    analyze([run], options=PLAIN)
    change(run)
    with pytest.raises(StoreError, match=r"exists already, and it was made from other files|manifest"):
        analyze([run], options=PLAIN)


def test_files_of_equal_name_from_two_folders_are_told_apart(tmp_path: Path) -> None:
    files = [one_step(rank, 2).write(tmp_path / str(rank), "t.json") for rank in (1, 0)]
    out = tmp_path / "out"
    analyze(files, out, PLAIN)
    assert analyze(files, out, PLAIN)[2], "the same request again"
    TraceBuilder(1, 2).step(2, 0, 500).compute(100, 130).write(tmp_path / "1", "t.json")
    with pytest.raises(StoreError, match=r"1/t\.json"):
        analyze(files, out, PLAIN)


@pytest.mark.parametrize("lost", ["report.html", "partition.parquet", "events/rank=0/part-0.parquet"])
def test_a_result_that_lost_a_file_is_made_again(tmp_path: Path, lost: str) -> None:
    run = run_of(tmp_path, one_step())
    _, folder, _ = analyze([run], options=PLAIN, render=PAGE)
    (folder / lost).unlink()
    assert analyze([run], options=PLAIN, render=PAGE)[2] is False
    assert (folder / lost).exists()


def test_a_page_is_added_to_tables_of_the_same_traces(tmp_path: Path) -> None:
    run = run_of(tmp_path, one_step())
    _, folder, _ = analyze([run], options=PLAIN)
    analyze([run], options=PLAIN, render=PAGE)
    assert (folder / "report.html").exists()


def test_a_copied_run_does_not_go_by_the_name_of_the_first(tmp_path: Path) -> None:
    run = run_of(tmp_path, one_step())
    analyze([run], options=PLAIN)
    shutil.copytree(run, tmp_path / "copy")
    with pytest.raises(StoreError, match="the run"):
        analyze([tmp_path / "copy"], options=PLAIN)


def test_a_damaged_result_says_what_to_do(tmp_path: Path) -> None:
    run = run_of(tmp_path, one_step())
    _, folder, _ = analyze([run], options=PLAIN)
    (folder / "analysis.json").write_text("{}")
    with pytest.raises(StoreError, match=r"analysis\.json cannot be read") as caught:
        analyze([run], options=PLAIN)
    assert "--force" in (caught.value.hint or "")
    assert analyze([run], options=AnalyzeOptions(hta=False, jobs=1, force=True))[2] is False


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_ended_analysis_leaves_no_process_and_the_next_run_sweeps(tmp_path: Path, sig: signal.Signals) -> None:
    for rank in range(6):
        trace = one_step(rank, 6)
        for i in range(60_000):
            trace.host("aten::mm", i, i + 1)
        trace.write(tmp_path / "run")
    command = [
        sys.executable,
        "-m",
        "zerotrace",
        "analyze",
        str(tmp_path / "run"),
        "--no-hta",
        "--no-report",
        "--jobs",
        "2",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    watched = psutil.Process(process.pid)
    deadline = time.monotonic() + 30
    while len(workers := watched.children()) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(sig)
    process.wait(30)
    gone, alive = psutil.wait_procs(workers, timeout=15)
    assert not alive
    assert len(gone) == 2
    left = [path.name for path in (tmp_path / "run").iterdir() if path.name.startswith(".analysis.partial")]
    assert bool(left) == (sig is signal.SIGKILL), "an orderly end removes what is half done"
    analyze([tmp_path / "run"], options=AnalyzeOptions(hta=False))
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


def test_ascii_terminals_get_the_summary_too(tmp_path: Path) -> None:
    run = run_of(tmp_path, one_step())
    command = [sys.executable, "-m", "zerotrace", "analyze", str(run), "--no-hta", "--no-report"]
    done = subprocess.run(command, env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "analysis" / "analysis.json").read_text())["run_name"]
