"""Sections 4 and 6: collectives and bytes on the wire, as a reader meets them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from msgspec.structs import asdict, replace
from playwright.sync_api import Page

from tests.builders import TraceBuilder
from tests.page.conftest import OpenReport
from tests.page.runs import HostileTexts, training_run
from zerotrace.analysis.run import AnalyzeOptions, Renderer, analyze
from zerotrace.model import Analysis, CollectiveKind, Collectives, CollectiveSample, StepArrivals, WireLedger
from zerotrace.report.build import render
from zerotrace.report.collectives import MAX_HEAT_RANKS, MAX_TABLE_ROWS, CollectivesSection, collectives_section
from zerotrace.report.rows import EVENT_COLUMNS
from zerotrace.report.theme import DARK, LIGHT
from zerotrace.report.wire import WireSection, wire_section

CHARTS = ("collective-sizes", "collective-arrivals", "wire-bars")
MAX_MARKS = 3000


def two_steps(**where: Any) -> list[TraceBuilder]:
    """Stage 2 on two ranks: gradients by all-reduce, updated parameters, a norm; rank 1 is late."""
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2)
        for step in (2, 3):
            begin, late = 1000 * step, 40 * rank * (step - 1)
            trace.step(step, begin, begin + 1000).compute(begin + 10, begin + 90)
            trace.collective("allreduce", begin + 100 + late, begin + 300, elements=10**6, **where)
            trace.collective("allreduce", begin + 310, begin + 320, elements=1, dtype="Float")
            trace.collective("_allgather_base", begin + 400 + rank, begin + 500, elements=10**6)
        traces.append(trace)
    return traces


Report = Callable[..., tuple[Analysis, str]]


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Analyses traces and draws their page: the analysis and the text of the page."""

    def run(*traces: TraceBuilder, **options: Any) -> tuple[Analysis, str]:
        for trace in traces:
            trace.write(tmp_path / "run")
        chosen = AnalyzeOptions(hta=False, jobs=1, force=True, **options)
        analysis, folder, _ = analyze([tmp_path / "run"], options=chosen, render=Renderer(render, EVENT_COLUMNS))
        return analysis, (folder / "report.html").read_text(encoding="utf-8")

    return run


def figures(analysis: Analysis) -> tuple[Collectives, WireLedger, CollectivesSection, WireSection]:
    collectives, wire = collectives_section(analysis.collectives), wire_section(analysis.wire)
    assert analysis.collectives is not None
    assert analysis.wire is not None
    assert collectives is not None
    assert wire is not None
    return analysis.collectives, analysis.wire, collectives, wire


def cells(page: Page, table: str) -> list[dict[str, str]]:
    """The rows of a table by the names of its columns, exact values where there are any."""
    found: list[dict[str, str]] = page.eval_on_selector(
        f"#{table}",
        """table => {
          const names = [...table.tHead.rows[0].cells].map(cell => cell.dataset.name);
          return [...table.tBodies[0].rows].map(row => Object.fromEntries([...row.cells].map((cell, i) =>
            [names[i], cell.querySelector('data')?.value ?? cell.textContent.trim()])));
        }""",
    )
    return found


def see(page: Page, *charts: str) -> None:
    for chart in charts:
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{chart}.js-plotly-plot .main-svg", state="attached")


def same(text: str, value: float | int | None) -> bool:
    return text == "" if value is None else float(text) == value


@pytest.mark.page
def test_tables_hold_the_figures_of_the_analysis(open_report: OpenReport, report: Report) -> None:
    analysis, html = report(*two_steps())
    page = open_report(html)
    collectives, wire, *_ = figures(analysis)
    shown = cells(page, "collectives-table")
    numbers = [
        "num_calls", "size_bytes", "transfer_ns", "wait_ns", "exposed_ns", "exposed_ratio", "median_busbw_gbps",
        "median_algbw_gbps", "median_transfer_ns", "median_skew_ns", "median_size_bytes", "duration_ns",
        "num_unmatched", "group_size", "num_groups",
    ]  # fmt: skip
    for kind, row in zip(collectives.kinds, shown, strict=True):
        assert all(same(row[name], getattr(kind, name)) for name in numbers)
        assert (row["kind"], row["name"], row["dtype"]) == (kind.kind.value, kind.name, kind.dtype)
    for arrival, row in zip(collectives.arrivals, cells(page, "arrivals-table"), strict=True):
        assert {name: int(value) for name, value in row.items()} == asdict(arrival)
    sample = collectives.sample
    drawn = [
        (int(r["size_bytes"]), int(r["transfer_ns"]), int(r["skew_ns"])) for r in cells(page, "collective-sizes-table")
    ]
    assert drawn == [*zip(sample.size_bytes, sample.transfer_ns, sample.skew_ns)]
    theory, *causes, unexplained, measured = cells(page, "wire-causes-table")
    for row, cause in zip(causes, wire.causes, strict=True):
        assert (same(row["ratio"], cause.ratio), same(row["sent_bytes"], cause.sent_bytes)) == (True, True)
    assert [row["cause"] for row in causes] == [cause.name for cause in wire.causes]
    for row, ratio, sent in (
        (theory, wire.theory_ratio, wire.theory_bytes),
        (unexplained, wire.unexplained_ratio, wire.unexplained_bytes),
        (measured, wire.ratio, wire.sent_bytes),
    ):
        assert (same(row["ratio"], ratio), same(row["sent_bytes"], sent)) == (True, True)
    for traffic, row in zip(wire.traffic, cells(page, "wire-table"), strict=True):
        assert all(
            same(row[name], getattr(traffic, name)) for name in ("num_calls", "elements", "size_bytes", "sent_bytes")
        )


@pytest.mark.page
def test_figures_draw_what_the_analysis_says_in_the_colours_of_the_theme(
    open_report: OpenReport, report: Report
) -> None:
    analysis, html = report(*two_steps())
    page = open_report(html, color_scheme="light")
    collectives, wire, *_ = figures(analysis)
    see(page, *CHARTS)
    heat = page.evaluate("document.getElementById('collective-arrivals').data[0].z")
    assert heat == [[0, 0], [0.041, 0.081]], "1 µs late at the all-gather, 40 and 80 at the all-reduce"
    points = page.locator("#collective-sizes .scatterlayer .point").count()
    assert points == len(collectives.sample.step)
    ends = page.evaluate(
        "document.getElementById('wire-bars').data.filter(t => t.type === 'bar')"
        ".flatMap(t => t.y.map((y, i) => [y, t.base[i], t.x[i]]))"
    )
    last = max(y for y, _, _ in ends)
    assert max(base + length for y, base, length in ends if y == last) == pytest.approx(wire.ratio, abs=0.005)
    assert max(base + length for y, base, length in ends if y == 0) == wire.theory_ratio
    colour = "document.getElementById('collective-sizes').data.find(t => t.name === 'all-gather').marker.color"
    assert page.evaluate(colour) == LIGHT.compute
    page.click("#theme-toggle")
    page.wait_for_function(f"() => {colour} === '{DARK.compute}'")


@pytest.mark.page
def test_sections_fit_a_telephone(open_report: OpenReport, report: Report) -> None:
    page = open_report(report(*two_steps())[1], width=320)
    see(page, *CHARTS)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width in (320, 560, 900):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    # The figure at the end of each bar lies inside of the chart.
    page.set_viewport_size({"width": 320, "height": 800})
    page.wait_for_timeout(300)
    outside = page.evaluate(
        """() => {
          const box = document.getElementById('wire-bars').getBoundingClientRect();
          return [...document.querySelectorAll('#wire-bars .textpoint text')]
            .filter(text => text.getBoundingClientRect().right > box.right + 1).length;
        }"""
    )
    assert outside == 0


@pytest.mark.page
def test_names_from_traces_stay_names(open_report: OpenReport, report: Report) -> None:
    texts = HostileTexts()
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(2, 0, 5000).compute(10, 20)
        for place, text in enumerate(texts.all):
            start = 100 + 100 * place
            name = text.encode("utf-8", "replace").decode()
            trace.collective(name, start, start + 50, elements=4**place, **{"Process Group Name": name})
            trace.collective("allreduce", start + 60, start + 70, elements=4096, dtype=name)
        traces.append(trace)
    page = open_report(report(*traces)[1])
    see(page, "collective-sizes")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.locator("#collectives a, #collectives img, #ledgers a, #ledgers img").count() == 0
    shown = page.text_content("#collectives-table") or ""
    assert texts.link in shown
    assert "\\u202egnp.exe" in shown
    page.set_viewport_size({"width": 1280, "height": 900})
    page.locator("#collective-sizes").scroll_into_view_if_needed()
    hovers = set()
    for point in page.locator("#collective-sizes .scatterlayer .point").all():
        box = point.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        page.wait_for_timeout(60)
        hovers |= set(page.locator("#collective-sizes .hoverlayer text").all_text_contents())
    assert page.locator("#collective-sizes .hoverlayer a").count() == 0
    assert any("</script>" in text for text in hovers), "what is markup in a name is shown as it is"


@pytest.mark.page
def test_tables_can_be_saved(open_report: OpenReport, report: Report, tmp_path: Path) -> None:
    analysis, html = report(*two_steps())
    page = open_report(html)
    for table, rows in (("collectives-table", 3), ("wire-causes-table", 5)):
        with page.expect_download() as waiting:
            page.click(f"[data-csv={table}]")
        path = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(path)
        header, *body = csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
        assert len(body) == rows
        assert "ratio" in " ".join(header)
    assert analysis.wire is not None


@pytest.mark.page
def test_unknown_bytes_are_said_and_not_drawn(open_report: OpenReport, report: Report) -> None:
    page = open_report(report(*two_steps(dtype="UInt4"))[1])
    text = page.text_content("#ledgers") or ""
    assert "No ratio to theory: the element type UInt4 has no size that could be known" in text
    assert page.locator("#wire-bars").count() == 0
    assert [row["sent_bytes"] for row in cells(page, "wire-table") if row["dtype"] == "UInt4"] == [""]


@pytest.mark.page
def test_a_run_without_collectives_says_so(open_report: OpenReport, report: Report) -> None:
    page = open_report(report(TraceBuilder().step(2, 0, 100).compute(10, 20))[1])
    assert "No step has a collective." in (page.text_content("#collectives") or "")
    assert "there is no communication" in (page.text_content("#ledgers") or "")
    bare = open_report(training_run())
    assert "No step was seen whole" in (bare.text_content("#ledgers") or "")


def test_plotly_accepts_the_figures(report: Report) -> None:
    *_, collectives, wire = figures(report(*two_steps())[0])
    for chart in (collectives.scatter, collectives.heat, wire.chart):
        assert chart is not None
        go.Figure(json.loads(json.dumps(chart.figure)))


def test_the_causes_lead_from_theory_to_the_measurement(report: Report) -> None:
    analysis, _ = report(*two_steps())
    *_, section = figures(analysis)
    assert section.chart is not None
    assert section.chart.figure["layout"]["yaxis"]["ticktext"] == [
        "theory",
        "all-reduce for reduce-scatter",
        "measured",
    ]
    beyond = next(t for t in section.chart.figure["data"] if t["meta"]["role"] == "waiting")
    assert (beyond["base"], beyond["x"]) == ([2.0], [1.0])
    assert "stage 1 or 2, inferred from the traffic" in section.lead


def many_ranks(collectives: Collectives, num_ranks: int, num_steps: int) -> Collectives:
    arrivals = tuple(
        StepArrivals(rank=rank, step=step, num_collectives=9, num_last=rank % 7, caused_wait_ns=1000 * rank)
        for rank in range(num_ranks)
        for step in range(num_steps)
    )
    return replace(collectives, arrivals=arrivals)


def test_the_ranks_most_waited_for_are_shown_where_there_are_too_many(report: Report) -> None:
    collectives, *_ = figures(report(*two_steps())[0])
    section = collectives_section(many_ranks(collectives, 512, 10))
    assert section is not None
    assert section.heat is not None
    (heat,) = section.heat.figure["data"]
    assert heat["y"] == [f"rank {rank}" for rank in range(512 - MAX_HEAT_RANKS, 512)]
    assert "of 512 ranks" in section.heat.caption
    assert len(section.arrivals) == MAX_TABLE_ROWS
    assert "2,000" in (section.arrivals_note or "").replace("2000", "2,000")


def test_a_part_of_many_collectives_is_drawn_and_the_caption_says_which(report: Report) -> None:
    collectives, *_ = figures(report(*two_steps())[0])
    count = 1200
    sample = CollectiveSample(
        num_all=1_000_000,
        figures=(0,) * count,
        size_bytes=tuple(range(1, count + 1)),
        transfer_ns=(1000,) * count,
        skew_ns=(0,) * count,
        step=(2,) * count,
        rank=(0,) * count,
        start_ns=(0,) * count,
        end_ns=(1000,) * count,
    )
    section = collectives_section(replace(collectives, sample=sample))
    assert section is not None
    assert section.scatter is not None
    assert "1,200 of 1,000,000 are drawn" in section.scatter.caption
    marks = sum(len(trace["x"]) for trace in section.scatter.figure["data"])
    assert marks <= MAX_MARKS


def test_kinds_of_no_known_name_keep_their_own(report: Report) -> None:
    traces = two_steps()
    for trace in traces:
        trace.collective("my_own", 2600, 2700, elements=8)
    collectives, *_ = figures(report(*traces)[0])
    own = next(kind for kind in collectives.kinds if kind.name == "my_own")
    assert own.kind is CollectiveKind.OTHER
    section = collectives_section(collectives)
    assert section is not None
    assert section.scatter is not None
    assert ("overlapped", "▲ others") in section.scatter.legend


def test_a_trace_without_steps_is_called_the_whole_trace(report: Report) -> None:
    traces = [TraceBuilder(rank, 2).compute(10, 20).collective("allreduce", 100, 200, elements=8) for rank in range(2)]
    analysis, html = report(*traces)
    assert (
        "1 collective of the whole trace was found on several ranks. Calls, bytes and times are the mean of a rank;"
    ) in re.sub("<[^>]*>", "", html)
    assert figures(analysis)[3].chart is None, "what a step sends is unknown"
