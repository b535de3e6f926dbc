"""What the timeline joins, jumps to and sums: collectives of all ranks, late gathers, the selected window."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from playwright.sync_api import Page

from tests.page.accessibility import violations
from tests.page.conftest import OpenReport
from tests.page.runs import EPOCH, MS, US, HostileTexts, Row, Run, make_run, training_run
from tests.page.timeline import ROLES, dense_run, show, window
from zerotrace.report.build import render
from zerotrace.report.redraw import redraw
from zerotrace.schema import COLLECTIVES, GATHERS, PARTITION, TableSchema
from zerotrace.store import read_table

pytestmark = pytest.mark.page

STARTS = (100 * US, 140 * US, 200 * US)
END = 300 * US


def table(schema: TableSchema, rows: list[dict[str, Any]]) -> pa.Table:
    columns = {column.name: [row.get(column.name) for row in rows] for column in schema.columns}
    arrays = [pa.array(columns[c.name], type=pa.string()).cast(c.type) if pa.types.is_dictionary(c.type)
              else pa.array(columns[c.name], type=c.type) for c in schema.columns]  # fmt: skip
    return pa.table(arrays, names=[c.name for c in schema.columns])


def page_of(run: Run, tables: Mapping[str, pa.Table]) -> str:
    return render(run.analysis, run.events, tables)


def met_run() -> tuple[Run, dict[str, pa.Table]]:
    """Three ranks: one collective that all join, one after the other, and one of rank 0 alone without a partner."""
    rows, met = [], []
    for rank, start in enumerate(STARTS):
        rows += [
            Row(rank, "compute", 0, 50 * US, "gemm"),
            Row(rank, "comm", start, END - start, "ncclDevKernel_AllGather", stream=20, collective="_allgather_base"),
            Row(rank, "comm", 500 * US, 9 * US, "ncclDevKernel_Broadcast", stream=20, collective="broadcast"),
        ]
        met.append(
            {
                "collective": 0, "rank": rank, "event": 1, "group_size": 4, "size_bytes": 1_000_000,
                "start_ns": EPOCH + start, "end_ns": EPOCH + END, "wait_ns": STARTS[-1] - start,
                "skew_ns": 100 * US, "transfer_ns": END - STARTS[-1], "last_rank": 2, "num_members": 3,
                "busbw_gbps": 7.5,
            }
        )  # fmt: skip
    met.append({"collective": None, "rank": 0, "event": 2, "start_ns": EPOCH + 500 * US, "end_ns": EPOCH + 509 * US})
    return make_run(rows, [(rank, 4, 0, MS) for rank in range(3)]), {"collectives": table(COLLECTIVES, met)}


def point(page: Page, time: float, unit: float, span: float = MS) -> str:
    """Points at a time and a height of the whole step; what the tip then says."""
    box = page.locator("#timeline-plot").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 150 + time / span * (box["width"] - 162), box["y"] + 28 + 5 * unit)
    return page.inner_text("#timeline-tip") if page.is_visible("#timeline-tip") else ""


def outlines(page: Page) -> list[tuple[float, float]]:
    """Start and end of each outline, ns of a window of one step."""
    return page.evaluate(
        """() => {
          const width = document.getElementById('timeline-plot').getBoundingClientRect().width - 162;
          const time = (x) => (x - 150) / width * 1e6;
          return [...document.querySelectorAll('#timeline-marks .member')].map((rect) => {
            const [x, w] = ['x', 'width'].map((name) => Number(rect.getAttribute(name)));
            return [time(x + 1), time(x + w - 1)];
          });
        }"""
    )


def test_a_collective_is_joined_on_all_ranks_where_one_points_at_it(open_timeline: OpenReport) -> None:
    page = open_timeline(page_of(*met_run()))
    assert outlines(page) == []
    tip = point(page, 150 * US, 3 + 2 * 4 + 1.5)
    for text in (
        "waits 100,000 ns for rank 2, which comes last",
        "waits: rank 0 100,000 ns · rank 1 60,000 ns · rank 2 0 ns",
        "skew 100,000 ns · transfer 100,000 ns · 1 MB · 7.5 GB/s on the bus",
        "3 of 4 members are in the traces: waits are lower bounds",
    ):
        assert text in tip
    pixel = MS / 1000
    assert np.allclose(outlines(page), [(start, END) for start in STARTS], atol=pixel)
    assert page.locator("#timeline-marks .join").count() == 2
    assert "without a partner" in point(page, 504 * US, 3 + 2 * 4 + 1.5)
    assert outlines(page) == []
    rank_height = 3 + 4 * 4
    assert "this rank comes last" in point(page, 250 * US, 2 * rank_height + 3 + 2 * 4 + 1.5)
    point(page, 800 * US, 3)
    assert outlines(page) == []


def test_keys_go_from_collective_to_collective_and_say_who_waits(open_timeline: OpenReport) -> None:
    page = open_timeline(page_of(*met_run()))
    page.locator("#timeline-box").focus()
    page.keyboard.press("c")
    page.wait_for_selector("#timeline-tip:not([hidden])")
    status = page.text_content("#timeline-status") or ""
    assert status.startswith("Rank 0, collective 1 of 1:")
    assert "waits 100,000 ns for rank 2" in status
    assert len(outlines(page)) == 3
    assert violations(page) == []
    page.keyboard.press("c")
    assert page.text_content("#timeline-status") == "No later collective on rank 0."
    page.locator("#timeline-box").focus()
    page.keyboard.press("Escape")
    page.evaluate("zerotrace.drawn()")
    assert outlines(page) == []
    assert not page.is_visible("#timeline-tip")


def test_an_opened_stream_is_marked_too_and_a_lane_of_compute_is_not(open_timeline: OpenReport) -> None:
    html = page_of(*met_run())
    page = open_timeline(html, url_hash="#t=0,1000000&open=0/0")
    point(page, 150 * US, 3 + 2 * 4 + 1.5)
    assert len(outlines(page)) == 4
    page = open_timeline(html, url_hash="#t=0,1000000&lanes=compute")
    page.locator("#timeline-box").focus()
    page.keyboard.press("c")
    page.evaluate("zerotrace.drawn()")
    assert "waits 100,000 ns" in (page.text_content("#timeline-status") or "")
    assert outlines(page) == []


def test_without_other_ranks_nothing_is_joined(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run(num_ranks=1))
    page.locator("#timeline-box").focus()
    page.keyboard.press("c")
    assert page.text_content("#timeline-status") == "Rank 0 has no collective that was found on other ranks."


def gather(rank: int, start: int, **more: Any) -> dict[str, Any]:
    return {
        "rank": rank, "device": 0, "phase": "forward", "module": "blocks.1", "need_module": "blocks.2.fc",
        "bytes": 2_000_000, "start_ns": EPOCH + start, "end_ns": EPOCH + start + 600 * US,
        "need_ns": EPOCH + start + 500 * US,
        "slack_ns": -100 * US, "blocking_ns": 77_001, "late": True, "kind": "prefetch", **more,
    }  # fmt: skip


def test_keys_and_buttons_go_from_late_gather_to_late_gather(open_timeline: OpenReport) -> None:
    hostile = HostileTexts()
    rows = [
        gather(0, 500 * US),
        gather(0, 900 * US, late=False),
        gather(0, 1_700 * US, need_module=hostile.script, need_ns=None, slack_ns=None),
        gather(0, 4_200 * US, late=None, start_ns=None),
    ]
    page = open_timeline(page_of(training_run(num_steps=1), {"gathers": table(GATHERS, rows)}))
    page.locator("#timeline-box").focus()
    page.keyboard.press("g")
    page.wait_for_selector("#timeline-tip:not([hidden])")
    tip = page.inner_text("#timeline-tip")
    for text in (
        "late prefetch for blocks.2.fc",
        "submitted at blocks.1 in forward · 2 MB",
        "starts 0.500000 ms into step 2",
        "lasts 600,000 ns, holds compute back for 77,001 ns",
        "slack −100,000 ns: it ends so long after its need",
    ):
        assert text in tip
    assert (page.text_content("#timeline-status") or "").startswith("Rank 0, late gather 1 of 2:")
    start, end = window(page)
    assert start <= 500 * US and end >= 1_100 * US
    assert page.locator("#timeline-marks .member").count() == 1
    assert page.locator("#timeline-marks line.need").count() == 1
    assert violations(page) == []
    page.locator("[data-action=nextLate]").click()
    page.wait_for_selector("#timeline-tip:not([hidden])")
    assert hostile.script in page.inner_text("#timeline-tip")
    assert "its need is not in the trace" in page.inner_text("#timeline-tip")
    assert page.locator("#timeline-marks line.need").count() == 0
    page.keyboard.press("Shift+G")
    assert "late gather 1 of 2" in (page.text_content("#timeline-status") or "")
    page.keyboard.press("Shift+G")
    assert page.text_content("#timeline-status") == "No earlier late gather on rank 0."
    page.locator("#timeline-labels .owner").nth(1).click()
    page.keyboard.press("g")
    assert page.text_content("#timeline-status") == "Rank 1 has no prefetch that holds compute back."


def test_what_is_not_known_of_gathers_is_said(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run(num_steps=1, num_ranks=1))
    assert page.locator("[data-action=nextLate]").count() == 0
    page.keyboard.press("g")
    assert page.text_content("#timeline-status") == "Nothing is known of gathers of parameters."
    tables = {"gathers": table(GATHERS, [gather(0, 5, late=None)])}
    page = open_timeline(page_of(training_run(num_steps=1, num_ranks=1), tables))
    page.keyboard.press("g")
    assert "cannot be told" in (page.text_content("#timeline-status") or "")


def expected(run: Run, rank: int, start: int, end: int) -> dict[str, int]:
    sums = {role: run.busy(rank, role, start, end) for role in ROLES}
    return {**sums, "idle": run.busy(rank, "idle", start, end)}


def test_a_selection_sums_every_category_to_the_nanosecond(open_timeline: OpenReport) -> None:
    run = dense_run()
    page = open_timeline(run)
    rng = np.random.default_rng(3)
    for _ in range(6):
        start, end = sorted(rng.integers(0, 12 * MS, 2).tolist())
        page.evaluate(f"location.hash = '#t=0,12000000&sel={start},{end}'")
        page.wait_for_function(f"async () => (await zerotrace.selection())?.end === {end}")
        found = page.evaluate("zerotrace.selection()")
        for rank, sums in enumerate(found["ranks"]):
            assert {name: sums[name] for name in (*ROLES, "idle")} == expected(run, rank, start, end)
            assert sums["compute"] + sums["exposed"] + sums["copy"] + sums["idle"] == end - start


def test_the_selection_of_a_step_is_its_partition(open_timeline: OpenReport) -> None:
    run = training_run(num_ranks=1)
    page = open_timeline(run)
    page.select_option("#timeline-step", label="step 3")
    page.keyboard.press("m")
    page.wait_for_selector("#selection-table tbody tr")
    part = run.analysis.partition[1]
    values = page.eval_on_selector_all("#selection-table tbody data", "all => all.map(data => Number(data.value))")
    assert values == [
        0,
        0,
        part.compute_ns,
        part.overlapped_ns,
        part.exposed_ns,
        part.copy_only_ns,
        part.idle_ns,
        part.span_ns,
    ]
    assert (page.text_content("#timeline-status") or "").startswith("Selected 6 ms. Rank 0: compute ")
    assert "of step 3" in (page.text_content("#timeline-selection-text") or "")
    assert violations(page) == []


def test_a_selection_is_dragged_lives_in_the_url_and_is_cleared(open_timeline: OpenReport) -> None:
    run = training_run()
    page = open_timeline(run)
    box = page.locator("#timeline-box").bounding_box()
    assert box is not None
    before = window(page)
    x0, width, y = box["x"] + 150, box["width"] - 162, box["y"] + 80

    def drag(a: float, b: float) -> dict[str, Any]:
        page.mouse.move(x0 + a * width, y)
        page.mouse.down()
        page.mouse.move(x0 + b * width, y)
        page.mouse.up()
        page.evaluate("zerotrace.drawn()")
        return page.evaluate("zerotrace.selection()")

    span = before[1] - before[0]
    page.click("#timeline-measure")
    assert page.get_attribute("#timeline-measure", "aria-pressed") == "true"
    found = drag(0.25, 0.5)
    assert window(page) == before
    assert found["start"] == pytest.approx(0.25 * span, abs=span / width)
    assert found["end"] == pytest.approx(0.5 * span, abs=span / width)
    page.click("#timeline-measure")
    page.keyboard.down("Alt")
    found = drag(0.75, 0.5)
    page.keyboard.up("Alt")
    assert window(page) == before
    assert found["start"] == pytest.approx(0.5 * span, abs=span / width)
    page.wait_for_function(f"() => location.hash.endsWith('&sel={found['start']},{found['end']}')")
    assert page.locator("#timeline-marks .chosen").count() == 1
    page.reload()
    page.evaluate("zerotrace.ready")
    assert page.evaluate("zerotrace.selection()") == found
    page.locator("#timeline-box").scroll_into_view_if_needed()
    page.wait_for_selector("#timeline-clear")
    page.click("#timeline-clear")
    page.wait_for_function("() => !location.hash.includes('sel=')")
    assert page.evaluate("zerotrace.selection()") is None
    assert not page.is_visible("#timeline-selection")


def test_selections_that_make_no_sense_are_ignored(open_report: OpenReport) -> None:
    page = open_report(training_run())
    for nonsense in ("a,b", "5", "7,7", "9,3", "9e99,9e99", "", "NaN,4"):
        page.evaluate("text => history.replaceState(null, '', `#t=0,5000000&sel=${text}`)", nonsense)
        page.reload()
        page.evaluate("zerotrace.ready")
        assert page.evaluate("zerotrace.selection()") is None, nonsense


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_selection_fits_a_narrow_window_and_paper(open_timeline: OpenReport, scheme: str) -> None:
    html = page_of(*met_run())
    page = open_timeline(html, width=320, color_scheme=scheme, url_hash="#t=0,1000000&sel=100000,300000")
    page.wait_for_selector("#selection-table tbody tr")
    page.locator("#timeline-box").focus()
    page.keyboard.press("c")
    page.wait_for_selector("#timeline-tip:not([hidden])")
    tip = page.locator("#timeline-tip").bounding_box()
    assert tip is not None and tip["x"] >= 0 and tip["x"] + tip["width"] <= 320
    assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert violations(page) == []
    page.emulate_media(media="print")
    assert page.is_visible("#selection-table")
    assert not page.is_visible("#timeline-tip")


def test_a_window_shown_hides_a_tip_that_belongs_elsewhere(open_timeline: OpenReport) -> None:
    page = open_timeline(page_of(*met_run()))
    assert point(page, 150 * US, 3 + 2 * 4 + 1.5)
    show(page, 600 * US, 700 * US)
    assert not page.is_visible("#timeline-tip")


def test_a_real_capture_is_joined_as_its_tables_say(open_report: OpenReport, ladder: Mapping[str, Path]) -> None:
    place = redraw(ladder["stage3"]).parent
    html = (place / "report.html").read_text(encoding="utf-8")
    assert len(html.encode()) < 5_000_000
    page = open_report(html, height=900)
    page.locator("#timeline-box").scroll_into_view_if_needed()
    page.wait_for_selector("#timeline-plot[data-mode]", state="attached")
    page.locator("#timeline-box").focus()
    met = read_table(place, COLLECTIVES).filter(pc.field("rank") == 0).to_pylist()
    matched = [row for row in met if row["collective"] is not None]
    widest = max(range(len(matched)), key=lambda k: matched[k]["wait_ns"])
    for _ in range(widest + 1):
        page.locator("#timeline-box").dispatch_event("keydown", {"key": "c", "bubbles": True})
    status = page.text_content("#timeline-status") or ""
    row = matched[widest]
    assert f"collective {widest + 1} of {len(matched)}:" in status
    assert f"waits {row['wait_ns']:,} ns for rank {row['last_rank']}" in status
    assert f"skew {row['skew_ns']:,} ns · transfer {row['transfer_ns']:,} ns" in status
    late = read_table(place, GATHERS).filter((pc.field("rank") == 0) & pc.field("late")).to_pylist()
    page.keyboard.press("0")
    page.keyboard.press("g")
    status = page.text_content("#timeline-status") or ""
    assert f"late gather 1 of {len(late)}: late prefetch for {late[0]['need_module']};" in status
    assert f"holds compute back for {late[0]['blocking_ns']:,} ns; slack {late[0]['slack_ns']:,} ns" in status
    part = read_table(place, PARTITION).to_pylist()[0]
    page.keyboard.press("0")
    start = round(window(page)[0])
    end = start + part["span_ns"]
    page.evaluate("hash => history.replaceState(null, '', hash)", f"#t={start},{end}&sel={start},{end}")
    page.reload()
    page.evaluate("zerotrace.ready")
    page.wait_for_function("async () => (await zerotrace.selection()) !== null")  # drawn when it comes into view
    sums = page.evaluate("zerotrace.selection()")["ranks"][0]
    names = {"compute": "compute_ns", "overlapped": "overlapped_ns", "exposed": "exposed_ns", "copy": "copy_only_ns"}
    assert {name: sums[name] for name in (*names, "idle")} == {
        name: part[column] for name, column in (names | {"idle": "idle_ns"}).items()
    }
