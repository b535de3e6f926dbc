"""`zerotrace compare` on the captures that ship, and on a baseline made from one of them."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from click.testing import CliRunner, Result

from zerotrace.cli import main

TRACES = Path(__file__).resolve().parents[2] / "traces"
COLUMNS = ["stage", "world", "n_params", "resident_GiB", "peak_GiB", "step_ms", "ktok_per_s"]


def compare(*words: str) -> Result:
    return CliRunner().invoke(main, ["compare", *words], prog_name="zerotrace")


def manifest_of(folder: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(folder) / "manifest.json").read_text())
    return content


def step_ms(manifest: dict[str, Any]) -> float:
    windows = [w["step_ns"] for rank in manifest["ranks"] for w in rank["windows"] if w["kind"] == "timed"]
    return median(max(step) for step in zip(*windows)) / 1e6


@pytest.fixture
def stages(tmp_path: Path) -> list[str]:
    """The ladder's manifests alone: a checkout may hold analyses of its captures, from which `compare` reads more."""
    folders = [tmp_path / "traces" / f"stage{stage}" for stage in range(4)]
    for folder in folders:
        folder.mkdir(parents=True)
        shutil.copy(TRACES / folder.name / "manifest.json", folder)
    return [str(folder) for folder in folders]


@pytest.fixture
def baseline(stages: list[str], tmp_path: Path) -> str:
    """Rank 0 of stage 0, as if it had been alone and without an engine."""
    manifest = manifest_of(stages[0])
    alone = {"engine": "single", "stage": None, "ds_config": None, "world_size": 1, "ranks": manifest["ranks"][:1]}
    (tmp_path / "single").mkdir()
    (tmp_path / "single" / "manifest.json").write_text(json.dumps({**manifest, **alone, "schema_version": "1.2"}))
    return str(tmp_path / "single")


def test_the_csv_is_the_study_s(stages: list[str]) -> None:
    done = compare(*stages, "--csv")
    assert (done.exit_code, done.stderr) == (0, "")
    header, *rows = csv.reader(io.StringIO(done.stdout))
    assert header == COLUMNS
    assert len(rows) == 4
    for folder, row in zip(stages, rows):
        manifest = manifest_of(folder)
        assert row[:3] == [str(manifest["stage"]), "2", "774090240"]
        gauges = [max(rank[f"{gauge}_bytes"] for rank in manifest["ranks"]) / 2**30 for gauge in ("resident", "peak")]
        step = step_ms(manifest)
        assert [float(cell) for cell in row[3:]] == pytest.approx([*gauges, step, 2 * 4 * 1024 / step], rel=1e-12)


def test_a_single_device_in_the_csv_stands_under_its_engine_s_name(baseline: str, stages: list[str]) -> None:
    rows = list(csv.reader(io.StringIO(compare(baseline, stages[3], "--csv").stdout)))
    assert [row[:2] for row in rows[1:]] == [["single", "1"], ["3", "2"]]


def test_json_has_every_number(baseline: str, stages: list[str]) -> None:
    done = compare(baseline, *stages, "--json")
    found = json.loads(done.stdout)
    assert found["schema_version"] == "1.3"
    assert found["baseline"].endswith("/single")
    assert [run["stage"] for run in found["runs"]] == [None, 0, 1, 2, 3]
    steps = [step_ms(manifest_of(folder)) for folder in (baseline, *stages)]
    assert [run["step_ns"] / 1e6 for run in found["runs"]] == pytest.approx(steps)
    exposed = [run["study_exposed_ns"] for run in found["runs"]]
    assert exposed[0] is None
    assert [ns / 1e6 for ns in exposed[1:]] == pytest.approx([step - steps[0] for step in steps[1:]])


def test_the_table_fits_80_columns(baseline: str, stages: list[str]) -> None:
    command = [sys.executable, "-m", "zerotrace", "compare", baseline, *stages]
    environment = {**os.environ, "COLUMNS": "80"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    row = next(line.split() for line in lines if line.startswith("traces/stage3"))
    exposed = step_ms(manifest_of(stages[3])) - step_ms(manifest_of(baseline))
    assert row[1:] == ["3", "2", "6.762", "15.104", "466.9", "17.5", "–", f"{exposed:.1f}"]


def test_how_exposed_comes_to_be_known_is_said_beside_the_table_alone(stages: list[str]) -> None:
    assert f"exposed is unknown until a run is analysed: `zerotrace analyze {stages[0]}`, and the 3 others." in (
        compare(*stages).stderr
    )
    assert "is analysed" not in compare(*stages, "--csv").stderr + compare(*stages, "--json").output


def test_exposed_communication_comes_from_the_analysis_of_that_capture(tmp_path: Path) -> None:
    run = tmp_path / "traces" / "stage3"
    shutil.copytree(TRACES / "stage3", run, ignore=shutil.ignore_patterns("analysis", "light"))
    CliRunner().invoke(main, ["analyze", str(run), "--no-report", "--no-hta"])
    analysis = json.loads((run / "analysis" / "analysis.json").read_text())
    (found,) = json.loads(compare(str(run), "--json").stdout)["runs"]
    assert found["exposed_ns"] == analysis["verdict"]["exposed_ns"]
    manifest = manifest_of(str(run))
    (run / "manifest.json").write_text(json.dumps({**manifest, "created": "2027-01-01T00:00:00+00:00"}))
    again = compare(str(run), "--json")
    assert json.loads(again.stdout)["runs"][0]["exposed_ns"] is None
    assert "is that of another capture" in again.stderr


def test_other_work_is_said(tmp_path: Path, stages: list[str]) -> None:
    manifest = manifest_of(stages[0])
    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "micro_batch": 2}))
    done = compare(stages[0], str(tmp_path))
    assert done.exit_code == 0
    assert "does not compare: micro-batch 2, not 4." in done.stderr


def test_the_page_is_written_whole_and_replaced_only_when_told_to(stages: list[str], tmp_path: Path) -> None:
    path = tmp_path / "ladder.html"
    done = compare(*stages, "--html", str(path))
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"Page: {path}")
    page = path.read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>") and page.rstrip().endswith("</html>")
    path.write_text("mine")
    refused = compare(*stages, "--html", str(path))
    assert (refused.exit_code, refused.stdout, path.read_text()) == (1, "", "mine")
    assert "exists already" in refused.stderr and "--force" in refused.stderr
    again = compare(*stages, "--html", str(path), "--force", "--json")
    assert path.read_text(encoding="utf-8") == page
    # Data alone on stdout.
    assert json.loads(again.stdout)["runs"]
    assert again.stderr.splitlines()[-1] == f"Page: {path}"
    assert [entry.name for entry in tmp_path.glob("*ladder*")] == ["ladder.html"]


def test_no_page_takes_the_place_of_an_input(stages: list[str]) -> None:
    manifest = Path(stages[0]) / "manifest.json"
    before = manifest.read_bytes()
    refused = compare(*stages, "--html", str(manifest), "--force")
    assert (refused.exit_code, manifest.read_bytes()) == (1, before)
    assert "is not replaced" in refused.stderr


def test_a_page_that_cannot_be_written_is_one_error(stages: list[str], tmp_path: Path) -> None:
    done = compare(*stages, "--html", str(tmp_path / "nowhere" / "ladder.html"))
    assert (done.exit_code, done.stdout) == (1, "")
    assert "cannot be written" in done.stderr


def test_differences_are_said_in_words(stages: list[str]) -> None:
    words = " ".join(compare(*stages).stdout.split())
    assert "Stage 1 costs 21.5 ms more a step than stage 0, and saves 4.58 GiB between steps and 4.22 GiB" in words
    assert "Stage 0 and stage 2 are fastest: 231 ms a step." in words


@pytest.mark.parametrize("words", [["nowhere"], [str(TRACES)]])
def test_a_folder_without_a_capture_is_one_error(words: list[str]) -> None:
    done = compare(*words)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith("zerotrace: ")


def test_a_manifest_in_place_of_its_folder_is_told_so(stages: list[str]) -> None:
    done = compare(f"{stages[0]}/manifest.json")
    assert (done.exit_code, done.stdout) == (1, "")
    message, hint = done.stderr.splitlines()
    assert message.endswith("stage0/manifest.json: a file; expected the folder of a capture")
    assert hint.strip() == f"give {stages[0]}"


def test_a_manifest_that_contradicts_itself_is_one_error(stages: list[str]) -> None:
    Path(stages[1], "manifest.json").write_text(json.dumps({**manifest_of(stages[1]), "world_size": 9}))
    done = compare(*stages)
    assert (done.exit_code, done.stdout) == (1, "")
    message, hint = done.stderr.splitlines()
    assert "stage1/manifest.json: contradicts itself: world_size is 9" in message
    assert "capture again" in hint


@pytest.mark.parametrize("words", [[], ["x", "--csv", "--json"], ["x", "--force"]])
def test_mistakes_in_the_options_exit_2(words: list[str]) -> None:
    assert compare(*words).exit_code == 2
