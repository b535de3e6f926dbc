"""Lateness, the overlap tax and blocking told twice, as a reader meets them."""

from __future__ import annotations

import pytest
from msgspec.structs import asdict, replace

from tests.builders import TraceBuilder
from tests.jobs import Job
from tests.page.conftest import OpenReport
from tests.page.numbers import draw_all, odd_numbers
from tests.page.runs import HostileTexts
from tests.page.test_traffic import Report, cells, report, same
from zerotrace.analysis.run import AnalyzeOptions, Renderer, analyze
from zerotrace.model import Analysis, StragglerVerdict
from zerotrace.report.build import TABLES, render
from zerotrace.report.lateness import MAX_RANKS, lateness_part
from zerotrace.report.rows import EVENT_COLUMNS
from zerotrace.store import to_json

__all__ = ["report"]  # a fixture


def ten_gathers(name: str = "gemm") -> list[TraceBuilder]:
    """Two ranks; rank 1 computes longer ahead of each gather, and equal kernels run alone and beside gathers."""
    shape = {"grid": [8, 15, 1], "block": [384, 1, 1], "name": name}
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(0, 0, 2000).sync_call("cudaDeviceSynchronize", 1, 2, "Context Sync")
        for begin in range(100, 1100, 100):
            trace.compute(begin, begin + 10 + 5 * rank, launched=5).all_gather(begin + 20 + 5 * rank, begin + 60)
            trace.compute(begin + 40, begin + 50, launched=5, **shape).compute(begin + 70, begin + 76, **shape)
        traces.append(trace)
    return traces


@pytest.mark.page
def test_the_page_holds_the_figures_of_the_analysis(open_report: OpenReport, report: Report) -> None:
    analysis, html = report(*ten_gathers())
    stragglers, tax, check = analysis.stragglers, analysis.overlap_tax, analysis.blocking_check
    assert stragglers is not None
    assert tax is not None
    assert check is not None
    page = open_report(html)
    words = " ".join((page.text_content("#collectives") or "").split())
    assert stragglers.sentence in words
    assert tax.sentence in words
    assert check.sentence in " ".join((page.text_content("#method") or "").split())
    for lateness, row in zip(stragglers.ranks, cells(page, "lateness-table"), strict=True):
        numbers = {name: value for name, value in asdict(lateness).items() if name in row}
        assert len(numbers) == 9
        assert all(same(row[name], value) for name, value in numbers.items())
        parts = ("compute_ns", "copy_ns", "comm_ns", "host_bound_ns", "rest_ns", "began_ns")
        assert sum(int(row[part]) for part in parts) == lateness.late_ns
    for one, row in zip(tax.ranks, cells(page, "overlap-tax-table"), strict=True):
        assert row.pop("verdict") == one.verdict.value
        assert all(same(value, getattr(one, name)) for name, value in row.items())
    assert tax.kernels
    for kernel, row in zip(tax.kernels, cells(page, "slowed-kernels-table"), strict=True):
        assert (row.pop("name"), row.pop("launch_shape")) == (kernel.name, kernel.launch_shape)
        assert all(same(value, getattr(kernel, name)) for name, value in row.items())
    for step, row in zip(check.steps, cells(page, "blocking-table"), strict=True):
        assert all(same(value, getattr(step, name)) for name, value in row.items())


@pytest.mark.page
def test_names_stay_names_and_the_tables_fit_a_telephone(open_report: OpenReport, report: Report) -> None:
    texts = HostileTexts()
    for number, text in enumerate(texts.all):
        name = text.encode("utf-8", "replace").decode()
        page = open_report(report(*ten_gathers(name))[1], width=320)
        page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
        assert page.locator("#slowed-kernels-table :is(a, img, b, script)").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
        if not number:
            shown = cells(page, "slowed-kernels-table")[0]["name"]
            assert shown == name


@pytest.mark.page
def test_without_peers_or_waits_the_page_keeps_silent(open_report: OpenReport, report: Report) -> None:
    trace = TraceBuilder().step(0, 0, 1000).all_gather(100, 200).compute(300, 310)
    page = open_report(report(trace)[1])
    assert page.locator("#lateness-title, #blocking-title").count() == 0
    assert page.locator("#overlap-tax-title").count() == 1


def test_of_many_ranks_the_latest_are_shown(report: Report) -> None:
    stragglers = report(*ten_gathers())[0].stragglers
    assert stragglers is not None
    late = stragglers.ranks[1]
    ranks = tuple(replace(late, rank=rank, late_ns=rank) for rank in range(MAX_RANKS + 5))
    part = lateness_part(replace(stragglers, ranks=ranks))
    assert part is not None
    assert len(part.rows) == MAX_RANKS
    assert part.rows[0].rank == MAX_RANKS + 4
    assert part.note == f"The {MAX_RANKS} of {MAX_RANKS + 5} ranks with the most lateness."


@pytest.fixture(scope="module")
def slow_node(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, str]:
    """Eight ranks on two hosts, of which one computes half a millisecond longer ahead of each collective."""
    job = Job(8, 30, seed=1, num_steps=2, ranks_a_host=4, slow_us=tuple((rank, 500.0) for rank in range(4, 8)))
    folder = job.write(tmp_path_factory.mktemp("node") / "job")
    options = AnalyzeOptions(hta=False, jobs=1)
    analysis, out, _ = analyze([folder], options=options, render=Renderer(render, EVENT_COLUMNS, TABLES))
    return analysis, (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.page
def test_ranks_that_are_late_together_stand_in_summary_findings_and_section(
    open_report: OpenReport, slow_node: tuple[Analysis, str]
) -> None:
    analysis, html = slow_node
    assert analysis.stragglers is not None
    group = analysis.stragglers.group
    assert group is not None
    page = open_report(html, width=320)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    lead = " ".join((page.text_content("#verdict .lead") or "").split())
    assert "The others wait for node-1 (ranks 4 to 7), late together: " in lead
    assert "waiting for late ranks" in (page.text_content("[data-tile=exposed]") or "")
    claim = page.text_content("[data-finding=stragglers_together] .claim") or ""
    assert claim.startswith("node-1 (ranks 4 to 7) is late as a whole: the others wait for them at 30 of 30")
    words = " ".join((page.text_content("#collectives") or "").split())
    assert analysis.stragglers.sentence in words
    (row,) = cells(page, "late-group-table")
    assert row.pop("name") == group.name
    parts = ("compute_ns", "copy_ns", "comm_ns", "host_bound_ns", "rest_ns", "began_ns")
    assert sum(int(row[part]) for part in parts) == group.late_ns
    figures = {name: value for name, value in row.items() if name not in parts}
    assert len(figures) == 6
    assert all(same(value, getattr(group, name)) for name, value in figures.items())
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    draw_all(page)
    assert "\n".join(odd_numbers(page, to_json(analysis))[1]) == ""


@pytest.mark.page
def test_a_rank_that_is_early_is_told_in_its_section_alone(
    open_report: OpenReport, slow_node: tuple[Analysis, str]
) -> None:
    analysis, _ = slow_node
    assert analysis.stragglers is not None and analysis.stragglers.group is not None
    early = replace(analysis.stragglers.group, is_early=True)
    found = replace(
        analysis.stragglers, group=early, verdict=StragglerVerdict.WITHIN_NOISE, sentence="Rank 0 arrives earlier."
    )
    page = open_report(render(replace(analysis, stragglers=found, findings=()), ()))
    assert "late together" not in (page.text_content("#verdict") or "")
    assert "Rank 0 arrives earlier." in (page.text_content("#collectives") or "")
    assert "what the others are late by, together" in (page.text_content("#collectives") or "")
