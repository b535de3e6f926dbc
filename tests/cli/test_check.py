"""``zerotrace check`` as a script in CI meets it."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from tests.builders import TraceBuilder
from tests.page.runs import MS, manifest
from zerotrace.cli import main
from zerotrace.model import WindowKind, WindowRecord


def zerotrace(*words: str) -> Result:
    return CliRunner().invoke(main, [*words], prog_name="zerotrace")


def analysed(folder: Path, *step_ms: int) -> str:
    """Two ranks: of 500 µs 50 and 40 µs are exposed transfer; timed steps as given, without any no manifest."""
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(2, 0, 500).compute(100, 200 + 10 * rank)
        trace.all_gather(150, 250).write(folder)
    if step_ms:
        record = manifest()
        window = WindowRecord(kind=WindowKind.TIMED, first_step=0, step_ns=tuple(ms * MS for ms in step_ms))
        record = replace(record, ranks=tuple(replace(rank, windows=(window,)) for rank in record.ranks))
        (folder / "manifest.json").write_bytes(msgspec.json.encode(record))
    done = zerotrace("analyze", str(folder), "--no-hta", "--no-report", "--jobs", "1")
    assert done.exit_code == 0, done.output
    return str(folder)


@pytest.fixture
def run(tmp_path: Path) -> str:
    return analysed(tmp_path / "run", 98, 100, 100, 102)


def test_all_is_well(run: str) -> None:
    done = zerotrace("check", run, "--fail-if", "exposed_transfer_ratio > 10%", "--fail-if", "exposed_ns>1ms")
    assert done.exit_code == 0, done.output
    assert done.stdout.splitlines() == [
        "Fine: exposed_transfer_ratio is 0.1; fails if exposed_transfer_ratio > 10%.",
        "Fine: exposed_ns is 50.0 µs; fails if exposed_ns>1ms.",
        "Passed: none of 2 conditions holds.",
    ]


def test_a_condition_that_holds_exits_with_3(run: str) -> None:
    done = zerotrace("check", run, "--fail-if", "exposed_ns >= 50us", "--fail-if", "exposed_ns.min > 50us")
    assert (done.exit_code, done.stderr) == (3, "")
    assert done.stdout.splitlines() == [
        "Fails: exposed_ns is 50.0 µs; fails if exposed_ns >= 50us.",
        "Fine: exposed_ns.min is 40.0 µs; fails if exposed_ns.min > 50us.",
        "Failed: 1 of 2 conditions holds.",
    ]


def test_a_hair_above_is_shown_in_full(run: str) -> None:
    done = zerotrace("check", run, "--fail-if", "exposed_ns > 49999ns")
    assert done.exit_code == 3
    assert done.stdout.splitlines()[0] == "Fails: exposed_ns is 50000.0 ns; fails if exposed_ns > 49999ns."


def test_a_figure_that_is_unknown_exits_with_1_even_beside_one_that_holds(run: str) -> None:
    done = zerotrace("check", run, "--fail-if", "exposed_ns > 0", "--fail-if", "study_exposed_ns > 1ms")
    assert done.exit_code == 1
    assert "Unknown: study_exposed_ns: the run was analysed without --baseline." in done.stdout
    assert "study_exposed_ns is unknown, since the run was analysed without --baseline" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fail-if", "exposed_tranfer_ratio > 0.2"], "Did you mean exposed_transfer_ratio"),
        (["--fail-if", "exposed_ns > 13GiB"], "exposed_ns is in ns"),
        (["--fail-if", "exposed_ns"], "is no condition"),
        (["--fail-if", "\x1b[31m > 1"], "is no condition"),
        ([], "nothing to check"),
        (["--list", "--json"], "--list stands alone"),
    ],
)
def test_mistakes_exit_with_2(run: str, words: list[str], said: str) -> None:
    done = zerotrace("check", run, *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in " ".join(done.stderr.split())
    assert "\x1b" not in done.stderr


def test_a_folder_that_was_not_analysed_exits_with_1(tmp_path: Path) -> None:
    done = zerotrace("check", str(tmp_path), "--list")
    assert done.exit_code == 1
    assert "no analysis in it" in done.stderr


def test_a_run_worse_than_its_baseline_exits_with_3(run: str, tmp_path: Path) -> None:
    slow = analysed(tmp_path / "slow", 118, 120, 120, 122)
    done = zerotrace("check", slow, "--baseline", run)
    assert done.exit_code == 3, done.output
    said = " ".join(done.stdout.split())
    assert "Worse: unprofiled_step_ns is 120 ms, 20.0 ms more than the baseline's 100 ms; beyond the band of" in said
    assert said.endswith(f"Failed: 1 of 6 figures worse than {run}.")
    back = zerotrace("check", run, "--baseline", slow)
    assert back.exit_code == 0
    assert "Better: unprofiled_step_ns is 100 ms" in back.stdout


def test_a_run_within_the_noise_of_its_baseline_passes(run: str, tmp_path: Path) -> None:
    other = analysed(tmp_path / "other", 98, 101, 101, 103)
    done = zerotrace("check", other, "--baseline", run)
    assert done.exit_code == 0, done.output
    assert "Equal: unprofiled_step_ns is 101 ms, 1.00 ms more than the baseline's 100 ms" in done.stdout


def test_a_baseline_of_unknown_noise_exits_with_1(run: str, tmp_path: Path) -> None:
    done = zerotrace("check", run, "--baseline", analysed(tmp_path / "bare"))
    assert done.exit_code == 1
    assert "in the baseline it is unknown, since the run has no manifest" in " ".join(done.stderr.split())


def test_every_line_fits_80_columns(run: str, tmp_path: Path) -> None:
    slow = analysed(tmp_path / "slow", 118, 120, 120, 122)
    for words in (["--list"], ["--baseline", slow, "--fail-if", "study_exposed_ns > 1ms"]):
        shown = zerotrace("check", run, *words).stdout.replace(str(tmp_path), "")
        assert max(map(len, shown.splitlines())) <= 80


def test_the_list_has_every_figure_with_its_value(run: str) -> None:
    shown = [line.split()[:3] for line in zerotrace("check", run, "--list").stdout.splitlines()]
    assert ["exposed_ns", "50.0", "µs"] in shown
    assert ["unprofiled_step_ns", "100", "ms"] in shown
    assert ["study_exposed_ns", "unknown", "unprofiled"] in shown


def test_json_is_for_programs(run: str, tmp_path: Path) -> None:
    slow = analysed(tmp_path / "slow", 118, 120, 120, 122)
    done = zerotrace("check", slow, "--fail-if", "exposed_ns > 20us", "--baseline", run, "--json")
    assert done.exit_code == 3
    found = json.loads(done.stdout)
    assert found["failed"] is True
    assert found["unknown"] == []
    assert found["conditions"] == [
        {"condition": "exposed_ns > 20us", "figure": "exposed_ns", "unit": "ns", "value": 50_000.0,
         "threshold": 20_000.0, "holds": True, "reason": None}
    ]  # fmt: skip
    (step,) = (entry for entry in found["figures"] if entry["figure"] == "unprofiled_step_ns")
    assert (step["value"], step["baseline"], step["judgement"]) == (120 * MS, 100 * MS, "worse")


def test_a_bound_passes_no_gate_and_closes_none(tmp_path: Path) -> None:
    """A kernel that may be communication: exposed is 50 to 200 µs, overlap 20 to 67 %."""
    trace = TraceBuilder().step(0, 0, 1000).compute(100, 300).all_gather(250, 400)
    trace.compute(350, 500, name="fused_all_reduce_rmsnorm", stream=9).write(tmp_path / "run")
    assert zerotrace("analyze", str(tmp_path / "run"), "--no-hta", "--no-report", "--jobs", "1").exit_code == 0
    for condition in ("exposed_ns > 100us", "exposed_ns.max > 300us", "overlap_ratio < 50%", "compute_ratio > 1%"):
        done = zerotrace("check", str(tmp_path / "run"), "--fail-if", condition)
        assert (done.exit_code, "may be communication" in done.stderr) == (1, True)
    assert zerotrace("check", str(tmp_path / "run"), "--fail-if", "span_ns > 2ms").exit_code == 0


def test_one_rank_does_not_know_what_has_no_partner(tmp_path: Path) -> None:
    TraceBuilder(0, 2).step(0, 0, 1000).compute(100, 300).all_gather(250, 400).write(tmp_path / "run")
    assert zerotrace("analyze", str(tmp_path / "run"), "--no-hta", "--no-report", "--jobs", "1").exit_code == 0
    assert zerotrace("check", str(tmp_path / "run"), "--fail-if", "num_unmatched_collectives > 0").exit_code == 1


def test_an_analysis_of_another_capture_is_not_judged(run: str) -> None:
    path = Path(run) / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "micro_batch": 16}))
    for words in ((run, "--fail-if", "span_ns > 1s"), (f"{run}/analysis", "--list")):
        done = zerotrace("check", *words)
        assert (done.exit_code, "another capture" in done.stderr) == (1, True)
