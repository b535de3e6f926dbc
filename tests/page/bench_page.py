"""Measures the page at a million intervals: size, time until it answers, time of a zoom. Run as a test with ``-s``.

    pytest tests/page/bench_page.py -s

The limits are those of the project (11 MB, 3 s, 0.5 s) on two idle cores.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from playwright.sync_api import Browser, Page

from tests.page.runs import EPOCH, MS, Row, make_run
from zerotrace.report.build import render
from zerotrace.report.meetings import MEETING_COLUMNS
from zerotrace.schema import COLLECTIVES, EVENTS

pytestmark = [pytest.mark.page, pytest.mark.bench]

NUM_RANKS = 8
ROWS_PER_RANK = 125_000
NUM_NAMES = 300
MODULES_PER_RANK = 4_000
MAX_MB = 11.0
MAX_READY_S = 3.0
MAX_ZOOM_S = 0.5
JUMP = """async () => {
  const began = performance.now();
  document.getElementById("timeline-box").focus();
  document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "c", bubbles: true}));
  while (document.getElementById("timeline-tip").hidden) await new Promise(requestAnimationFrame);
  return performance.now() - began;
}"""


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
    end = int((start + duration).max())
    arrays = [
        pa.array(columns[c.name]).cast(c.type) if c.name in columns else pa.nulls(count, c.type) for c in EVENTS.columns
    ]
    rows = pa.table(arrays, schema=EVENTS.arrow())
    return pa.concat_tables([rows, labels_of_rank(rank, end)], promote_options="permissive"), end


def labels_of_rank(rank: int, end: int) -> pa.Table:
    """Modules that follow one another over the whole run, half of them forward and half backward."""
    count = MODULES_PER_RANK
    length = end // count
    phase = ["forward" if k % 200 < 100 else "backward" for k in range(count)]
    columns = {
        "event": ROWS_PER_RANK + np.arange(count),
        "cat": pa.array(["user_annotation"] * count).dictionary_encode(),
        "name": pa.array([f"zt1:{phase[k]} module=blocks.{k % 100}.fc phase={phase[k]}" for k in range(count)]),
        "start_ns": EPOCH + rank * 777 + np.arange(count) * length,
        "dur_ns": np.full(count, length - 900),
    }
    arrays = [
        pa.array(columns[c.name]).cast(c.type) if c.name in columns else pa.nulls(count, c.type) for c in EVENTS.columns
    ]
    return pa.table(arrays, schema=EVENTS.arrow())


def collectives_of(tables: Sequence[pa.Table]) -> pa.Table:
    """The n-th row of communication of all ranks as one collective."""
    places = [np.flatnonzero(pc.equal(table["category"], "comm").fill_null(False).to_numpy()) for table in tables]
    count = min(map(len, places))
    start = np.stack([table["start_ns"].to_numpy()[rows[:count]] for table, rows in zip(tables, places)])
    duration = np.stack([table["dur_ns"].to_numpy()[rows[:count]] for table, rows in zip(tables, places)])
    arrival = start.max(axis=0)
    values = {
        "collective": np.tile(np.arange(count), NUM_RANKS),
        "rank": np.repeat(np.arange(NUM_RANKS), count),
        "event": np.concatenate([rows[:count] for rows in places]),
        "group_size": np.full(NUM_RANKS * count, NUM_RANKS),
        "size_bytes": np.tile(duration[0] * 100, NUM_RANKS),
        "wait_ns": (arrival - start).ravel(),
        "skew_ns": np.tile(arrival - start.min(axis=0), NUM_RANKS),
        "transfer_ns": np.tile(duration.min(axis=0), NUM_RANKS),
        "last_rank": np.tile(start.argmax(axis=0), NUM_RANKS),
        "num_members": np.full(NUM_RANKS * count, NUM_RANKS),
        "busbw_gbps": np.tile(100 * duration[0] / duration.min(axis=0), NUM_RANKS),
    }
    schema = pa.schema([COLLECTIVES.arrow().field(name) for name in MEETING_COLUMNS])
    return pa.table(
        {name: pa.array(values[name]).cast(schema.field(name).type) for name in MEETING_COLUMNS}, schema=schema
    )


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
    met = {"collectives": collectives_of([table for _, table, _ in tables])}
    html = render(shape.analysis, [(rank, table) for rank, table, _ in tables], met)
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
        jumps = [page.evaluate(JUMP) for _ in range(3)]
        context.close()
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{NUM_RANKS * ROWS_PER_RANK:,} intervals: page {size_mb:.1f} MB, rendered in {render_s:.1f} s; "
            f"ready in {min(ready):.2f} s, first timeline after {min(drawn):.2f} s; "
            f"zoom {median(times):.0f} ms median, {max(times):.0f} ms worst of {len(times)}; "
            f"to a collective, joined on {NUM_RANKS} ranks, {jumps[0]:.0f} ms first, then {jumps[-1]:.0f} ms"
        )
    assert size_mb <= MAX_MB
    assert min(ready) < MAX_READY_S
    assert median(times) < 1000 * MAX_ZOOM_S
    assert jumps[-1] < 1000 * MAX_ZOOM_S
