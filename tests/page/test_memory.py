"""Section 6, memory, as a reader meets it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from msgspec.structs import replace
from playwright.sync_api import Page

from tests.page.conftest import OpenReport
from tests.page.runs import HostileTexts, training_run
from tests.page.test_traffic import cells, same, see
from zerotrace.analysis.memory.report import memory_report
from zerotrace.analysis.run import AnalyzeOptions, Renderer, analyze
from zerotrace.model import Analysis, MemoryReport, OwnedBytes, Owner, OwnerGap, ProfiledMemory, RankMemory, RunManifest
from zerotrace.report.build import render
from zerotrace.report.memory import gap_text, memory_section
from zerotrace.report.memory_words import signed_bytes
from zerotrace.report.rows import EVENT_COLUMNS
from zerotrace.report.theme import DARK, LIGHT
from zerotrace.store import read_manifest

TRACES = Path(__file__).resolve().parents[2] / "traces"
CHARTS = ("memory-bars", "memory-timeline")
GIB, MIB = 1 << 30, 1 << 20
MAX_MARKS = 3000


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, str]:
    """The analysis of the capture that ships, and its page."""
    folder = tmp_path_factory.mktemp("memory") / "a"
    renderer = Renderer(render, EVENT_COLUMNS)
    analysis, folder, _ = analyze([TRACES / "stage3"], folder, AnalyzeOptions(hta=False), renderer)
    return analysis, (folder / "report.html").read_text(encoding="utf-8")


def memory_of(analysis: Analysis) -> MemoryReport:
    assert analysis.memory is not None
    return analysis.memory


def manifest_of(stage: int) -> RunManifest:
    manifest = read_manifest(TRACES / f"stage{stage}")
    assert manifest is not None
    return manifest


def with_memory(analysis: Analysis, memory: MemoryReport | None, **changes: Any) -> str:
    run = training_run()
    return render(replace(run.analysis, memory=memory, **changes), run.events)


@pytest.mark.page
def test_tables_hold_the_figures_of_the_analysis(open_report: OpenReport, shipped: tuple[Analysis, str]) -> None:
    analysis, html = shipped
    memory = memory_of(analysis)
    page = open_report(html)
    for table, found in (("memory-resident-table", memory.resident), ("memory-peak-table", memory.peak)):
        assert found is not None
        *rows, whole = cells(page, table)
        names = ("measured_bytes", "deepspeed_bytes", "paper_bytes", "gap_bytes", "unexplained_bytes")
        for row, gap in zip(rows, found.owners, strict=True):
            assert row["owner"] == gap.owner.value
            assert all(same(row[name], getattr(gap, name)) for name in names)
        assert same(whole["measured_bytes"], found.measured_bytes)
        assert same(whole["unexplained_bytes"], found.unexplained_bytes)
    for rank, row in zip(memory.ranks, cells(page, "memory-rank-table"), strict=True):
        names = tuple(name for name in row if name.endswith("_bytes"))
        assert len(names) == 8
        assert all(same(row[name], getattr(rank, name)) for name in names)
    assert memory.deepspeed is not None
    lines = [*memory.deepspeed.lines, *(line for peak in memory.deepspeed.peaks for line in peak.lines)]
    for line, row in zip(lines, cells(page, "memory-ledger-table"), strict=True):
        assert (row["owner"], row["formula"], row["source"]) == (line.owner.value, line.formula, line.source)
        assert same(row["bytes"], line.bytes)
    assert memory.curve is not None
    window = cells(page, "memory-curve-table")
    assert [int(row["after_ns"]) for row in window] == list(memory.curve.after_ns)
    for part in memory.curve.owners:
        assert [int(row[f"{part.owner.value}_bytes"]) for row in window] == list(part.bytes)
    text = page.text_content("#ledgers") or ""
    assert "the reduce bucket (954 MiB, reduce_bucket_size) and the flat gradient shard (738 MiB)" in text


@pytest.mark.page
def test_figures_draw_what_the_analysis_says(open_report: OpenReport, shipped: tuple[Analysis, str]) -> None:
    analysis, html = shipped
    memory = memory_of(analysis)
    assert memory.resident is not None and memory.peak is not None and memory.curve is not None
    page = open_report(html, color_scheme="light")
    see(page, *CHARTS)
    segments = page.evaluate(
        "document.getElementById('memory-bars').data.filter(t => t.type === 'bar')"
        ".flatMap(t => t.y.map((y, i) => [y, t.base[i] + t.x[i]]))"
    )
    ends: dict[float, float] = {}
    for place, end in segments:
        ends[place] = max(end, ends.get(place, 0))
    totals = [
        memory.resident.measured_bytes,
        memory.resident.deepspeed_bytes,
        memory.resident.paper_bytes,
        memory.peak.measured_bytes,
        memory.peak.deepspeed_bytes,
    ]
    assert [ends[place] * GIB for place in sorted(ends)] == pytest.approx(totals, rel=1e-9)
    stacked = page.evaluate("document.getElementById('memory-timeline').data.map(t => t.y)")
    highest = max(sum(values) for values in zip(*stacked))
    assert highest * GIB == pytest.approx(memory.peak.measured_bytes, rel=1e-9)
    fill = "document.getElementById('memory-timeline').data.find(t => t.meta.role === 'compute').fillcolor"
    assert page.evaluate(fill) == LIGHT.compute
    assert page.evaluate("document.querySelectorAll('#ledgers .main-svg path').length") < MAX_MARKS
    page.click("#theme-toggle")
    page.wait_for_function(f"() => {fill} === '{DARK.compute}'")


@pytest.mark.page
def test_the_section_fits_a_telephone(open_report: OpenReport, shipped: tuple[Analysis, str]) -> None:
    page = open_report(shipped[1], width=320)
    see(page, *CHARTS)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width in (320, 560, 900):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    page.set_viewport_size({"width": 320, "height": 800})
    page.wait_for_timeout(300)
    assert outside(page, "memory-bars") == 0


def outside(page: Page, chart: str) -> int:
    """Figures at the ends of bars that reach out of the chart."""
    count: int = page.evaluate(
        """chart => {
          const box = document.getElementById(chart).getBoundingClientRect();
          return [...document.querySelectorAll(`#${chart} .textpoint text`)]
            .filter(text => text.getBoundingClientRect().right > box.right + 1).length;
        }""",
        chart,
    )
    return count


@pytest.mark.page
def test_tables_can_be_saved(open_report: OpenReport, shipped: tuple[Analysis, str], tmp_path: Path) -> None:
    page = open_report(shipped[1])
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    tables = ("memory-resident-table", "memory-peak-table", "memory-rank-table", "memory-ledger-table")
    for table in (*tables, "memory-curve-table"):
        with page.expect_download() as waiting:
            page.click(f"[data-csv={table}]")
        path = tmp_path / waiting.value.suggested_filename
        waiting.value.save_as(path)
        header, *body = csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline=""))
        assert len(body) == len(cells(page, table))
        assert any(name.endswith("bytes") for name in header)


@pytest.mark.page
def test_where_nothing_is_known_the_reason_stands(open_report: OpenReport) -> None:
    page = open_report(with_memory(training_run().analysis, None, memory_reason="the traces have <b>no</b> manifest"))
    assert "Nothing is known of memory: the traces have <b>no</b> manifest." in (page.text_content("#ledgers") or "")
    assert page.locator("#ledgers b, #memory-bars").count() == 0


@pytest.mark.page
def test_a_run_on_cpu_shows_what_the_engine_holds(open_report: OpenReport) -> None:
    held = OwnedBytes(owner=Owner.MASTER, part="x", bytes=3 * MIB, requested_bytes=3 * MIB, num_blocks=1)
    rank = RankMemory(rank=0, device=None, resident=(held,), resident_bytes=None)
    manifest = replace(manifest_of(1), device="cpu", backend="gloo")
    report, _ = memory_report(manifest, [rank])
    assert report is not None
    page = open_report(with_memory(training_run().analysis, report))
    text = page.text_content("#ledgers") or ""
    assert "torch keeps no history of a CPU's memory" in text
    assert [row["resident_bytes"] for row in cells(page, "memory-rank-table")] == [""]
    assert page.locator("#memory-timeline, #memory-peak-table").count() == 0


@pytest.mark.page
def test_totals_of_marks_are_shown_by_device(open_report: OpenReport) -> None:
    texts = HostileTexts()
    profiled = tuple(
        ProfiledMemory(rank=0, device=text, baseline_bytes=None, peak_bytes=5, peak_ns=1, end_bytes=3,
                       peak_reserved_bytes=9, num_events=2)
        for text in texts.all
    )  # fmt: skip
    page = open_report(with_memory(training_run().analysis, MemoryReport(profiled=profiled)))
    rows = cells(page, "memory-profiled-table")
    assert [row["peak_bytes"] for row in rows] == ["5"] * len(texts.all)
    assert [row["baseline_bytes"] for row in rows] == [""] * len(texts.all)
    assert page.locator("#ledgers a, #ledgers img, #ledgers script").count() == 0


def test_plotly_accepts_the_figures(shipped: tuple[Analysis, str]) -> None:
    section = memory_section(shipped[0].memory)
    assert section is not None
    for chart in (section.chart, section.timeline):
        assert chart is not None
        go.Figure(json.loads(json.dumps(chart.figure)))


def test_without_a_measurement_the_ledgers_stand_alone() -> None:
    report, _ = memory_report(manifest_of(2), [])
    section = memory_section(report)
    assert section is not None
    assert section.chart is not None
    assert section.chart.figure["layout"]["yaxis"]["ticktext"] == ["DeepSpeed’s", "the paper’s"]
    assert section.lead.startswith("In theory a rank holds 6.49 GiB")
    assert section.timeline is None


def test_a_run_without_an_engine_is_measured_beside_the_ledger_of_its_runner(tmp_path: Path) -> None:
    analysis, _, _ = analyze([TRACES / "single"], tmp_path / "a", AnalyzeOptions(hta=False))
    section = memory_section(analysis.memory)
    assert section is not None
    assert section.chart is not None
    rows = ["between steps", "torch’s", "the paper’s", "at the peak", "torch’s"]
    assert section.chart.figure["layout"]["yaxis"]["ticktext"] == rows
    assert "less than the paper's 16Ψ (11.5 GiB)" in section.lead
    for found in (memory_of(analysis).resident, memory_of(analysis).peak):
        assert found is not None
        assert found.unexplained_ratio < 0.001
    held = memory_of(analysis).ranks[0]
    assert held.peak_bytes == held.window_peak_bytes


def test_gaps_have_words() -> None:
    base: dict[str, Any] = {"owner": Owner.MASTER, "measured_bytes": 5, "deepspeed_bytes": 5, "paper_bytes": 5.0}

    def gap(**changes: Any) -> OwnerGap:
        return OwnerGap(**{**base, "gap_bytes": 0, "unexplained_bytes": 0, **changes})

    assert gap_text(gap()) == "agrees"
    assert gap_text(gap(gap_bytes=3)) == "rounding of the allocator"
    assert gap_text(gap(gap_bytes=3, unexplained_bytes=3)) == "unexplained"
    assert gap_text(gap(words="a name")) == "a name"
    assert [signed_bytes(value) for value in (None, 0, 2048, -MIB)] == ["–", "0 B", "+2.00 KiB", "−1.00 MiB"]
