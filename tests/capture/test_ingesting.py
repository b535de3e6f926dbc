"""``--ingest``: each rank reads its own trace at the end; whatever comes of that, the capture is there."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.capture import ingesting
from zerotrace.capture.folder import reserve_folder
from zerotrace.capture.launch import run_capture
from zerotrace.capture.plan import CapturePlan
from zerotrace.ingest.own_tables import RECORD_FILE, tables_folder

Plans = Callable[..., CapturePlan]
Programs = Callable[[str], Path]


def traces_of(folder: Path) -> list[Path]:
    return [folder / f"rank_{rank}.pt.trace.json.gz" for rank in range(2)]


@pytest.mark.capture
@pytest.mark.usefixtures("no_orphans")
def test_each_rank_leaves_tables_that_analyze_takes(
    make_plan: Plans, write_program: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(ingest=True)
    result = run_capture(plan, reserve_folder(tmp_path / "out", plan.default_name), program=write_program("pass"))
    assert result.folder is not None
    assert result.manifest is not None
    assert not [note for note in result.manifest.notes if "--ingest" in note]
    for trace in traces_of(result.folder):
        assert (tables_folder(trace) / RECORD_FILE).is_file()

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a trace was read")

    monkeypatch.setattr("zerotrace.analysis.reading.ingest_rank", read)
    analysis, _, _ = analyze([result.folder], options=AnalyzeOptions(hta=False, jobs=1))
    assert len(analysis.sources) == 2
    assert "own_tables_unused" not in {note.code for note in analysis.diagnostics}


@pytest.mark.capture
@pytest.mark.usefixtures("no_orphans")
def test_without_pyarrow_in_the_ranks_the_capture_is_complete_and_says_so(
    make_plan: Plans, write_program: Programs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "pyarrow.py").write_text("raise ImportError('No module named pyarrow')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "lacking"), prepend=":")
    plan = make_plan(ingest=True)
    result = run_capture(plan, reserve_folder(tmp_path / "out", plan.default_name), program=write_program("pass"))
    assert result.folder is not None
    assert result.manifest is not None
    notes = [note for note in result.manifest.notes if "--ingest" in note]
    assert notes == [
        f"rank {rank} has not read its own trace (--ingest): ImportError: No module named pyarrow" for rank in range(2)
    ]
    assert all(trace.is_file() and not tables_folder(trace).exists() for trace in traces_of(result.folder))


@pytest.mark.parametrize("left_s", [0.5, 1.5])
def test_it_ends_in_time(tmp_path: Path, left_s: float) -> None:
    """A pipe in the place of a trace: reading it would never end."""
    trace = tmp_path / "rank_0.json"
    os.mkfifo(trace)
    began = time.monotonic()
    why = ingesting.write_own_tables(trace, time.monotonic() + left_s)
    assert time.monotonic() - began < 10
    assert why == ("there was no time left within --timeout" if left_s < 1 else "it took longer than 1 s")
