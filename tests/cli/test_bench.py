"""The bench: traces of any size, and tables that say what each reader takes."""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tools.bench import OURS, Failure, Input, Timing, table, timed
from tools.big_trace import write_trace
from tools.readers import READERS
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Level

ROOT = Path(__file__).resolve().parents[2]


def test_a_made_trace_has_the_size_that_is_asked_for_and_is_the_same_each_time(tmp_path: Path) -> None:
    for name in ("first.json.gz", "second.json.gz"):
        size = write_trace(tmp_path / name, 20_000_000)
        assert 17_000_000 < size < 23_000_000
    first, second = ((tmp_path / name).read_bytes() for name in ("first.json.gz", "second.json.gz"))
    text = gzip.decompress(first)
    assert len(text) == size
    assert text == gzip.decompress(second)
    cats = {event.get("cat") for event in json.loads(text)["traceEvents"]}
    assert {"python_function", "cpu_op", "cuda_runtime", "kernel", "ac2g", "user_annotation"} <= cats


def test_made_traces_of_two_ranks_are_a_run(tmp_path: Path) -> None:
    for rank in range(2):
        write_trace(tmp_path / f"rank_{rank}.json.gz", 9_000_000, rank=rank)
    analysis = analyze([tmp_path], options=AnalyzeOptions(hta=False))[0]
    assert [note.code for note in analysis.diagnostics if note.level is not Level.INFO] == []
    assert all(part.exposed_ns and part.compute_ns and part.idle_ns for part in analysis.partition)
    assert analysis.collectives is not None
    assert analysis.trust is not None
    assert analysis.trust.num_unmatched == 0


def test_the_bench_writes_what_each_reader_takes_and_names_no_machine(tmp_path: Path) -> None:
    page = tmp_path / "benchmarks.md"
    command = [sys.executable, str(ROOT / "tools" / "bench.py"), "--big", "5MB", "--rounds", "1", "--no-hta"]
    done = subprocess.run([*command, "--write", str(page)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    for name in (*(name for key, name in READERS.items() if key != "hta"), OURS):
        assert re.search(rf"^\| {re.escape(name)} \| [\d.]+ \| [\d.]+ \| [\d.]+ MiB \| [\d.]+ \|$", text, re.M), text
    assert re.search(
        r"zerotrace takes [\d.]+ times as long as gunzip \+ typed decode alone, (within|above) the bar", text
    )
    for secret in (os.uname().nodename, str(tmp_path), str(ROOT), "/tmp"):
        assert secret not in text


def test_a_reader_that_fails_is_said_and_the_others_count(tmp_path: Path) -> None:
    given = Input("`run`", tmp_path, {}, 2)
    good = [Timing(2.0, 1.0, 1 << 20), Timing(3.0, 1.0, 3 << 20)]
    text = table(given, {"HTA": [Failure("out of memory")], "typed": [Timing(1.0, 1.0, 9)] * 2, OURS: good})
    assert "| HTA | out of memory | – | – | – |" in text
    assert "| typed | 1.00 | 1.00 | 9 B | 0.42 (0.33 to 0.50) |" in text
    assert f"| {OURS} | 2.50 | 1.00 | 2.00 MiB | 1 |" in text


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (
            "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28,) * 2); bytearray(1 << 30)",
            "out of memory",
        ),
        ("import time; time.sleep(60)", "more than 1 s"),
        ("import sys; sys.exit('no /home/me/trace.json')", "ended with 1: no trace.json"),
    ],
)
def test_what_is_told_of_a_run_that_ends_badly(code: str, why: str) -> None:
    outcome = timed([sys.executable, "-c", code], 1.0 if "sleep" in code else 60.0)
    assert outcome == Failure(why)
