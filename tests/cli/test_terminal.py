"""Standard output that is closed or full, and Ctrl-C at any time: one line, or none, and never a traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import TraceBuilder

ROOT = Path(__file__).resolve().parents[2]
STAGE = str(ROOT / "traces" / "stage0")


def shell(redirection: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The command with its output redirected by a shell."""
    command = ["sh", "-c", f'exec "$0" "$@" {redirection}', sys.executable, "-m", "zerotrace", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100, env=environment)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    TraceBuilder().step(2, 0, 500).compute(100, 200).write(tmp_path / "run")
    return tmp_path / "run"


def test_a_result_that_has_nowhere_to_go_is_one_error(run_folder: Path) -> None:
    for words in (["compare", STAGE, "--json"], ["compare", STAGE, "--csv"], ["analyze", str(run_folder), "--json"]):
        done = shell(">&-", *words, *(["--no-hta", "--no-report"] if words[0] == "analyze" else []))
        assert done.returncode == 1
        assert done.stderr.splitlines()[0] == (
            "zerotrace: standard output is closed, so that the result has nowhere to go"
        )
        assert "Traceback" not in done.stderr
    # What was to be written into the folder is there.
    assert (run_folder / "analysis" / "analysis.json").is_file()


def test_without_standard_streams_files_are_written_all_the_same(run_folder: Path) -> None:
    done = shell("<&- >&- 2>&-", "analyze", str(run_folder), "--no-hta", "--no-report")
    assert done.returncode == 0
    analysis = (run_folder / "analysis" / "analysis.json").read_text()
    assert json.loads(analysis)["run_name"].endswith("run")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("options", [[], ["--csv"], ["--json"]])
def test_a_full_disk_is_one_error(options: list[str]) -> None:
    done = shell(">/dev/full", "compare", STAGE, *options)
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1, "zerotrace: standard output cannot be written: No space left on device",
    )  # fmt: skip
    assert "Traceback" not in done.stderr and "ignored" not in done.stderr


INTERRUPTED = """
import importlib.abc, os, signal, sys

class Interrupt(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from zerotrace.__main__ import run
sys.argv = ["zerotrace", "compare", {folder!r}]
run()
"""


@pytest.mark.parametrize(
    ("module", "code", "said"),
    [("zerotrace.cli", -signal.SIGINT, ""), ("zerotrace.analysis.compare", 130, "Aborted!\n")],
)
def test_ctrl_c_is_quiet_while_modules_are_imported(module: str, code: int, said: str) -> None:
    program = INTERRUPTED.format(module=module, folder=STAGE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", said)
