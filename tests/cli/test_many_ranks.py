"""The commands on runs of many ranks."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from tests.jobs import Job
from tests.page.runs import manifest
from zerotrace.cli import main
from zerotrace.model import WindowKind, WindowRecord

NUM_RANKS = 24
SLOW = 17
MOST_OF_A_COMPARISON = 3_000_000


def zerotrace(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], prog_name="zerotrace")


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two captures of 24 ranks beside each other, analysed; in the second all steps are 20 % longer."""
    base = tmp_path_factory.mktemp("many")
    for name, factor in (("one", 1.0), ("two", 1.2)):
        folder = Job(NUM_RANKS, 24, seed=1, num_steps=2, slow_us=((SLOW, 60.0),)).write(base / name)
        steps = tuple(round(factor * step) for step in (4_000_000, 4_100_000, 4_050_000))
        window = WindowRecord(kind=WindowKind.TIMED, first_step=0, step_ns=steps)
        record = manifest(NUM_RANKS)
        content = replace(record, ranks=tuple(replace(rank, windows=(window,)) for rank in record.ranks))
        (folder / "manifest.json").write_bytes(msgspec.json.encode(content))
        done = zerotrace("analyze", folder, "--no-hta", "--jobs", "1")
        assert done.exit_code == 0, done.output
    return base


@pytest.fixture
def run_folder(analysed: Path, tmp_path: Path) -> Path:
    shutil.copytree(analysed / "one", tmp_path / "one")
    return tmp_path / "one"


def lanes(page: Path) -> list[int]:
    """Ranks that have lanes, by the page's data."""
    found = re.search(r'id="page-data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return sorted({group["rank"] for group in json.loads(found[1])["timeline"]["groups"]})


def test_the_page_has_lanes_of_the_ranks_that_the_analysis_chose(run_folder: Path) -> None:
    page = run_folder / "analysis" / "report.html"
    stored = json.loads((run_folder / "analysis" / "analysis.json").read_text())
    chosen = [entry["rank"] for entry in stored["rank_overview"]["shown"]]
    assert SLOW in chosen
    assert lanes(page) == chosen
    first = page.read_bytes()
    assert zerotrace("report", run_folder).exit_code == 0
    assert page.read_bytes() == first


def test_ranks_that_are_asked_for_get_the_lanes_and_the_analysis_stays(run_folder: Path) -> None:
    page, stored = run_folder / "analysis" / "report.html", run_folder / "analysis" / "analysis.json"
    before = (page.read_bytes(), stored.read_bytes())
    assert zerotrace("report", run_folder, "--ranks", "0-2,9").exit_code == 0
    assert lanes(page) == [0, 1, 2, 9]
    assert "asked for" in page.read_text(encoding="utf-8")
    assert stored.read_bytes() == before[1]
    assert zerotrace("report", run_folder).exit_code == 0
    assert page.read_bytes() == before[0]


@pytest.mark.parametrize(
    ("asked", "code", "words"),
    [
        ("24", 1, ["rank 24 not in the run, which has 24 ranks, 0 to 23", "name ranks whose traces were analysed"]),
        ("3;4", 2, ["found '3;4', expected ranks such as 3,17", "name ranks by number"]),
        ("0-20", 2, ["more than 16 ranks", "name fewer"]),
    ],
)
def test_what_cannot_be_shown_is_said_and_the_old_page_stays(
    run_folder: Path, asked: str, code: int, words: list[str]
) -> None:
    page = run_folder / "analysis" / "report.html"
    before = page.read_bytes()
    done = zerotrace("report", run_folder, "--ranks", asked)
    assert (done.exit_code, done.stdout) == (code, "")
    assert all(word in done.stderr for word in words), done.stderr
    assert page.read_bytes() == before


def test_an_analysis_without_an_overview_gets_one_when_it_is_drawn(run_folder: Path) -> None:
    stored = run_folder / "analysis" / "analysis.json"
    content = json.loads(stored.read_text())
    del content["rank_overview"]
    stored.write_text(json.dumps(content))
    assert zerotrace("report", run_folder).exit_code == 0
    assert SLOW in lanes(run_folder / "analysis" / "report.html")
    assert len(lanes(run_folder / "analysis" / "report.html")) <= 8


def test_runs_of_many_ranks_compare(analysed: Path, tmp_path: Path) -> None:
    done = zerotrace("compare", analysed / "one", analysed / "two", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert [run["step_ns"] for run in told["runs"]] == [4_050_000, 4_860_000]
    page = tmp_path / "compared.html"
    assert zerotrace("compare", analysed / "one", analysed / "two", "--html", page).exit_code == 0
    assert page.stat().st_size < MOST_OF_A_COMPARISON


def test_the_terminal_shows_some_ranks_and_says_so(analysed: Path) -> None:
    done = zerotrace("analyze", analysed / "one", "--no-hta")
    assert done.exit_code == 0
    assert "of 24 ranks, those that matter most" in " ".join(done.stdout.split())
