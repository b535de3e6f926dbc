"""The page of many ranks, as a reader meets it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser, Page

from tests.jobs import Job
from tests.page.accessibility import violations
from tests.page.conftest import OpenReport
from tests.page.numbers import draw_all, odd_numbers
from tests.page.runs import MS, US, Row, Run, make_run
from tests.page.test_traffic import cells, same
from zerotrace.analysis.ranks import shown_ranks, with_overview
from zerotrace.analysis.run import AnalyzeOptions, Renderer, analyze
from zerotrace.model import Analysis, Diagnostic, Level, RankFigures, RankOverview
from zerotrace.report import build
from zerotrace.report.build import TABLES, render
from zerotrace.report.pages import plain
from zerotrace.report.rows import EVENT_COLUMNS
from zerotrace.store import to_json

pytestmark = pytest.mark.page

SLOW = 17
NUM_RANKS, NUM_STEPS = 24, 4


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, str]:
    """A job of 24 ranks on three hosts, one rank slow: the analysis and its page."""
    job = Job(NUM_RANKS, 40, seed=1, num_steps=NUM_STEPS, slow_us=((SLOW, 60.0),), ranks_a_host=8,
              clock_us=(0.0, 100.0, 200.0))  # fmt: skip
    folder = job.write(tmp_path_factory.mktemp("many") / "job")
    found, place, _ = analyze(
        [folder], options=AnalyzeOptions(jobs=1, hta=True), render=Renderer(render, EVENT_COLUMNS, TABLES)
    )
    return found, (place / "report.html").read_text(encoding="utf-8")


def wide_run(num_ranks: int, slow: int) -> Run:
    """Two steps of so many ranks; one of them computes 0.8 ms of a step of 1 ms, the others half of that."""
    rows, steps = [], []
    for rank in range(num_ranks):
        for step in range(2):
            rows.append(Row(rank, "compute", step * MS + 10 * US, (800 if rank == slow else 400 + rank % 3) * US))
            steps.append((rank, step, step * MS, (step + 1) * MS))
    run = make_run(rows, steps)
    return Run(with_overview(run.analysis), run.rows, run.windows)


def overview(analysis: Analysis) -> RankOverview:
    assert analysis.rank_overview is not None
    return analysis.rank_overview


def map_in_view(page: Page) -> Page:
    page.locator("#rank-map").scroll_into_view_if_needed()
    page.wait_for_selector("#rank-map[data-drawn]")
    return page


def until(page: Page, condition: str) -> None:
    """Waits for an expression of the page; its policy forbids playwright's own way."""
    page.evaluate(f"async () => {{ while (!({condition})) await new Promise(requestAnimationFrame); }}")


def test_the_page_leads_with_the_spread_of_figures(open_report: OpenReport, report: tuple[Analysis, str]) -> None:
    analysis, html = report
    page = open_report(html)
    assert page.eval_on_selector_all("main > section", "all => all.map(s => s.id)")[:3] == ["verdict", "ranks", "step"]
    for spread, row in zip(overview(analysis).spreads, cells(page, "spreads-table"), strict=True):
        assert same(row["lowest"], spread.lowest.value)
        assert same(row["highest"], spread.highest.value)
        assert all(same(row[name], getattr(spread, name)) for name in ("low", "median", "high", "num_outliers"))
        if spread.lowest.value < spread.highest.value:
            assert (row["lowest_rank"], row["highest_rank"]) == (str(spread.lowest.rank), str(spread.highest.rank))
        named = page.text_content(f"#spreads-table [data-key={spread.figure.value}] td.prose") or ""
        assert [int(rank) for rank in re.findall(r"rank (\d+)", named)] == [one.rank for one in spread.outliers]
    bars = page.locator("#spreads-table [data-key=compute_ns] rect")
    compute = next(spread for spread in overview(analysis).spreads if spread.figure.value == "compute_ns")
    assert bars.count() == sum(count > 0 for count in compute.bins)
    assert page.locator("#spreads-table [data-key=compute_ns] rect.outside").count() == 1


def test_the_ranks_shown_in_full_are_named_with_their_reasons(
    open_report: OpenReport, report: tuple[Analysis, str]
) -> None:
    analysis, html = report
    page = open_report(html)
    rows = cells(page, "shown-table")
    assert [int(row["rank"]) for row in rows] == [entry.rank for entry in overview(analysis).shown]
    figures = {one.rank: one for one in overview(analysis).ranks}
    for row in rows:
        assert row.pop("why")
        assert all(same(value, getattr(figures[int(row["rank"])], name)) for name, value in row.items())
    why = page.text_content(f"#shown-table tr:has(th data[value='{SLOW}']) td.prose") or ""
    assert "the slowest" in why
    assert "the last to arrive most often, 40 ×" in why
    assert "stands out most in step without waiting, compute" in why
    assert "zerotrace report DIR --ranks 3,17" in (page.text_content("#ranks") or "")


def test_the_page_shows_no_number_that_is_not_stored(open_report: OpenReport, report: tuple[Analysis, str]) -> None:
    page = map_in_view(open_report(report[1], height=900))
    draw_all(page)
    count, odd = odd_numbers(page, to_json(report[0]))
    assert "\n".join(odd) == ""
    assert count > 1000


def test_rows_and_lanes_elsewhere_are_of_the_ranks_shown(open_report: OpenReport, report: tuple[Analysis, str]) -> None:
    analysis, html = report
    ranks = shown_ranks(analysis)
    assert ranks is not None
    assert len(ranks) <= 8
    page = open_report(html)
    for table in ("partition-table", "kernel-table", "source-table", "gather-steps-table", "overlap-tax-table",
                  "hta-table"):  # fmt: skip
        found = cells(page, table)
        assert {int(row["rank"]) for row in found} == ranks, table
    assert len(cells(page, "partition-table")) == len(ranks) * NUM_STEPS
    lanes = page.evaluate("zerotrace.lanes()")
    assert {int(lane.split("/")[0]) for lane in lanes} == ranks
    caption = page.text_content("#step figcaption") or ""
    assert "those shown in full have bars" in caption
    assert f"has those of all {NUM_RANKS}" in (page.text_content("#step") or "")


def test_the_map_draws_each_rank_and_step(open_report: OpenReport, report: tuple[Analysis, str]) -> None:
    analysis, html = report
    page = map_in_view(open_report(html, height=900))
    found = page.evaluate("zerotrace.ranks()")
    assert found["steps"] == [2, 3, 4, 5]
    assert set(found["drawn"]) == {figure.value for figure in overview(analysis).map_figures}
    assert all(line == list(range(NUM_RANKS)) for lines in found["drawn"].values() for line in lines)
    rows = list(csv.DictReader(io.StringIO(page.evaluate("zerotrace.rankStepsCsv()"))))
    parts = {(part.rank, part.step): part for part in analysis.partition}
    caused = {(a.rank, a.step): a.caused_wait_ns for a in analysis.collectives.arrivals} if analysis.collectives else {}
    assert len(rows) == len(parts) == NUM_RANKS * NUM_STEPS
    for row in rows:
        place = (int(row.pop("rank")), int(row.pop("step")))
        assert int(row.pop("device")) == parts[place].device
        assert int(row.pop("caused_wait_ns")) == caused[place]
        assert row == {name: str(getattr(parts[place], name)) for name in row}


STRENGTH = """([figure, column, columns]) => {
  const canvas = document.querySelector(`#rank-map [data-figure=${figure}]`);
  const scale = canvas.width / canvas.getBoundingClientRect().width;
  const left = canvas.getBoundingClientRect().width < 560 ? 44 : 58;
  const plot = canvas.getBoundingClientRect().width - left - 8;
  const x = left + ((column + 0.5) * plot) / columns;
  const one = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  one.drawImage(canvas, -Math.floor(x * scale), -3);
  const [r, g, b] = one.getImageData(0, 0, 1, 1).data;
  return r + g + b;
}"""


@pytest.mark.parametrize(("width", "slow"), [(320, 211), (320, 399), (1280, 0)])
def test_one_rank_among_hundreds_stays_in_sight_where_ranks_share_pixels(
    open_report: OpenReport, width: int, slow: int
) -> None:
    num_ranks = 400
    page = map_in_view(open_report(wide_run(num_ranks, slow), width=width, height=900))
    lines = page.evaluate("zerotrace.ranks()")["drawn"]["compute_ns"]
    assert all(slow in line for line in lines)
    if width == 320:
        assert len(lines[0]) < 0.6 * num_ranks, "several ranks share a column of pixels"
    here, beside = (
        page.evaluate(STRENGTH, ["compute_ns", rank, num_ranks]) for rank in (slow, (slow + 150) % num_ranks)
    )
    assert here < beside - 200, "the slow rank is drawn stronger: darker, in the light theme"


def test_the_map_is_read_with_the_keyboard_and_leads_to_the_timeline(
    open_report: OpenReport, report: tuple[Analysis, str]
) -> None:
    analysis, html = report
    page = map_in_view(open_report(html, height=900))
    page.focus("#rank-map")
    for key in ("ArrowRight", "End", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    told = page.text_content("#rank-map-status") or ""
    part = next(part for part in analysis.partition if (part.rank, part.step) == (NUM_RANKS - 2, 3))
    assert told.startswith(f"rank {NUM_RANKS - 2}, step 3; step {part.span_ns:,} ns; compute {part.compute_ns:,} ns")
    assert page.is_visible("#rank-map-tip")
    before = page.evaluate("location.hash")
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == before, "no lanes, nowhere to go"
    page.keyboard.press("Home")
    for _ in range(SLOW):
        page.keyboard.press("ArrowRight")
    assert (page.text_content("#rank-map-status") or "").startswith(f"rank {SLOW}, step 3")
    page.keyboard.press("Enter")
    until(page, "location.hash.startsWith('#t=')")
    window = page.evaluate("zerotrace.window()")
    assert window["end"] - window["start"] > 0
    page.keyboard.press("Escape")
    assert page.is_hidden("#rank-map-tip")


def test_the_pointer_reads_the_rank_below_it(open_report: OpenReport, report: tuple[Analysis, str]) -> None:
    page = map_in_view(open_report(report[1], height=900))
    canvas = page.locator("#rank-map [data-figure=compute_ns]")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    plot = box["width"] - 58 - 8
    page.mouse.move(box["x"] + 58 + (SLOW + 0.5) * plot / NUM_RANKS, box["y"] + 4)
    assert (page.text_content("#rank-map-tip b") or "") == f"rank {SLOW}, step 2"
    page.mouse.move(box["x"] + 2, box["y"] + 4)
    assert page.is_hidden("#rank-map-tip")


def test_all_ranks_can_be_saved(open_report: OpenReport, report: tuple[Analysis, str], tmp_path: Path) -> None:
    analysis, html = report
    page = open_report(html)
    with page.expect_download() as waiting:
        page.click("#ranks-csv")
    waiting.value.save_as(tmp_path / "ranks.csv")
    rows = list(csv.DictReader((tmp_path / "ranks.csv").open(encoding="utf-8", newline="")))
    assert [*rows[0]] == list(RankFigures.__struct_fields__)
    for one, row in zip(overview(analysis).ranks, rows, strict=True):
        assert all(same(value, getattr(one, name)) for name, value in row.items())
    for _ in range(2):
        with page.expect_download() as waiting:
            page.click("[data-json]")
        waiting.value.save_as(tmp_path / "analysis.json")
        assert json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8")) == plain(analysis)


def test_an_analysis_that_is_too_large_lies_beside_the_page(
    open_report: OpenReport, report: tuple[Analysis, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    analysis, html = report
    monkeypatch.setattr(build, "MAX_COPY_BYTES", 10_000)
    small = render(analysis, [])
    assert len(small) < len(html) - 10_000
    page = open_report(small)
    assert page.locator("#analysis-data, [data-json]").count() == 0
    assert page.get_attribute(".downloads a", "href") == "analysis.json"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_breaks_wcag(open_report: OpenReport, report: tuple[Analysis, str], scheme: str) -> None:
    page = map_in_view(open_report(report[1], height=900, color_scheme=scheme))
    page.focus("#rank-map")
    page.keyboard.press("ArrowRight")
    assert violations(page) == []


def test_the_section_fits_any_window(open_report: OpenReport, report: tuple[Analysis, str]) -> None:
    page = map_in_view(open_report(report[1], width=320, height=900))
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width in (320, 560, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        axis = "document.querySelector('[data-axis]').clientWidth"
        until(page, f"{axis} === document.getElementById('rank-map').clientWidth")


def test_the_map_changes_colour_with_the_theme(open_report: OpenReport, report: tuple[Analysis, str]) -> None:
    page = map_in_view(open_report(report[1], height=900, color_scheme="light"))
    before = page.evaluate(STRENGTH, ["compute_ns", 3, NUM_RANKS])
    page.click("#theme-toggle")
    until(page, f"({STRENGTH})(['compute_ns', 3, {NUM_RANKS}]) < {before - 200}")


def test_up_to_sixteen_ranks_nothing_of_it_is_there(open_report: OpenReport) -> None:
    run = wide_run(16, 3)
    assert run.analysis.rank_overview is None
    page = open_report(run)
    assert page.locator("#ranks, #rank-map, #ranks-data").count() == 0
    assert len(cells(page, "partition-table")) == 32
    assert "shown in full" not in (page.text_content("main") or "")
    assert json.loads(page.text_content("#analysis-data") or "") == plain(run.analysis)


def test_two_devices_of_a_rank_have_columns_of_their_own(open_report: OpenReport) -> None:
    rows = [Row(rank, "compute", 10, 500 + 10 * device, device=device) for rank in range(17) for device in range(2)]
    run = make_run(rows, [(rank, 1, 0, 1000) for rank in range(17)])
    second = [replace(one, device=1) for one in run.analysis.ranks]
    parts = tuple(replace(part, device=device) for part in run.analysis.partition for device in range(2))
    doubled = replace(run.analysis, ranks=(*run.analysis.ranks, *second), partition=parts)
    page = map_in_view(open_report(Run(with_overview(doubled), run.rows, run.windows), height=900))
    assert len(page.evaluate("zerotrace.ranks()")["drawn"]["compute_ns"][0]) == 34
    page.focus("#rank-map")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert (page.text_content("#rank-map-status") or "").startswith("rank 0, device 1, step 1")


def test_without_scripts_every_figure_is_there(browser: Browser, report: tuple[Analysis, str], tmp_path: Path) -> None:
    (tmp_path / "plain.html").write_text(report[1], encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "plain.html").as_uri())
    assert page.locator("#spreads-table tbody tr").count() == len(overview(report[0]).spreads)
    assert page.is_visible("#shown-table")
    assert not page.is_visible("#rank-map")
    assert not page.is_visible("#ranks-csv")
    context.close()


def test_ten_thousand_notes_and_a_hostile_name_do_no_harm(open_report: OpenReport) -> None:
    run = wide_run(20, 3)
    notes = [
        Diagnostic(code="odd", level=Level.WARNING, message="rank is odd", file=f"rank_{k}<img src=x>.json")
        for k in range(2000)
    ]
    page = open_report(run.with_(diagnostics=tuple(notes)))
    assert page.locator("#verdict li.warning").count() == 1
    assert page.locator("main img").count() == 0
