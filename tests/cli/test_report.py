"""``zerotrace report``: the page from what is stored, the same as analyze drew it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tests.builders import TraceBuilder
from zerotrace.cli import main

ROOT = Path(__file__).resolve().parents[2]


def zerotrace(*words: str) -> Result:
    return CliRunner().invoke(main, [*words], prog_name="zerotrace")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Two ranks, analysed, with names that are no harmless text."""
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(2, 0, 500).compute(100, 200 + rank, name="</script>\x1b\u202e µ")
        trace.all_gather(150, 250).write(tmp_path / "run")
    done = zerotrace("analyze", str(tmp_path / "run"), "--no-hta", "--jobs", "1")
    assert done.exit_code == 0, done.output
    return tmp_path / "run"


def remove_traces(folder: Path) -> None:
    for path in folder.iterdir():
        if path.name != "analysis":
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("of_analysis", [False, True])
def test_the_page_is_drawn_again_without_the_traces_byte_for_byte(run_folder: Path, of_analysis: bool) -> None:
    page = run_folder / "analysis" / "report.html"
    first = page.read_bytes()
    remove_traces(run_folder)
    page.unlink()
    done = zerotrace("report", str(run_folder / "analysis" if of_analysis else run_folder))
    assert (done.exit_code, done.stdout) == (0, f"Report: {page}\n")
    assert page.read_bytes() == first
    assert sorted(path.name for path in page.parent.glob(".*")) == []


def test_a_shipped_capture_with_hta_memory_and_manifest_is_drawn_again_byte_for_byte(tmp_path: Path) -> None:
    run = tmp_path / "single"
    shutil.copytree(ROOT / "traces" / "single", run, ignore=shutil.ignore_patterns("analysis"))
    assert zerotrace("analyze", str(run)).exit_code == 0
    first = (run / "analysis" / "report.html").read_bytes()
    remove_traces(run)
    assert zerotrace("report", str(run)).exit_code == 0
    assert (run / "analysis" / "report.html").read_bytes() == first


def test_tables_that_were_written_without_a_page_get_one(run_folder: Path) -> None:
    zerotrace("analyze", str(run_folder), "--no-hta", "--no-report", "--force")
    page = run_folder / "analysis" / "report.html"
    assert not page.exists()
    assert zerotrace("report", str(run_folder)).exit_code == 0
    assert page.read_text().startswith("<!DOCTYPE html>")


def no_analysis(folder: Path) -> None:
    shutil.rmtree(folder / "analysis")


def another_version(folder: Path) -> None:
    path = folder / "analysis" / "analysis.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema_version": "7.0"}))


def no_events(folder: Path) -> None:
    shutil.rmtree(folder / "analysis" / "events" / "rank=1")


def damaged_events(folder: Path) -> None:
    path = folder / "analysis" / "events" / "rank=1" / "part-0.parquet"
    path.write_bytes(path.read_bytes()[:-20])


def events_of_another_version(folder: Path) -> None:
    path = folder / "analysis" / "events" / "rank=1" / "part-0.parquet"
    table = pq.read_table(path.open("rb"))
    pq.write_table(table.replace_schema_metadata({"zerotrace.version": "9.1"}), path)


def events_without_a_column(folder: Path) -> None:
    path = folder / "analysis" / "events" / "rank=0" / "part-0.parquet"
    pq.write_table(pq.read_table(path.open("rb")).drop_columns(["category"]), path)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (no_analysis, ["no analysis in it", "zerotrace analyze"]),
        (another_version, ["analysis.json", "version 7.0", "reads 1.0"]),
        (no_events, ["rank=1/part-0.parquet: this table is missing", "analyze again with --force"]),
        (damaged_events, ["rank=1/part-0.parquet", "analyze again with --force"]),
        (events_of_another_version, ["rank=1/part-0.parquet", "version 9.1"]),
        (events_without_a_column, ["rank=0/part-0.parquet", "category"]),
    ],
)
def test_what_is_not_there_is_said_and_the_old_page_stays(
    run_folder: Path, harm: Callable[[Path], None], words: list[str]
) -> None:
    harm(run_folder)
    page = run_folder / "analysis" / "report.html"
    before = page.read_bytes() if page.exists() else None
    done = zerotrace("report", str(run_folder))
    assert (done.exit_code, done.stdout) == (1, "")
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr
    assert (page.read_bytes() if page.exists() else None) == before
