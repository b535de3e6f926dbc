"""The timeline: reachable by keyboard, pointer, finger and link, and what it tells of the place that one points at."""

from __future__ import annotations

import numpy as np
import pytest

from tests.page.conftest import OpenReport
from tests.page.runs import (
    MS,
    US,
    Row,
    Run,
    make_run,
    training_run,
)
from tests.page.timeline import ROLES, show, window

pytestmark = pytest.mark.page


def test_keys_move_zoom_and_jump(open_timeline: OpenReport) -> None:
    run = training_run()
    page = open_timeline(run)
    page.locator("#timeline-box").focus()
    first = window(page)
    page.keyboard.press("d")
    assert window(page) == pytest.approx(
        (first[0] + 0.2 * (first[1] - first[0]), first[1] + 0.2 * (first[1] - first[0]))
    )
    page.keyboard.press("ArrowLeft")
    assert window(page) == pytest.approx(first)
    page.keyboard.press("w")
    start, end = window(page)
    assert end - start == pytest.approx((first[1] - first[0]) / 1.5)
    page.keyboard.press("s")
    page.keyboard.press("Home")
    assert window(page) == first
    exposed = exposed_intervals(run, rank=0)
    for index in (0, 1, 2):
        page.keyboard.press(".")
        page.wait_for_function(
            f"() => document.getElementById('timeline-status').textContent.includes('interval {index + 1} of')"
        )
        start, end = window(page)
        assert start <= exposed[index][0]
        assert exposed[index][1] <= end
    page.keyboard.press(",")
    page.wait_for_function("() => document.getElementById('timeline-status').textContent.includes('interval 2 of')")
    assert f"of {len(exposed)}:" in (page.text_content("#timeline-status") or "")


def exposed_intervals(run: Run, rank: int) -> list[tuple[int, int]]:
    """Exposed communication, found by painting nanoseconds (the run is short enough)."""
    rows = [row for row in run.rows if row.rank == rank]
    length = max(row.end for row in rows) - run.zero + 1
    painted = {category: np.zeros(length, dtype=bool) for category in ("compute", "comm", "copy")}
    for row in rows:
        painted[row.category][row.start - run.zero : row.end - run.zero] = True
    exposed = np.concatenate(([False], painted["comm"] & ~painted["compute"], [False])).astype(np.int8)
    change = np.diff(exposed)
    return list(zip(np.flatnonzero(change == 1).tolist(), np.flatnonzero(change == -1).tolist()))


def test_letters_work_outside_of_the_chart_until_switched_off(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run())
    first = window(page)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("d")
    assert window(page) != first
    page.keyboard.press("0")
    page.keyboard.press("ArrowRight")
    assert window(page) == first
    page.keyboard.press("?")
    page.uncheck("#global-keys")
    page.keyboard.press("Escape")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("d")
    assert window(page) == first
    page.select_option("#timeline-lanes", "exposed")
    page.locator("#timeline-lanes").focus()
    page.keyboard.press("d")
    assert window(page) == first


def test_pointer_drags_zoom_and_pan_and_the_wheel_needs_ctrl(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run())
    box = page.locator("#timeline-box").bounding_box()
    assert box is not None
    start, end = window(page)
    x0, width = box["x"] + 150, box["width"] - 162
    y = box["y"] + 50

    def drag(a: float, b: float) -> None:
        page.mouse.move(x0 + a * width, y)
        page.mouse.down()
        page.mouse.move(x0 + (a + b) / 2 * width, y)
        page.mouse.move(x0 + b * width, y)
        page.mouse.up()

    drag(0.25, 0.75)
    span = end - start
    assert window(page) == pytest.approx((start + 0.25 * span, start + 0.75 * span), abs=span / width)
    zoomed = window(page)
    page.keyboard.down("Shift")
    drag(0.5, 0.25)
    page.keyboard.up("Shift")
    assert window(page) == pytest.approx((zoomed[0] + 0.125 * span, zoomed[1] + 0.125 * span), abs=span / width)
    page.mouse.dblclick(x0 + 0.5 * width, y)
    assert window(page) == (start, end)
    page.mouse.wheel(0, 40)
    assert window(page) == (start, end)
    page.evaluate("window.scrollTo(0, document.getElementById('timeline').offsetTop)")
    box = page.locator("#timeline-box").bounding_box()
    assert box is not None
    page.mouse.move(x0 + 0.5 * width, box["y"] + 50)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -60)
    page.keyboard.up("Control")
    page.wait_for_function(
        f"async () => {{ const w = await zerotrace.window(); return w.end - w.start < {0.9 * span}; }}"
    )


def test_windows_are_whole_nanoseconds_everywhere(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run())
    for key in ("w", "d", "w", "a", "w", "w", "s", "."):
        page.keyboard.press(key)
    show(page, 1_000_000.3, 2_000_333.799)
    assert window(page) == (1_000_000, 2_000_334)
    page.keyboard.press("w")
    page.evaluate("zerotrace.drawn()")
    page.wait_for_timeout(300)
    start, end = window(page)
    assert (start, end) == (int(start), int(end))
    assert page.evaluate("location.hash") == f"#t={int(start)},{int(end)}"
    page.click("#timeline-details summary")
    page.wait_for_selector("#lane-table tbody tr")
    table = page.evaluate("zerotrace.tableCsv(document.getElementById('lane-table'))")
    assert all(line.split(",")[3].isdigit() for line in table.strip().splitlines()[1:])
    page.evaluate("history.replaceState(null, '', '#t=100.4,5000.302')")
    page.reload()
    page.evaluate("zerotrace.ready")
    assert window(page) == (100, 5000)


def test_a_finger_moves_the_window_and_a_tap_tells_what_runs(open_timeline: OpenReport) -> None:
    run = make_run([Row(0, "compute", 0, MS, "gemm")], [(0, 1, 0, MS)])
    page = open_timeline(run, width=320, has_touch=True, is_mobile=True)
    box = page.locator("#timeline-box").bounding_box()
    assert box is not None
    assert box["width"] <= 320
    touch = page.context.new_cdp_session(page)

    def finger(kind: str, *points: float) -> None:
        at = [{"x": points[0], "y": points[1]}] if points else []
        touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": at})

    first = window(page)
    x, y = box["x"] + 250, box["y"] + 60
    finger("touchStart", x, y)
    for step in range(1, 9):
        finger("touchMove", x - 10 * step, y)
    finger("touchEnd")
    page.wait_for_function(f"async () => (await zerotrace.window()).start > {first[0]}")
    show(page, 0, MS)
    page.wait_for_timeout(500)
    page.touchscreen.tap(box["x"] + 220, box["y"] + 28 + 5 * 3 + 7)
    page.wait_for_selector("#timeline-tip:not([hidden])")
    assert "gemm" in page.inner_text("#timeline-tip")


def test_window_lives_in_the_url(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run())
    first = window(page)
    show(page, 1 * MS, 2 * MS)
    page.wait_for_function("() => location.hash === '#t=1000000,2000000'")
    page.wait_for_timeout(700)
    page.click("#timeline-labels .owner >> nth=1")
    page.wait_for_function("() => location.hash === '#t=1000000,2000000&open=1/0'")
    page.wait_for_timeout(700)
    show(page, 3 * MS, 4 * MS)
    page.wait_for_function("() => location.hash === '#t=3000000,4000000&open=1/0'")
    page.reload()
    page.evaluate("zerotrace.ready")
    assert window(page) == (3 * MS, 4 * MS)
    page.go_back()
    page.wait_for_function("() => location.hash === '#t=1000000,2000000&open=1/0'")
    assert window(page) == (1 * MS, 2 * MS)
    page.go_back()
    page.go_back()
    assert window(page) == first


def test_a_reload_right_after_a_movement_keeps_the_window(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run())
    show(page, 1 * MS, 2 * MS)
    page.reload()
    page.evaluate("zerotrace.ready")
    assert window(page) == (1 * MS, 2 * MS)


def test_a_hash_that_makes_no_sense_is_ignored(open_report: OpenReport) -> None:
    page = open_report(training_run())
    for nonsense in ("#t=a,b", "#t=5,1", "#t=", "#method", "#t=9e99,9e99", "#t=1,2,3&lanes=%3Cimg%3E&page=-4&open=9/9"):
        page.evaluate("hash => history.replaceState(null, '', hash)", nonsense)
        page.reload()
        page.evaluate("zerotrace.ready")
        assert window(page) == (0, 6 * MS + 3 * US)


def test_step_choice_and_table_follow_the_window(open_timeline: OpenReport) -> None:
    run = training_run()
    page = open_timeline(run)
    assert page.locator("#timeline-step option").all_text_contents() == ["as drawn", "whole run", "step 2", "step 3"]
    page.select_option("#timeline-step", label="step 3")
    page.evaluate("zerotrace.drawn()")
    assert page.text_content("#timeline-title") == "Timeline, step 3"
    start, end = window(page)
    page.click("#timeline-details summary")
    page.wait_for_selector("#lane-table tbody tr")
    rows = page.eval_on_selector_all(
        "#lane-table tbody tr", "rows => rows.map(r => [r.dataset.lane, Number(r.querySelectorAll('data')[3].value)])"
    )
    assert rows == [
        [f"{rank}/0/{role}", run.busy(rank, role, int(start), int(end))] for rank in (0, 1) for role in ROLES
    ]


def test_tip_tells_the_interval_exactly(open_timeline: OpenReport) -> None:
    rows = [
        Row(0, "compute", 100 * US, 33_333, "void gemm<float>(int)"),
        Row(0, "comm", 120 * US, 200_001, "ncclDevKernel_AllGather", stream=20, collective="_allgather_base",
            dtype="BFloat16", group_size=2, in_elements=500, out_elements=1000, seq=41),
    ]  # fmt: skip
    page = open_timeline(make_run(rows, [(0, 4, 0, 400 * US)]))
    box = page.locator("#timeline-plot").bounding_box()
    assert box is not None
    width = box["width"] - 162

    def tip(time: float, lane: int) -> str:
        assert box is not None
        page.mouse.move(box["x"] + 150 + time / (400 * US) * width, box["y"] + 28 + 5 * (3 + 4 * lane) + 7)
        return page.inner_text("#timeline-tip") if page.is_visible("#timeline-tip") else ""

    compute = tip(110 * US, 0)
    for text in (
        "void gemm<float>(int)",
        "compute · rank 0, device 0, stream 7",
        "starts 0.100000 ms into step 4",
        "lasts 33,333 ns",
    ):
        assert text in compute
    exposed = tip(250 * US, 2)
    for text in (
        "lasts 200,001 ns",
        "186,668 ns of it exposed",
        "_allgather_base",
        "of 2",
        "1 kB in",
        "2 kB out",
        "seq 41",
    ):
        assert text in exposed
    assert tip(390 * US, 0) == ""
