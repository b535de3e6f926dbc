"""Measures pages of many ranks: bytes by section, time and memory to draw, time until ready. Run with ``-s``.

    pytest tests/page/bench_ranks.py -s -m bench

The limits are those of the project (11 MB, 3 s) on two idle cores.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser

from tests.bench.test_many_ranks import Memory
from tests.jobs import Job
from tests.page.bench_page import ROWS_PER_RANK, events_of_rank
from zerotrace.analysis.ranks import shown_ranks, with_overview
from zerotrace.analysis.ranks.choice import MAX_ROWS
from zerotrace.analysis.ranks.overview import MAX_STEPS
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Analysis
from zerotrace.report.build import render
from zerotrace.report.redraw import redraw

pytestmark = [pytest.mark.page, pytest.mark.bench, pytest.mark.timeout(1800)]

MAX_MB = 11.0
MAX_READY_S = 3.0
MAX_DRAW_MIB = 1500

_JITTERED = ("span_ns", "compute_ns", "exposed_transfer_ns", "exposed_wait_ns", "idle_ns")


def breakdown(html: str) -> str:
    """Kilobytes of each section and data block, most first."""
    sections = re.findall(r'<section id="(\w+)"(.*?)</section>', html, re.DOTALL)
    blocks = re.findall(r'<script[^>]*id="([\w-]+)"[^>]*>(.*?)</script>', html, re.DOTALL)
    sizes = {**{f"section {name}": len(text.encode()) for name, text in sections},
             **{f"data {name}": len(text.encode()) for name, text in blocks}}  # fmt: skip
    sizes["all else"] = len(html.encode()) - sum(sizes.values())
    return "\n".join(f"  {size / 1e3:9.1f} kB  {name}" for name, size in sorted(sizes.items(), key=lambda e: -e[1]))


def seconds_until_ready(browser: Browser, path: Path) -> float:
    """The best of three, until the page answers and the map of ranks stands."""
    times = []
    for _ in range(3):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        began = time.perf_counter()
        page.goto(path.as_uri())
        page.evaluate("zerotrace.ready")
        times.append(time.perf_counter() - began)
        page.locator("#rank-map").scroll_into_view_if_needed()
        page.wait_for_selector("#rank-map[data-drawn]")
        context.close()
    return min(times)


def job(num_ranks: int) -> Job:
    """Some 200 rows of device time a rank, and one slow rank."""
    hosts = -(-num_ranks // 8)
    return Job(num_ranks, 100, seed=1, num_steps=4, ranks_a_host=8, slow_us=((num_ranks // 2 + 5, 60.0),),
               clock_us=tuple(100.0 * host for host in range(hosts)))  # fmt: skip


@pytest.fixture(scope="module")
def analysed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[Analysis, Path]]:
    """Jobs of 64, 256 and 1,024 ranks."""
    found = {}
    for num_ranks in (64, 256, 1024):
        folder = job(num_ranks).write(tmp_path_factory.mktemp("bench") / "job", zipped=True)
        analysis, _, _ = analyze([folder], options=AnalyzeOptions(hta=False))
        found[num_ranks] = (analysis, folder)
    return found


@pytest.mark.parametrize("num_ranks", [64, 256, 1024])
def test_a_page_of_many_ranks(
    browser: Browser, analysed: dict[int, tuple[Analysis, Path]], num_ranks: int, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis, folder = analysed[num_ranks]
    began = time.perf_counter()
    with Memory() as memory:
        page = redraw(folder)
    draw_s = time.perf_counter() - began
    ready_s = seconds_until_ready(browser, page)
    html = page.read_text(encoding="utf-8")
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{num_ranks} ranks, {sum(source.num_events for source in analysis.sources):,} events: page "
            f"{len(html.encode()) / 1e6:.2f} MB, drawn in {draw_s:.1f} s with {memory.peak_bytes / 2**20:.0f} MiB at "
            f"most, ready in {ready_s:.2f} s\n{breakdown(html)}"
        )
    assert len(html.encode()) <= 4_000_000, "what grows with ranks is small beside plotly"
    assert ready_s < MAX_READY_S
    assert memory.peak_bytes < MAX_DRAW_MIB << 20


def test_the_largest_page_of_1024_ranks(
    browser: Browser,
    analysed: dict[int, tuple[Analysis, Path]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As many steps as the map draws, and as many rows a rank as real traces have: all is as full as it may be."""
    analysis = analysed[1024][0]
    steps = [part for part in analysis.partition if part.step == 3]
    rng = np.random.default_rng(1)
    parts = tuple(
        replace(part, step=step, **{name: getattr(part, name) + int(rng.integers(300_000)) for name in _JITTERED})
        for step in range(MAX_STEPS)
        for part in steps
    )
    sources = tuple(replace(source, num_device_rows=ROWS_PER_RANK) for source in analysis.sources)
    large = with_overview(replace(analysis, partition=parts, sources=sources, rank_overview=None))
    ranks = sorted(shown_ranks(large) or ())
    assert (len(ranks) + 1) * ROWS_PER_RANK > min(MAX_ROWS, 5 * ROWS_PER_RANK)
    tables: list[tuple[int, pa.Table]] = [(rank, events_of_rank(rank, rng)[0]) for rank in ranks]
    began = time.perf_counter()
    with Memory() as memory:
        html = render(large, tables)
    draw_s = time.perf_counter() - began
    path = tmp_path / "large.html"
    path.write_text(html, encoding="utf-8")
    ready_s = seconds_until_ready(browser, path)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n1,024 ranks × {MAX_STEPS} steps, lanes of {len(ranks)} ranks with {ROWS_PER_RANK:,} rows each: page "
            f"{path.stat().st_size / 1e6:.2f} MB, drawn in {draw_s:.1f} s with {memory.peak_bytes / 2**20:.0f} MiB at "
            f"most, ready in {ready_s:.2f} s\n{breakdown(html)}"
        )
    assert path.stat().st_size <= MAX_MB * 1e6
    assert ready_s < MAX_READY_S
