"""Every number that a page shows stands, to the last digit, in the JSON beside it; none is worked out while drawing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.captures import CpuCaptures
from tests.page.conftest import OpenReport
from tests.page.numbers import Told, draw_all, odd_chart, odd_numbers, reads_as
from tests.page.runs import Run, host_run, hta_report, labelled_run, manifest, training_run
from tests.page.test_compare import page_of
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.report.build import render
from zerotrace.report.redraw import redraw
from zerotrace.store import ANALYSIS_FILE, to_json

pytestmark = pytest.mark.page

RUNS = ("single", "stage0", "stage1", "stage2", "stage3")
KIN = ("zero1", "fsdp2")


def hold(open_report: OpenReport, html: str, stored: str | bytes) -> tuple[int, list[str]]:
    page = open_report(html, height=900)
    draw_all(page)
    return odd_numbers(page, stored)


def stored_page(folder: Path) -> tuple[str, str]:
    """The page of an analysed run, drawn anew, and its JSON."""
    page = redraw(folder)
    return page.read_text(encoding="utf-8"), page.with_name(ANALYSIS_FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [*RUNS, *KIN])
def test_a_report_shows_no_number_that_is_not_stored(
    open_report: OpenReport, ladder: Mapping[str, Path], name: str
) -> None:
    count, odd = hold(open_report, *stored_page(ladder[name]))
    assert "\n".join(odd) == ""
    assert count > (300 if name == "single" else 1000)


def test_nor_does_one_with_hta_beside_ours_and_a_baseline(
    open_report: OpenReport, ladder: Mapping[str, Path], tmp_path: Path
) -> None:
    _, folder, _ = analyze([ladder["stage3"]], tmp_path / "analysis", AnalyzeOptions(baseline=ladder["single"]))
    count, odd = hold(open_report, *stored_page(folder))
    assert "\n".join(odd) == ""
    assert count > 3000


@pytest.mark.capture
def test_nor_does_one_of_a_capture_on_cpus(open_report: OpenReport, cpu_captures: CpuCaptures, tmp_path: Path) -> None:
    _, folder, _ = analyze([cpu_captures[3]], tmp_path / "analysis", AnalyzeOptions(hta=False))
    count, odd = hold(open_report, *stored_page(folder))
    assert "\n".join(odd) == ""
    assert count > 500


@pytest.mark.parametrize(
    "make",
    [
        host_run,
        labelled_run,
        lambda: training_run(manifest=manifest(), hta=hta_report()),
        lambda: training_run(num_ranks=17, num_steps=5),
    ],
    ids=["host time", "labels", "small", "many ranks"],
)
def test_nor_does_one_of_a_run_made_by_hand(open_report: OpenReport, make: Callable[[], Run]) -> None:
    run = make()
    _, odd = hold(open_report, render(run.analysis, run.events), to_json(run.analysis))
    assert "\n".join(odd) == ""


@pytest.mark.parametrize("names", [RUNS, ("stage2", "stage3", "again"), ("stage3",), ("stage1", *KIN)], ids=", ".join)
def test_a_comparison_shows_no_number_that_is_not_stored(
    open_report: OpenReport, ladder: Mapping[str, Path], tmp_path: Path, names: tuple[str, ...]
) -> None:
    told, html = page_of([ladder[name] for name in names], tmp_path)
    count, odd = hold(open_report, html, json.dumps(told))
    assert "\n".join(odd) == ""
    assert count > 50


def test_a_number_that_is_worked_out_while_drawing_is_found(open_report: OpenReport) -> None:
    run = training_run(manifest=manifest())
    drawn, stored = render(run.analysis, run.events), to_json(run.analysis)
    part = run.analysis.partition[0]
    other = replace(
        run.analysis, partition=(replace(part, idle_ns=(part.idle_ns or 0) + 1), *run.analysis.partition[1:])
    )
    _, odd = hold(open_report, render(other, run.events), stored)
    assert [line for line in odd if line.startswith("partition-table")] != []
    sentence = drawn.replace("Rows are given to steps", "Half of 17,123 rows are given to steps")
    assert any("17,123" in line for line in hold(open_report, sentence, stored)[1])
    share = re.sub(r'(<data class="n" value="[^"]+">)([^<]+)(</data> of the profiled step)', r"\g<1>99.1 %\3", drawn)
    assert any("'99.1 %' is no reading" in line for line in hold(open_report, share, stored)[1])
    bars = drawn.replace(", of a step of ", " (a third of it 7.53 ms), of a step of ")
    assert any("step-bars" in line and "7.53" in line for line in hold(open_report, bars, stored)[1])
    alone = drawn.replace('<h2 id="method-title">', '<p>3</p><h2 id="method-title">')
    assert any("'3'" in line for line in hold(open_report, alone, stored)[1])


@pytest.mark.parametrize(
    ("text", "value", "right"),
    [
        ("63.1 ms", 63_140_000, True),
        ("63.1 ms", 63_240_000, False),
        ("−0.014", -13_791, True),
        ("0.014", -13_791, True),
        ("−0.014", 13_791, False),
        ("8,582", 8582, True),
        ("8,582", 8583, False),
        ("1.44 GiB", 1_548_160_000, True),
        ("72.9 %", 0.72874, True),
        ("72.9 %", 0.7302, False),
        ("< 0.1 %", 0.0004, True),
        ("2.19 ×", 2.1904, True),
        ("–", 3, True),
    ],
)
def test_a_text_reads_as_the_number_that_it_rounds(text: str, value: float, right: bool) -> None:
    assert reads_as(text, value) is right


@pytest.mark.parametrize(
    ("text", "shown", "is_explained"),
    [
        ("rank 0, step 10: last at 6 of 42, 1.04 s", ["1.04 s", "42", "6", "1"], True),
        ("rank 0, step 10: last at 6 of 42, 1.04 s", ["1.04 s", "6", "1"], False),
        ("stage 010.41", ["10.41"], True),
        ("stage 010.41", ["7"], False),
    ],
)
def test_what_a_chart_shows_is_told_from_what_it_counts_by(text: str, shown: list[str], is_explained: bool) -> None:
    chart = {"figures": [], "guides": shown, "texts": [text]}
    assert (not list(odd_chart("chart", chart, Told()))) is is_explained
