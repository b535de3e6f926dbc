"""A rank that cannot be read costs its own figures and no other's, and nobody can overlook it."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.builders import TraceBuilder
from tests.unit.test_ingest import one_step
from zerotrace.analysis.reading import read_ranks
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.cli import main
from zerotrace.errors import StoreError, TraceError
from zerotrace.model import Analysis, Attribution, Level

PLAIN = AnalyzeOptions(hta=False, jobs=1)


def ranks(num: int) -> list[TraceBuilder]:
    return [one_step(rank, num) for rank in range(num)]


def cut(path: Path) -> bytes:
    """Cuts a trace short, as a rank that was killed leaves it; gives what it was."""
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    return whole


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three ranks, of which the file of rank 1 is cut short."""
    for trace in ranks(3):
        trace.write(tmp_path / "run")
    cut(tmp_path / "run" / "rank_1.json")
    return tmp_path / "run"


def errors(analysis: Analysis) -> list[tuple[str, str | None]]:
    return [(note.code, note.file) for note in analysis.diagnostics if note.level is Level.ERROR]


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_rest_of_the_ranks_stands(run: Path, tmp_path: Path, jobs: int) -> None:
    analysis, folder, _ = analyze([run], options=AnalyzeOptions(hta=False, jobs=jobs))
    assert [source.rank for source in analysis.sources] == [0, 2]
    assert errors(analysis) == [("rank_failed", "rank_1.json")]
    (note,) = [note for note in analysis.diagnostics if note.level is Level.ERROR]
    assert "truncated" in note.message
    assert "its rank is in no figure" in note.message
    assert note.hint
    assert sorted(path.name for path in (folder / "events").iterdir()) == ["rank=0", "rank=2"]
    # As if the file had not been there.
    alone = tmp_path / "alone"
    for trace in (one_step(0, 3), one_step(2, 3)):
        trace.write(alone)
    without, _, _ = analyze([alone], options=PLAIN)
    assert analysis.ranks == without.ranks
    assert analysis.trust == without.trust
    assert analysis.trust is not None
    assert analysis.trust.num_missing_ranks == 1
    assert analysis.collectives == without.collectives


def test_it_counts_as_missing_where_no_trace_tells_the_world(tmp_path: Path) -> None:
    for trace in ranks(2):
        trace.with_metadata(distributedInfo=None).write(tmp_path)
    cut(tmp_path / "rank_1.json")
    trust = analyze([tmp_path], options=PLAIN)[0].trust
    assert trust is not None
    assert trust.num_missing_ranks == 1


def test_nobody_can_overlook_it(run: Path) -> None:
    done = CliRunner().invoke(main, ["analyze", str(run), "--no-hta", "--jobs", "1"], prog_name="zerotrace")
    assert done.exit_code == 0
    said = " ".join(done.stdout.split())
    assert said.index("rank_1.json: truncated") < said.index("compute"), "ahead of every figure"
    assert "rank_1.json: truncated" in (run / "analysis" / "report.html").read_text()
    done = CliRunner().invoke(main, ["analyze", str(run), "--no-hta", "--jobs", "1", "--strict"], prog_name="zerotrace")
    assert done.exit_code == 1
    assert "rank_failed" in done.stderr


def test_it_passes_no_gate(run: Path) -> None:
    analyze([run], options=PLAIN)
    done = CliRunner().invoke(main, ["check", str(run), "--fail-if", "idle_ratio > 100%"], prog_name="zerotrace")
    assert done.exit_code == 1
    assert "rank_1.json: truncated" in " ".join(done.stderr.split())


def test_the_first_error_is_raised_if_no_rank_is_left(tmp_path: Path) -> None:
    for trace in ranks(2):
        cut(trace.write(tmp_path))
    with pytest.raises(TraceError, match=r"rank_0\.json: truncated"):
        analyze([tmp_path], options=PLAIN)
    assert not (tmp_path / "analysis").exists()


def test_a_single_trace_is_refused(tmp_path: Path) -> None:
    cut(one_step().write(tmp_path))
    with pytest.raises(TraceError, match=r"rank_0\.json: truncated"):
        analyze([tmp_path], options=PLAIN)


def test_what_the_system_does_not_give_is_a_failed_rank_too(tmp_path: Path) -> None:
    path = one_step().write(tmp_path)
    (tmp_path / "out").mkdir()
    found = read_ranks([path, tmp_path / "rank_1.json"], tmp_path / "out", Attribution.CLIP)
    assert [reading.source.rank for reading in found.readings] == [0]
    assert [(note.code, note.file) for note in found.notes] == [("rank_failed", "rank_1.json")]
    assert set(found.digests) == {path}


def test_with_a_file_that_was_put_right_the_result_is_made_anew(run: Path) -> None:
    analyze([run], options=PLAIN)
    (run / "rank_1.json").write_text(one_step(1, 3).text())
    analysis, _, reused = analyze([run], options=PLAIN)
    assert (len(analysis.sources), errors(analysis), reused) == (3, [], False)
    assert analyze([run], options=PLAIN)[2]


def test_a_result_with_a_failed_rank_is_not_taken_for_current(run: Path) -> None:
    analyze([run], options=PLAIN)
    assert not analyze([run], options=PLAIN)[2]


def test_other_files_and_other_options_still_need_force(run: Path) -> None:
    analyze([run], options=PLAIN)
    with pytest.raises(StoreError, match="made with other options"):
        analyze([run], options=AnalyzeOptions(hta=False, jobs=1, attribution=Attribution.LAUNCH))
    (run / "rank_0.json").write_text(one_step(0, 3).compute(300, 310).text())
    with pytest.raises(StoreError, match="made from other files"):
        analyze([run], options=PLAIN)


def test_a_page_is_not_lost_when_the_result_is_made_anew_without(run: Path) -> None:
    CliRunner().invoke(main, ["analyze", str(run), "--no-hta", "--jobs", "1"], prog_name="zerotrace")
    with pytest.raises(StoreError, match="holds more than is asked for"):
        analyze([run], options=PLAIN)
    assert (run / "analysis" / "report.html").is_file()
