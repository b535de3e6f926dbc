"""Lateness, the overlap tax and blocking told twice, as a reader meets them."""

from __future__ import annotations

import pytest

from tests.builders import TraceBuilder
from tests.page.conftest import OpenReport
from tests.page.runs import HostileTexts
from tests.page.test_traffic import Report, cells, report, same
from zerotrace.report.lateness import MAX_RANKS, lateness_part

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
        numbers = {name: value for name, value in vars(lateness).items() if name in row}
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
    from dataclasses import replace

    stragglers = report(*ten_gathers())[0].stragglers
    assert stragglers is not None
    late = stragglers.ranks[1]
    ranks = tuple(replace(late, rank=rank, late_ns=rank) for rank in range(MAX_RANKS + 5))
    part = lateness_part(replace(stragglers, ranks=ranks))
    assert part is not None
    assert len(part.rows) == MAX_RANKS
    assert part.rows[0].rank == MAX_RANKS + 4
    assert part.note == f"The {MAX_RANKS} of {MAX_RANKS + 5} ranks with the most lateness."
