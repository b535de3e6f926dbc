"""``zerotrace report``: the page from what is stored, the same as analyze drew it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tests.builders import TraceBuilder
from zerotrace.cli import main
from zerotrace.model import ANALYSIS_VERSION

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


#: What version 1.0 of the format did not store, by where it stands: it follows from the rest.
SINCE_1_1 = {
    "": {"totals", "row_counts"},
    "verdict": {"compute_ratio", "exposed_ratio", "idle_ratio"},
    "partition": {"overlap_ratio", "other_idle_ns"},
    "ranks": {"other_idle_ns", "more"},
    "top_kernels": {"ratio"},
    "overlap": {
        "overlap_difference_percent", "compute_difference_ns", "non_compute_difference_ns", "idle_difference_ns",
        "total_difference_ns",
    },
    "resident": {"gap_bytes"},
    "peak": {"gap_bytes"},
    "owners": {"explained_bytes"},
    "gathers": {"hidden_ratio", "hidden_transfer_ratio", "means"},
    "modules": {"step_gather_ns"},
    "slack": {"num_gathers"},
}  # fmt: skip


def as_version_1_0(value: Any, place: str = "") -> Any:
    if isinstance(value, dict):
        later = SINCE_1_1.get(place, set())
        return {key: as_version_1_0(item, key) for key, item in value.items() if key not in later}
    return [as_version_1_0(item, place) for item in value] if isinstance(value, list) else value


def make_older(run: Path) -> tuple[str, str]:
    """Makes a result one of version 1.0; returns the body of its page and that of the page drawn then."""
    path, page = run / "analysis" / "analysis.json", run / "analysis" / "report.html"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**as_version_1_0(stored), "schema_version": "1.0"}))
    first = page.read_text(encoding="utf-8")
    done = zerotrace("report", str(run))
    assert done.exit_code == 0, done.output
    before, after = (text.partition('id="analysis-data"')[0] for text in (first, page.read_text(encoding="utf-8")))
    return before, after


def test_a_result_of_an_older_version_is_drawn_with_every_figure(tmp_path: Path) -> None:
    run = tmp_path / "stage3"
    shutil.copytree(ROOT / "traces" / "stage3", run, ignore=shutil.ignore_patterns("analysis", "light"))
    assert zerotrace("analyze", str(run)).exit_code == 0
    before, after = make_older(run)
    assert after == before


def test_a_result_of_an_older_version_is_completed_unasked(run_folder: Path) -> None:
    make_older(run_folder)
    done = zerotrace("analyze", str(run_folder), "--no-hta", "--jobs", "1")
    assert done.exit_code == 0, done.output
    stored = json.loads((run_folder / "analysis" / "analysis.json").read_text())
    assert (stored["schema_version"], stored["totals"]["num_ranks"]) == (ANALYSIS_VERSION, 2)


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


def emptied(folder: Path, name: str) -> None:
    path = folder / "analysis" / name
    table = pq.read_table(path.open("rb"))
    pq.write_table(table.slice(0, 0), path)


def no_collectives(folder: Path) -> None:
    emptied(folder, "collectives.parquet")


def empty_events(folder: Path) -> None:
    emptied(folder, "events/rank=0/part-0.parquet")


def another_rank(folder: Path) -> None:
    events = folder / "analysis" / "events"
    shutil.copytree(events / "rank=1", events / "rank=2")


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (no_analysis, ["no analysis in it", "zerotrace analyze"]),
        (another_version, ["analysis.json", "version 7.0", f"reads {ANALYSIS_VERSION}"]),
        (no_events, ["rank=1/part-0.parquet: this table is missing", "analyze again with --force"]),
        (damaged_events, ["rank=1/part-0.parquet", "analyze again with --force"]),
        (events_of_another_version, ["rank=1/part-0.parquet", "version 9.1"]),
        (events_without_a_column, ["rank=0/part-0.parquet", "category"]),
        (no_collectives, ["collectives.parquet: 0 rows", "says that 2 were written", "analyze again with --force"]),
        (empty_events, ["rank=0/part-0.parquet: 0 rows", "put back the table that belongs to this analysis.json"]),
        (another_rank, ["rank=2/part-0.parquet", "says that 0 were written"]),
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
