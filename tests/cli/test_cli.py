"""The command line as a person and as a script meet it."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from tests.builders import TraceBuilder
from tests.page.runs import training_run
from zerotrace.cli import COMMANDS, main
from zerotrace.cli.summary import print_summary
from zerotrace.model import Finding

ROOT = Path(__file__).resolve().parents[2]


def zerotrace(*words: str) -> Result:
    return CliRunner().invoke(main, [*words], prog_name="zerotrace")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(2, 0, 500).compute(100, 200).all_gather(150, 250)
        trace.write(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_has_help_with_an_example(command: str, flag: str) -> None:
    shown = zerotrace(command, flag)
    assert shown.exit_code == 0
    assert "Example" in shown.output
    assert f"zerotrace {command}" in shown.output


def test_the_options_are_a_decision() -> None:
    commands = {name: command for name in COMMANDS if (command := main.get_command(click.Context(main), name))}
    options = {name: sorted(o for p in command.params for o in p.opts) for name, command in commands.items()}
    assert options["analyze"] == sorted(
        [
            "inputs",
            "--out",
            "--address",
            "--attribute",
            "--baseline",
            "--engine",
            "--report",
            "--hta",
            "--stage",
            "--params",
            "--jobs",
            "--max-trace-size",
            "--force",
            "--strict",
            "--json",
            "--quiet",
        ]
    )
    assert options["capture"] == sorted(
        ["--stage", "--gpus", "--device", "--model", "--windows", "--steps", "--warmup", "--timed", "--micro-batch",
         "--sequence", "--ds-config", "--set", "--out", "--timeout", "--seed", "--json", "--script", "--keep-running",
         "args", "--ablate", "--engine", "--ingest", "--hostfile", "--launcher", "--nnodes", "--node-rank",
         "--rdzv-endpoint"]
    )  # fmt: skip
    assert options["check"] == ["--baseline", "--fail-if", "--json", "--list", "folder"]
    assert options["export"] == ["--force", "--host", "--perfetto", "folder"]
    assert options["report"] == ["--ranks", "folder"]
    assert options["doctor"] == ["--json", "--out"]
    assert options["compare"] == ["--csv", "--force", "--html", "--json", "folders"]
    assert options["ledger"] == sorted(
        ["--params", "--model", "--shapes", "--world", "--stage", "--ds-config", "--set", "--gpu", "--micro-batch",
         "--sequence", "--activations", "--fit", "--snapshot", "--owners", "--json"]
    )  # fmt: skip
    assert COMMANDS == ("analyze", "capture", "check", "compare", "doctor", "export", "ledger", "report")


def test_help_is_quick_because_it_imports_nothing_heavy() -> None:
    code = "import sys, zerotrace.cli; print(sorted({'numpy', 'pyarrow', 'torch', 'pandas', 'hta'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    click, ours = (
        min(_processor_seconds(what) for _ in range(5))
        for what in (["-c", "import click"], ["-m", "zerotrace", "--help"])
    )
    assert ours < 4 * click  # seconds would be the machine's


def _processor_seconds(arguments: list[str]) -> float:
    """Of Python with these arguments: a busy machine is not the program's doing."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    _, _, usage = os.wait4(process.pid, 0)
    return usage.ru_utime + usage.ru_stime


def test_tables_alone_are_written_without_pandas(run_folder: Path) -> None:
    code = (
        "import sys\nfrom zerotrace.cli import COMMANDS, main\n"
        f"main(['analyze', {str(run_folder)!r}, '--no-report', '--no-hta', '--jobs', '1'], standalone_mode=False)\n"
        "assert 'pandas' not in sys.modules, 'pandas costs as much as reading a trace'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_analyze_prints_a_summary_and_where_the_report_is(run_folder: Path) -> None:
    done = zerotrace("analyze", str(run_folder), "--no-hta")
    assert done.exit_code == 0, done.output
    assert "51 % of the profiled step" in " ".join(done.stdout.split())
    assert done.stdout.rstrip().endswith(f"Report: {run_folder}/analysis/report.html")
    assert (run_folder / "analysis" / "report.html").read_text().startswith("<!DOCTYPE html>")


def test_the_summary_says_whether_a_rank_is_a_straggler(tmp_path: Path) -> None:
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(0, 0, 1000).compute(900, 910)
        trace.all_gather(100 + 20 * rank, 200).write(tmp_path / "run")
    done = zerotrace("analyze", str(tmp_path / "run"), "--no-hta", "--no-report")
    said = " ".join(done.stdout.split())
    assert "Too few delays to tell a straggler from chance. In these steps rank 1 was late by 20.0 µs a step" in said


def test_the_summary_shows_the_worst_five_findings_and_counts_the_rest() -> None:
    found = tuple(
        Finding(code=f"rule{i}", claim=f"Claim {i}.", evidence="See.", cost_ns=100.0 - i, knob="a key")
        for i in range(7)
    )
    console = Console(file=io.StringIO(), width=80)
    print_summary(training_run().with_(findings=found).analysis, console)
    assert isinstance(console.file, io.StringIO)
    lines = [line for line in console.file.getvalue().splitlines() if line.startswith("•")]
    assert lines == [*(f"• Claim {i}." for i in range(5)), "• 2 more findings in analysis.json"]


def test_a_summary_fits_80_columns_and_is_plain_when_piped(run_folder: Path) -> None:
    command = [sys.executable, "-m", "zerotrace", "analyze", str(run_folder), "--no-report", "--no-hta"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"COLUMNS": "80"})
    assert "\x1b" not in done.stdout + done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if "Tables:" not in line)


def test_json_is_strict_and_alone_on_stdout(run_folder: Path) -> None:
    done = zerotrace("analyze", str(run_folder), "--no-report", "--no-hta", "--json")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    analysis = json.loads(done.stdout, parse_constant=refuse)
    assert [part["exposed_ns"] for part in analysis["partition"]] == [50_000, 50_000]
    assert analysis["diagnostics"] == []


def test_a_second_run_says_that_it_is_the_earlier_result(run_folder: Path) -> None:
    zerotrace("analyze", str(run_folder), "--no-report", "--no-hta")
    done = zerotrace("analyze", str(run_folder), "--no-report", "--no-hta")
    assert done.exit_code == 0
    assert "--force" in done.stderr


def test_expected_failures_are_one_message_and_exit_1(tmp_path: Path) -> None:
    done = zerotrace("analyze", str(tmp_path / "nowhere"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("zerotrace: ")
    assert "Traceback" not in done.stderr
    verbose = zerotrace("-vv", "analyze", str(tmp_path / "nowhere"))
    assert verbose.exit_code == 1
    assert "Traceback" in verbose.stderr


@pytest.mark.parametrize("words", [["analyze"], ["analyze", "x", "--jobs", "0"], ["capture"], ["nothing"]])
def test_mistakes_in_the_options_exit_2(words: list[str]) -> None:
    assert zerotrace(*words).exit_code == 2


def test_files_may_be_given_in_place_of_a_folder(run_folder: Path, tmp_path: Path) -> None:
    files = [str(path) for path in sorted(run_folder.glob("*.json"))]
    done = zerotrace("analyze", *files, "--out", str(tmp_path / "out"), "--no-report", "--no-hta", "--json")
    assert [source["rank"] for source in json.loads(done.stdout)["sources"]] == [0, 1]


def test_terminal_escapes_in_names_do_not_reach_the_terminal(tmp_path: Path) -> None:
    trace = TraceBuilder().step(2, 0, 500).compute(100, 200)
    trace.write(tmp_path / "run", "rank_0\x1b[31m.json")
    (tmp_path / "run" / "bad\x1b]0;title\x07.json").write_text("{}")
    done = zerotrace("analyze", str(tmp_path / "run"), "--no-report", "--no-hta")
    assert done.exit_code == 0, done.output
    assert "\x1b" not in done.stdout + done.stderr


def test_stage_and_params_tell_theory_for_traces_alone(run_folder: Path) -> None:
    shown = zerotrace(
        "analyze", str(run_folder), "--no-hta", "--no-report", "--json", "--stage", "3", "--params", "1.5K"
    )
    ledger = json.loads(shown.stdout)["wire"]
    assert (ledger["stages"], ledger["num_params"], ledger["theory_ratio"]) == ([3], 1500, 3.0)
    refused = zerotrace("analyze", str(run_folder), "--params", "many")
    assert refused.exit_code == 2
    assert "is no count" in refused.output


def test_the_summary_tells_collectives_and_the_wire_in_80_columns(tmp_path: Path) -> None:
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(2, 0, 500).compute(10, 20).collective("allreduce", 100, 200, elements=10**6)
        trace.collective("_allgather_base", 250, 300, elements=10**6).write(tmp_path / "run")
    shown = zerotrace("analyze", str(tmp_path / "run"), "--no-hta", "--no-report").stdout
    lines = [" ".join(line.split()) for line in shown.splitlines()]
    assert "all_reduce 1 2.00 MB 100 µs 0 ns 20.0 66.7 %" in lines
    assert "Sent 3.00 MB a rank and step: wire ratio 3.00, 2 in theory at stage 1 or 2" in " ".join(lines)
    assert "+1.00 all-reduce for reduce-scatter (use_multi_rank_bucket_allreduce)" in " ".join(lines)
    assert max(len(line) for line in shown.splitlines() if not line.startswith("Tables: ")) <= 80


def test_the_summary_says_why_there_is_no_ratio(run_folder: Path, tmp_path: Path) -> None:
    trace = TraceBuilder().step(2, 0, 500).compute(10, 20).device("kernel", "ncclKernel_AllReduce_RING", 100, 200)
    trace.write(tmp_path / "plain")
    shown = " ".join(zerotrace("analyze", str(tmp_path / "plain"), "--no-hta", "--no-report").stdout.split())
    assert "no ratio to theory, since the trace does not say how many elements its collectives have" in shown


def test_the_summary_of_a_trace_without_steps_speaks_of_the_whole(tmp_path: Path) -> None:
    for rank in range(2):
        trace = TraceBuilder(rank, 2).compute(10, 20).collective("allreduce", 100, 200, elements=10**6)
        trace.write(tmp_path / "plain")
    shown = " ".join(zerotrace("analyze", str(tmp_path / "plain"), "--no-hta", "--no-report").stdout.split())
    assert "a rank, over the whole trace; GB/s on the bus, median" in shown
    assert "no ratio to theory, since the trace has no step windows" in shown


@pytest.mark.parametrize(("columns", "most"), [(80, 54), (140, 40)])
def test_a_stage_3_run_is_one_screen(columns: int, most: int, tmp_path: Path) -> None:
    """All that can be said at once: findings, gathers, memory, stragglers, a baseline."""
    traces = ROOT / "traces"
    command = [sys.executable, "-m", "zerotrace", "analyze", str(traces / "stage3"), "--out", str(tmp_path / "out"),
               "--no-report", "--no-hta", "--baseline", str(traces / "single")]  # fmt: skip
    environment = {**os.environ, "COLUMNS": str(columns), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith("Tables: ")) <= columns, "a path is never folded"
    assert len(lines) <= most
    assert "\x1b" not in done.stdout
    for word in ("Host-bound", "→", "Sent", "Gathers:", "straggler", "Memory", "Overlap tax", "Trust:", "study-style"):
        assert word in done.stdout
