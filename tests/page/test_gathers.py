"""Section 5: stage 3's gathers, as a reader meets them."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest
from playwright.sync_api import Page

from tests.builders import BASE_TIME_NS, TraceBuilder
from tests.page.conftest import OpenReport
from tests.page.runs import HostileTexts
from tests.page.test_traffic import Report, cells, report, same, see
from tests.unit.test_gathers import DEMAND, cold_and_warm, stage_three
from zerotrace.model import SlackBin
from zerotrace.report.gathers import MAX_MODULES, module_name, slack_name
from zerotrace.report.theme import DARK, LIGHT

__all__ = ["report"]

CHARTS = ("gather-modules", "gather-slack")
TOTALS = ("num_gathers", "num_bytes", "gather_ns", "hidden_ratio", "hidden_transfer_ratio", "hidden_ns", "exposed_ns",
          "blocking_ns", "transfer_ns", "wait_ns")  # fmt: skip


def both_ranks() -> list[TraceBuilder]:
    return [stage_three(0), stage_three(1, early_by=10)]


@pytest.mark.page
def test_tables_and_tile_hold_the_figures_of_the_analysis(open_report: OpenReport, report: Report) -> None:
    analysis, html = report(*both_ranks())
    page, found = open_report(html), analysis.gathers
    assert found is not None and found.total is not None
    groups = [found.total, *found.kinds, *found.phases, *found.ranks]
    for group, row in zip(groups, cells(page, "gather-groups-table"), strict=True):
        assert all(same(row[name], getattr(group.totals, name)) for name in TOTALS)
        assert same(row["num_late"], group.num_late)
    for group, row in zip(found.modules, cells(page, "gather-modules-table"), strict=True):
        assert row["module"] == module_name(group.module)
        assert all(same(row[name], getattr(group.totals, name)) for name in TOTALS)
        assert same(row["num_demand"], group.num_demand)
    for bin_, row in zip(found.slack, cells(page, "gather-slack-table"), strict=True):
        assert all(same(row[n], getattr(bin_, n)) for n in ("low_ns", "high_ns", "num_prefetch", "num_demand"))
    for step, row in zip(found.steps, cells(page, "gather-steps-table"), strict=True):
        assert all(same(row[name], getattr(step.totals, name)) for name in TOTALS)
        names = ("num_prefetch", "num_demand", "num_refresh", "coordinator_ns", "coordinator_host_bound_ns",
                 "num_forced_syncs", "forced_sync_ns")  # fmt: skip
        assert all(same(row[name], getattr(step, name)) for name in names)
    ratios = [group.totals.hidden_ratio or 0 for group in found.ranks]
    tile = page.locator("[data-tile=prefetch]")
    assert tile.get_attribute("data-hidden-ratio-max") == str(max(ratios))
    assert "38.5–41.3 %" in (tile.text_content() or "")
    assert "39.9 % of their time" in (page.text_content("#gathers .lead") or "")
    assert "Σ hidden ÷ Σ gather" in (page.text_content("#method") or "")


@pytest.mark.page
def test_a_late_gather_leads_to_its_place_in_the_timeline(open_report: OpenReport, report: Report) -> None:
    analysis, html = report(*both_ranks())
    assert analysis.gathers is not None
    page = open_report(html, height=900)
    rows = cells(page, "held-table")
    # The demand of d on both ranks, then a, which is late on both.
    assert [(row["kind"], row["need_module"], row["blocking_ns"]) for row in rows] == [
        ("demand", "d", "36000"),
        ("demand", "d", "36000"),
        ("prefetch", "a", "8000"),
        ("prefetch", "a", "8000"),
    ]
    late = analysis.gathers.late[0]
    page.get_by_role("link", name=f"rank {late.rank}, step 0, number {late.gather}").click()
    window = page.evaluate("zerotrace.window()")
    start, end = late.start_ns - BASE_TIME_NS, late.end_ns - BASE_TIME_NS
    assert window["start"] <= start < end <= window["end"]
    assert window["end"] - window["start"] <= 3 * (end - start)
    assert page.evaluate("document.getElementById('timeline').getBoundingClientRect().top < innerHeight")


@pytest.mark.page
def test_figures_draw_hidden_exposed_and_waiting_in_the_colours_of_the_theme(
    open_report: OpenReport, report: Report
) -> None:
    analysis, html = report(*both_ranks())
    page = open_report(html, color_scheme="light")
    see(page, *CHARTS)
    bars = page.evaluate(
        "document.getElementById('gather-modules').data.filter(t => t.type === 'bar')"
        ".map(t => [t.meta.role, Array.from(t.y), Array.from(t.x)])"
    )
    drawn = {(role, y): round(1e6 * x) for role, ys, xs in bars for y, x in zip(ys, xs)}
    assert analysis.gathers is not None
    for y, group in enumerate(analysis.gathers.modules):
        parts = [drawn.get((role, y), 0) for role in ("overlapped", "exposed", "waiting")]
        assert parts[0] == group.totals.hidden_ns / 2
        assert sum(parts) == group.totals.gather_ns / 2
    # Rank 1 waits 10 µs for rank 0 with compute beside it: none of the exposed time is waiting.
    assert not any(role == "waiting" for role, _ in drawn)
    counts = page.evaluate("document.getElementById('gather-slack').data.find(t => t.meta.role === 'compute').x")
    assert sum(counts) == 6
    colour = "document.getElementById('gather-modules').data.find(t => t.meta.role === 'overlapped').marker.color"
    assert page.evaluate(colour) == LIGHT.overlapped
    page.click("#theme-toggle")
    page.wait_for_function(f"() => {colour} === '{DARK.overlapped}'")


@pytest.mark.page
def test_the_section_fits_a_telephone(open_report: OpenReport, report: Report) -> None:
    page = open_report(report(*both_ranks())[1], width=320)
    see(page, *CHARTS)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width in (320, 560, 900):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0


@pytest.mark.page
def test_tables_can_be_saved_with_exact_values(open_report: OpenReport, report: Report, tmp_path: Path) -> None:
    page = open_report(report(*both_ranks())[1])
    with page.expect_download() as waiting:
        page.click("[data-csv=held-table]")
    path = tmp_path / waiting.value.suggested_filename
    waiting.value.save_as(path)
    header, first, *rest = csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
    assert header[:5] == ["gather", "kind", "blocking_ns", "slack_ns", "need_module"]
    assert first[1:5] == ["demand", "36000", "0", "d"]
    assert len(rest) == 3


@pytest.mark.page
def test_names_of_modules_stay_names(open_report: OpenReport, report: Report) -> None:
    texts = HostileTexts()
    trace = TraceBuilder().step(0, 0, 100 + 100 * len(texts.all))
    for place, text in enumerate(texts.all):
        at, name = 10 + 100 * place, text.encode("utf-8", "replace").decode()
        trace.fetch(name, at, at + 20).gather(DEMAND, at + 2, at + 10, at + 40, params=f"{name}.weight", module=name)
        trace.compute(at + 40, at + 60, launched=at + 22)
    page = open_report(report(trace)[1])
    see(page, "gather-modules")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.locator("#gathers img, #gathers script").count() == 0
    assert page.locator("#gathers a:not([data-window])").count() == 0
    assert texts.link in (page.text_content("#gather-modules-table") or "")
    assert "\\u202egnp.exe" in (page.text_content("#held-table") or "")


def words(page: Page) -> str:
    return page.text_content("#gathers") or ""


@pytest.mark.page
def test_below_stage_three_one_line_says_why_there_is_nothing(open_report: OpenReport, report: Report) -> None:
    trace = TraceBuilder().step(0, 0, 100).compute(10, 30)
    page = open_report(report(trace, stage=2)[1])
    assert "hidden ratio" not in (page.text_content("#method") or "")
    assert "ZeRO stage 2 keeps whole parameters on every rank" in words(page)
    assert page.locator("#gathers table, #gathers figure").count() == 0
    assert page.locator("[data-tile=prefetch]").count() == 0


@pytest.mark.page
def test_cold_steps_are_said_and_stand_in_the_table_of_steps_alone(open_report: OpenReport, report: Report) -> None:
    page = open_report(report(cold_and_warm(prefetch=True))[1])
    assert "in none of these figures: step 0." in words(page)
    assert [row["cold"] for row in cells(page, "gather-steps-table")] == ["yes", "no"]
    assert cells(page, "gather-groups-table")[0]["num_gathers"] == "2"


@pytest.mark.page
def test_nothing_that_holds_compute_back_is_said(open_report: OpenReport, report: Report) -> None:
    trace = TraceBuilder().step(0, 0, 100).gather(DEMAND, 2, 10, 20, params="a.weight").compute(40, 60, launched=30)
    assert "No demand or prefetch holds compute back." in words(open_report(report(trace)[1]))


def test_plotly_accepts_the_figures_of_many_modules(report: Report) -> None:
    trace = TraceBuilder().step(0, 0, 10_000)
    for number in range(100):
        at = 10 + 50 * number
        trace.fetch(f"m{number}", at, at + 20).compute(at + 30, at + 40, launched=at + 22)
        trace.gather(DEMAND, at + 2, at + 10, at + 20 + number % 10, params=f"m{number}.weight")
    _, html = report(trace)
    page = json.loads(html.partition('id="page-data">')[2].partition("</script>")[0])
    for name in CHARTS:
        go.Figure(page["charts"][name])
    bars = page["charts"]["gather-modules"]["layout"]["yaxis"]["ticktext"]
    assert len(bars) == MAX_MODULES
    caption = re.sub("<[^>]*>", "", html.partition("the hidden ratio stands at the end.")[2][:300])
    assert caption.startswith(f" The {MAX_MODULES} of 100 modules with the most gather time.")


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [
        (None, -100_000_000, "more than 100 ms after"),
        (-10_000_000, -1_000_000, "1 ms to 10 ms after"),
        (-100_000, 0, "0 to 100 µs after"),
        (0, 100_000, "0 to 100 µs before"),
        (100_000_000, None, "100 ms before, or more"),
    ],
)
def test_bins_of_slack_have_names(low: int | None, high: int | None, name: str) -> None:
    assert slack_name(SlackBin(low_ns=low, high_ns=high, num_demand=0, num_prefetch=0, num_unknown=0)) == name
