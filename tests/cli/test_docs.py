"""The documentation says what is true: its commands and queries run, its references are current."""

from __future__ import annotations

import re
import runpy
import shutil
from pathlib import Path

import duckdb
import pytest

from tools import reference
from zerotrace.analysis.run import AnalyzeOptions, analyze

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which traces/stage3 has been analysed, as after `make demo`."""
    shutil.copytree(
        ROOT / "traces" / "stage3", tmp_path / "traces" / "stage3", ignore=shutil.ignore_patterns("analysis")
    )
    analyze([tmp_path / "traces" / "stage3"], options=AnalyzeOptions(hta=False))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.usefixtures("clone")
def test_the_sql_of_the_readme_answers() -> None:
    (query,) = blocks("sql")
    rows = duckdb.sql(query).fetchall()
    assert [row[:2] for row in rows] == [("stage3", 0), ("stage3", 1)]
    assert all(0 < waiting < exposed < step for _, _, step, exposed, waiting, _ in rows)


def test_the_python_of_the_readme_runs(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, code in enumerate(blocks("python")):
        script = clone / f"block_{i}.py"
        script.write_text(code)
        runpy.run_path(str(script))
    shown = capsys.readouterr().out
    assert "_allgather_base" in shown
    assert "Host-bound" in shown


def test_references_are_current() -> None:
    for name, text in (("cli.md", reference.cli_reference()), ("tables.md", reference.tables_reference())):
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, "run python tools/reference.py"


def test_links_of_the_documentation_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "traces" / "README.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z]+)", README, re.MULTILINE)) <= targets
