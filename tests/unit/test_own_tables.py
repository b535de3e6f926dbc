"""Tables that a rank wrote beside its trace stand for it: where they are of this very trace, and nowhere else."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.jobs import Job
from tests.unit.test_ingest import one_step
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.ingest.own_tables import RECORD_FILE, tables_folder, write_own_tables
from zerotrace.model import Analysis, Attribution

TRACES = Path(__file__).resolve().parents[2] / "traces"


def options(**changes: Any) -> AnalyzeOptions:
    return AnalyzeOptions(**{"hta": False, "jobs": 1, "force": True, **changes})


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = Job(num_ranks=2, num_collectives=6, num_steps=2).write(tmp_path / "run", zipped=True)
    for trace in sorted(folder.iterdir()):
        write_own_tables(trace)
    return folder


def edit_record(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Changes what lies beside the trace of rank 0."""
    path = tables_folder(run / "rank_0.json.gz") / RECORD_FILE
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


def edit_events(run: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    path = tables_folder(run / "rank_0.json.gz") / "events" / "part-0.parquet"
    pq.write_table(change(pq.read_table(path, partitioning=None)), path)


def unused(analysis: Analysis) -> list[str]:
    return [note.message for note in analysis.diagnostics if note.code == "own_tables_unused"]


def assert_equal(folder: Path, other: Path) -> None:
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    for name in names:
        mine, theirs = (place / name for place in (folder, other))
        if name.name == "analysis.json":
            assert {**json.loads(mine.read_text()), "elapsed_s": 0} == {
                **json.loads(theirs.read_text()),
                "elapsed_s": 0,
            }
        else:
            assert mine.read_bytes() == theirs.read_bytes(), name


@pytest.mark.parametrize("attribution", list(Attribution))
@pytest.mark.parametrize("which", ["job", "stage3"])
def test_they_give_what_the_traces_give(run: Path, tmp_path: Path, which: str, attribution: Attribution) -> None:
    if which == "stage3":
        run = tmp_path / "stage3"
        shutil.copytree(TRACES / "stage3", run, ignore=shutil.ignore_patterns("analysis"))
    analyze([run], tmp_path / "with", options(attribution=attribution))
    for trace in run.glob("rank_*.json.gz"):
        shutil.rmtree(tables_folder(trace), ignore_errors=True)
    analyze([run], tmp_path / "without", options(attribution=attribution))
    assert_equal(tmp_path / "with", tmp_path / "without")


def test_traces_are_not_read_where_they_fit(run: Path) -> None:
    """Told by a figure that is in the tables alone."""
    plain = analyze([run], options=options())[0].partition
    edit_events(run, lambda events: events.filter([name != "compute" for name in events["category"].to_pylist()]))
    edit_record(run, lambda record: record.update(num_rows=record["num_rows"] - 6))
    analysis, _, _ = analyze([run], options=options())
    assert unused(analysis) == []
    assert [part.compute_ns for part in plain if part.rank == 0] != [0, 0]
    assert [part.compute_ns for part in analysis.partition if part.rank == 0] == [0, 0]


def another_file(run: Path) -> None:
    text = Job(num_ranks=2, num_collectives=6, num_steps=2).trace(0, None)
    (run / "rank_0.json").write_text(text)
    shutil.move(run / "rank_0.json", run / "rank_0.json.gz")


def moved(run: Path) -> None:
    shutil.rmtree(tables_folder(run / "rank_0.json.gz"))
    shutil.copytree(tables_folder(run / "rank_1.json.gz"), tables_folder(run / "rank_0.json.gz"))


def linked(run: Path) -> None:
    path = tables_folder(run / "rank_0.json.gz") / RECORD_FILE
    path.rename(run.parent / "elsewhere")
    path.symlink_to(run.parent / "elsewhere")


def emptied(run: Path) -> None:
    shutil.rmtree(tables_folder(run / "rank_0.json.gz") / "events")


def negative(events: pa.Table) -> pa.Table:
    column = events.schema.get_field_index("dur_ns")
    return events.set_column(column, events.schema.field(column), pa.compute.negate(events["dur_ns"]))


UNFIT: dict[str, tuple[Callable[[Path], None], str]] = {
    "trace changed": (another_file, "of another file"),
    "of another rank": (moved, "of another file"),
    "other version": (
        lambda run: edit_record(run, lambda record: record.update(zerotrace_version="0.0.9", source=None)),
        "of zerotrace 0.0.9",
    ),
    "no JSON": (lambda run: (tables_folder(run / "rank_0.json.gz") / RECORD_FILE).write_bytes(b"\xff{"), "cannot be"),
    "a part missing": (lambda run: edit_record(run, lambda record: record.pop("windows")), "cannot be read"),
    "a link": (linked, "a link"),
    "events missing": (emptied, "events are missing"),
    "a million claimed": (lambda run: edit_record(run, lambda record: record.update(num_rows=10**12)), "more than"),
    "rows missing": (lambda run: edit_events(run, lambda events: events.slice(1)), "not the"),
    "no event table": (lambda run: edit_events(run, lambda events: events.select(["name"])), "columns are others"),
    "a negative duration": (lambda run: edit_events(run, negative), "negative"),
    "no step": (lambda run: edit_record(run, lambda record: record.update(windows=[])), "step windows"),
    "a step beyond int64": (
        lambda run: edit_record(run, lambda record: record["windows"][0].update(end_ns=10**30)),
        "contradict themselves",
    ),
}


@pytest.mark.parametrize("what", UNFIT)
def test_others_are_not_used_and_it_is_said(run: Path, tmp_path: Path, what: str) -> None:
    shutil.copytree(run, tmp_path / "plain", ignore=shutil.ignore_patterns("*.tables"))
    spoil, why = UNFIT[what]
    spoil(run)
    analysis, folder, _ = analyze([run], options=options())
    (message,) = unused(analysis)
    assert message.startswith("rank_0.json.gz: the tables that its rank wrote beside it are not used, since ")
    assert why in message
    assert analysis.partition == analyze([tmp_path / "plain"], options=options())[0].partition
    assert sorted(path.name for path in (folder / "events").iterdir()) == ["rank=0", "rank=1"]


def test_a_folder_of_tables_is_no_run(run: Path) -> None:
    shutil.move(tables_folder(run / "rank_0.json.gz"), run.parent / "alone" / "x.tables")
    with pytest.raises(Exception, match="there is no JSON file in it") as caught:
        analyze([run.parent / "alone"], options=options())
    assert "x.tables" not in str(caught.value.hint)  # type: ignore[attr-defined]


def test_a_trace_that_cannot_be_read_leaves_none(tmp_path: Path) -> None:
    trace = one_step().write(tmp_path)
    trace.write_bytes(trace.read_bytes()[:-40])
    command = [sys.executable, "-m", "zerotrace.ingest.own_tables", str(trace)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("rank_0.json: truncated")
    assert [path.name for path in tmp_path.iterdir()] == ["rank_0.json"]
