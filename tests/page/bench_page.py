"""Measures the page at a million intervals: size, time until it answers, time of a zoom. Run as a test with ``-s``.

    pytest tests/page/bench_page.py -s

The limits are those of the project (11 MB, 3 s, 0.5 s) on two idle cores.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page

from tests.page.runs import EPOCH, MS, Row, make_run
from zerotrace.report.build import render
from zerotrace.schema import EVENTS

pytestmark = [pytest.mark.page, pytest.mark.bench]

NUM_RANKS = 8
ROWS_PER_RANK = 125_000
NUM_NAMES = 300
MAX_MB = 11.0
MAX_READY_S = 3.0
MAX_ZOOM_S = 0.5


def events_of_rank(rank: int, rng: np.random.Generator) -> tuple[pa.Table, int]:
    """Kernels of a few µs on four streams, the durations of a name alike as they are in traces; and the last end."""
    count = ROWS_PER_RANK
    name = rng.zipf(1.3, count) % NUM_NAMES
    typical = rng.integers(1_500, 60_000, NUM_NAMES)
    duration = (typical[name] * rng.normal(1, 0.04, count)).clip(900).astype(np.int64)
    start = np.cumsum(duration // 2 + rng.integers(500, 12_000, count))
    category = np.where(name % 11 == 3, "comm", np.where(name % 13 == 5, "copy", "compute"))
    columns = {
        "event": np.arange(count),
        "cat": pa.array(["kernel"] * count).dictionary_encode(),
        "name": pa.array([f"void at::native::elementwise_kernel<{n}, at::BFloat16>(int, char const*)" for n in name]),
        "category": pa.array(category),
        "start_ns": EPOCH + rank * 777 + start,
        "dur_ns": duration,
        "device": np.zeros(count, dtype=np.int32),
        "stream": np.where(category == "comm", 20, np.where(category == "copy", 29, 7)),
    }
    arrays = [
        pa.array(columns[c.name]).cast(c.type) if c.name in columns else pa.nulls(count, c.type) for c in EVENTS.columns
    ]
    return pa.table(arrays, schema=EVENTS.arrow()), int((start + duration).max())


def zoom_times(page: Page, end: int) -> list[float]:
    """Milliseconds of one zoom, until it is painted, from the whole run down to some µs."""
    measure = """async ([start, end]) => {
      const began = performance.now();
      await zerotrace.show(start, end);
      await new Promise(resolve => requestAnimationFrame(() => setTimeout(resolve, 0)));
      return performance.now() - began;
    }"""
    times = []
    span = float(end)
    while span > 20_000:
        middle = end * 0.437
        times.append(page.evaluate(measure, [middle - span / 2, middle + span / 2]))
        span /= 2
    return times


def test_a_million_intervals(browser: Browser, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(1)
    tables = [(rank, *events_of_rank(rank, rng)) for rank in range(NUM_RANKS)]
    end = max(last for _, _, last in tables)
    shape = make_run(
        [Row(rank, "compute", 0, MS) for rank in range(NUM_RANKS)], [(rank, 1, 0, end) for rank in range(NUM_RANKS)]
    )
    began = time.perf_counter()
    html = render(shape.analysis, [(rank, table) for rank, table, _ in tables])
    render_s = time.perf_counter() - began
    path = tmp_path / "million.html"
    path.write_text(html, encoding="utf-8")
    size_mb = path.stat().st_size / 1e6

    ready, drawn = [], []
    for _ in range(3):
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        page = context.new_page()
        began = time.perf_counter()
        page.goto(path.as_uri())
        page.evaluate("zerotrace.ready")
        ready.append(time.perf_counter() - began)
        page.locator("#timeline-box").scroll_into_view_if_needed()
        page.evaluate("zerotrace.drawn()")
        drawn.append(time.perf_counter() - began)
        times = zoom_times(page, end)
        context.close()
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{NUM_RANKS * ROWS_PER_RANK:,} intervals: page {size_mb:.1f} MB, rendered in {render_s:.1f} s; "
            f"ready in {min(ready):.2f} s, first timeline after {min(drawn):.2f} s; "
            f"zoom {median(times):.0f} ms median, {max(times):.0f} ms worst of {len(times)}"
        )
    assert size_mb <= MAX_MB
    assert min(ready) < MAX_READY_S
    assert median(times) < 1000 * MAX_ZOOM_S
