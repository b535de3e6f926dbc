"""Ranks that are late together, as the commands tell of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.jobs import Job
from zerotrace.cli import main


def zerotrace(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="zerotrace")


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """24 ranks, two of which are slow; a result, and what was said of it."""
    folder = Job(24, 24, seed=1, num_steps=2, slow_us=((16, 500.0), (17, 500.0))).write(
        tmp_path_factory.mktemp("two") / "job"
    )
    done = zerotrace("analyze", folder, "--no-hta", "--jobs", "1")
    assert done.exit_code == 0, done.output
    return folder, " ".join(done.output.split())


def test_the_summary_names_all_that_are_late_and_none_alone(analysed: tuple[Path, str]) -> None:
    folder, output = analysed
    assert "• Ranks 16 and 17 are late together: the others wait for them at 24 of 24 collectives" in output
    assert "Ranks 16 and 17 are late together: all of them start after all others, by " in output
    assert "Rank 17" not in output
    page = (folder / "analysis" / "report.html").read_text(encoding="utf-8")
    assert "Rank 17 is a straggler" not in page


def test_a_gate_on_stragglers_counts_them(analysed: tuple[Path, str]) -> None:
    folder, _ = analysed
    assert zerotrace("check", folder, "--fail-if", "num_stragglers > 1").exit_code == 3
    assert zerotrace("check", folder, "--fail-if", "num_stragglers > 2").exit_code == 0


def test_a_result_from_before_there_were_groups_is_drawn(analysed: tuple[Path, str]) -> None:
    folder, _ = analysed
    path = folder / "analysis" / "analysis.json"
    stored = json.loads(path.read_text())
    assert stored["stragglers"]["group"]["ranks"] == [16, 17]
    whole = path.read_bytes()
    older = {name: value for name, value in stored["stragglers"].items()
             if name not in ("group", "late_ratio", "is_immaterial")}  # fmt: skip
    older.update(rank=17, sentence="Rank 17 is a straggler.")
    path.write_text(json.dumps({**stored, "stragglers": older, "schema_version": "1.1"}))
    try:
        done = zerotrace("report", folder)
        assert done.exit_code == 0, done.output
        assert "Rank 17 is a straggler." in (folder / "analysis" / "report.html").read_text(encoding="utf-8")
    finally:
        path.write_bytes(whole)
