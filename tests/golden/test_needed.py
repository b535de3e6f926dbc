"""Events that the analysis of a rank is not given are events that it does not look at."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from zerotrace.analysis import reading
from zerotrace.analysis.needed import needed_rows
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Mode
from zerotrace.store import to_json

TRACES = Path(__file__).resolve().parents[2] / "traces"


@pytest.mark.parametrize("run", ["stage0", "stage3"])
def test_the_analysis_is_the_same_with_all_events(run: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = AnalyzeOptions(hta=False, jobs=1)
    some, _, _ = analyze([TRACES / run], tmp_path / "some", options)
    monkeypatch.setattr(reading, "needed_rows", lambda events, _mode: events)
    every, _, _ = analyze([TRACES / run], tmp_path / "every", options)
    assert to_json(replace(some, elapsed_s=0)) == to_json(replace(every, elapsed_s=0))


def test_half_of_the_events_are_not_looked_at_and_none_is_lost(tmp_path: Path) -> None:
    analyze([TRACES / "stage3"], tmp_path / "a", AnalyzeOptions(hta=False, jobs=1))
    with (tmp_path / "a" / "events" / "rank=0" / "part-0.parquet").open("rb") as stream:
        events = pq.read_table(stream)
    assert events.num_rows > 2 * needed_rows(events, Mode.DEVICE).num_rows
    assert needed_rows(events, Mode.HOST).num_rows == events.num_rows
