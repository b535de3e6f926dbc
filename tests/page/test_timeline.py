"""The timeline: what it draws is exact at every zoom."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.page.accessibility import violations
from tests.page.conftest import OpenReport
from tests.page.runs import (
    MS,
    US,
    HostileTexts,
    HostRow,
    Row,
    host_run,
    labelled_run,
    make_run,
    occupancy,
    training_run,
)
from tests.page.timeline import ROLES, busy, dense_run, drawn_busy, picture, show

pytestmark = pytest.mark.page


def test_busy_time_of_any_window_is_exact(open_report: OpenReport) -> None:
    run = dense_run()
    page = open_report(run)
    rng = np.random.default_rng(5)
    windows = [(0, 12 * MS), (0, 1), (12 * MS, 13 * MS)]
    windows += [tuple(sorted(rng.integers(0, 12 * MS, 2).tolist())) for _ in range(12)]
    for start, end in windows:
        for rank in (0, 1):
            for role in ROLES:
                assert busy(page, f"{rank}/0/{role}", start, end) == run.busy(rank, role, start, end)


def test_lanes_add_up_to_the_partition_of_each_step(open_report: OpenReport) -> None:
    run = training_run()
    page = open_report(run)
    for part in run.analysis.partition:
        start = part.start_ns - run.windows[0].start_ns
        found = {role: busy(page, f"{part.rank}/0/{role}", start, start + part.span_ns) for role in ROLES}
        assert found == {
            "compute": part.compute_ns,
            "overlapped": part.overlapped_ns,
            "exposed": part.exposed_ns,
            "copy": part.copy_only_ns,
        }


def test_busy_time_of_a_stream_is_that_of_its_rows(open_report: OpenReport) -> None:
    run = dense_run()
    page = open_report(run)
    rows = [row for row in run.rows if row.rank == 1 and row.stream == 7]
    expected = occupancy(rows, 2 * MS + run.zero, 9 * MS + run.zero)["compute"]
    assert busy(page, "1/0/stream 7", 2 * MS, 9 * MS) == expected
    assert "1/0/stream 29" in page.evaluate("zerotrace.lanes()")


def test_many_intervals_are_a_heat_map_of_true_shares(open_timeline: OpenReport) -> None:
    run = dense_run()
    page = open_timeline(run)
    drawn = show(page, 0, 12 * MS)
    assert drawn["mode"] == "heat"
    assert "Busy share per" in (page.text_content("#timeline-mode") or "")
    for role in ROLES:
        lane = drawn["lanes"][f"0/0/{role}"]
        for k in (0, 1, 77, 400, len(lane["share"]) - 1):
            start, end = k * drawn["bin"], (k + 1) * drawn["bin"]
            exact = run.busy(0, role, round(start), round(end))
            assert lane["share"][k] * drawn["bin"] == pytest.approx(exact, abs=1)
        assert drawn_busy(lane, drawn, 12 * MS) == pytest.approx(run.busy(0, role, 0, 12 * MS), rel=1e-9)


def test_few_intervals_are_drawn_one_by_one_with_names(open_timeline: OpenReport) -> None:
    run = dense_run()
    page = open_timeline(run)
    start, end = 3 * MS, 3 * MS + 40 * US
    drawn = show(page, start, end)
    assert drawn["mode"] == "exact"
    assert "Single intervals" in (page.text_content("#timeline-mode") or "")
    for role in ROLES:
        lane = drawn["lanes"][f"0/0/{role}"]
        assert drawn_busy(lane, drawn, end) == pytest.approx(run.busy(0, role, start, end), abs=drawn["bin"])
    assert "compute_" in (page.text_content("#timeline-plot") or "")


def test_drawn_time_equals_the_tables_within_a_pixel_at_any_zoom(open_timeline: OpenReport) -> None:
    page = open_timeline(dense_run(), url_hash="#t=0,12000000&open=0/0,1/0")
    modes = set()
    for span in (12 * MS, 3 * MS, 700 * US, 90 * US, 5 * US):
        start = 4 * MS - span // 3
        drawn = show(page, start, start + span)
        modes.add(drawn["mode"])
        assert len(drawn["lanes"]) == 16
        for key, lane in drawn["lanes"].items():
            exact = busy(page, key, start, start + span)
            assert drawn_busy(lane, drawn, start + span) == pytest.approx(exact, abs=drawn["bin"])
    assert modes == {"heat", "exact"}


def test_short_kernel_is_never_widened_and_never_dropped(open_timeline: OpenReport) -> None:
    run = make_run(
        [Row(0, "compute", 0, 2 * US), Row(0, "compute", 500 * MS, 2 * US), Row(0, "compute", 2000 * MS, 0)],
        [(0, 1, 0, 2001 * MS)],
    )
    page = open_timeline(run)
    drawn = show(page, 0, 2001 * MS)
    lane = drawn["lanes"]["0/0/compute"]
    assert drawn["bin"] > 2 * MS
    assert lane["marks"] == []
    assert sum(lane["touched"]) == 3
    assert sum(lane["share"]) * drawn["bin"] == pytest.approx(4 * US)
    # Drawn: a shade of one bin for each, nothing that claims more.
    shades = page.evaluate(
        "document.getElementById('timeline-plot').data[0].z.map(row => Array.from(row).filter(v => v !== null))"
    )
    assert max(value for row in shades for value in row) < 0.01
    assert [len(row) for row in shades if row] == [3, 3, 3]
    assert page.evaluate("document.getElementById('timeline-plot').data.filter(t => t.fill === 'toself').length") == 0
    drawn = show(page, 500 * MS - US, 500 * MS + 3 * US)
    (mark,) = drawn["lanes"]["0/0/compute"]["marks"]
    assert (mark["from"], mark["to"]) == (500 * MS, 500 * MS + 2 * US)
    xs = page.evaluate(
        "document.getElementById('timeline-plot').data.filter(t => t.fill === 'toself').map(t => Array.from(t.x))"
    )
    assert xs == [[500 * MS, 500 * MS + 2 * US, 500 * MS + 2 * US, 500 * MS, 500 * MS, None]]


def test_gap_of_more_than_four_seconds_is_exact_on_the_page(open_report: OpenReport) -> None:
    far = 9_876_543_210_123
    run = make_run([Row(0, "compute", 0, 7), Row(0, "comm", far, 5_000_000_001)], [(0, 1, 0, far + 6_000_000_000)])
    page = open_report(run)
    assert busy(page, "0/0/exposed", far, far + 6_000_000_000) == 5_000_000_001
    assert busy(page, "0/0/exposed", 0, far) == 0
    assert busy(page, "0/0/exposed", far + 5_000_000_000, far + 6_000_000_000) == 1


def test_streams_open_below_their_rank(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run())
    assert (
        page.locator("#timeline-labels .lane").all_text_contents()
        == ["compute", "overlapped comm", "exposed comm", "copy only"] * 2
    )
    owner = page.locator("#timeline-labels .owner").first
    assert owner.get_attribute("aria-expanded") == "false"
    owner.focus()
    page.keyboard.press("Enter")
    page.evaluate("zerotrace.drawn()")
    assert page.locator("#timeline-labels .lane").all_text_contents()[4:7] == ["stream 7", "stream 20", "stream 29"]
    assert page.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"


def test_host_mode_has_threads_for_lanes(open_timeline: OpenReport) -> None:
    run = host_run()
    page = open_timeline(run)
    page.click("#timeline-labels .owner >> nth=0")
    page.evaluate("zerotrace.drawn()")
    labels = page.locator("#timeline-labels .lane").all_text_contents()
    assert labels[:5] == ["compute", "overlapped comm", "exposed comm", "thread 101", "thread 202"]
    for role in ROLES[:3]:
        assert busy(page, f"0/-/{role}", 0, 3 * MS) == run.busy(0, role, 0, 3 * MS)
    assert busy(page, "0/-/thread 101", 0, 3 * MS) == 6 * 300 * US
    assert "no device rows" in (page.text_content("#method") or "")


def test_run_without_communication_says_so(open_timeline: OpenReport) -> None:
    page = open_timeline(make_run([Row(0, "compute", 0, 500)], [(0, 1, 0, 1000)]))
    page.locator("#timeline-box").focus()
    page.keyboard.press(".")
    page.wait_for_function(
        "() => document.getElementById('timeline-status').textContent === 'Rank 0 has no exposed communication.'"
    )


def test_many_ranks_come_as_one_lane_each_and_in_pages(open_timeline: OpenReport) -> None:
    run = training_run(num_ranks=64, num_steps=1)
    page = open_timeline(run)
    assert page.input_value("#timeline-lanes") == "exposed"
    assert page.locator("#timeline-labels .owner").count() == 64
    assert busy(page, "63/0/exposed", 0, 6 * MS) == run.busy(63, "exposed", 0, 6 * MS)
    page.select_option("#timeline-lanes", "all")
    page.evaluate("zerotrace.drawn()")
    assert page.locator("#timeline-labels .owner").count() == 8
    page.select_option("#timeline-ranks", label="56 to 63")
    page.evaluate("zerotrace.drawn()")
    assert page.locator("#timeline-labels .owner").first.text_content() == "rank 56"
    page.wait_for_function("() => location.hash.includes('page=7&lanes=all')")
    page.reload()
    page.evaluate("zerotrace.ready")
    page.evaluate("zerotrace.drawn()")
    page.wait_for_function("() => document.querySelector('#timeline-labels .owner')?.textContent === 'rank 56'")


def test_drawing_stays_below_three_thousand_svg_marks(open_timeline: OpenReport) -> None:
    run = dense_run()
    page = open_timeline(run)
    for span in (12 * MS, 2 * MS, 100 * US):
        show(page, 4 * MS, 4 * MS + span)
        assert page.locator("#timeline-plot svg *").count() < 3000


def test_nested_operators_are_drawn_inside_of_their_caller(open_timeline: OpenReport) -> None:
    page = open_timeline(host_run(), url_hash="#t=0,600000&open=0/-")
    marks = picture(page)["lanes"]["0/-/thread 101"]["marks"]
    assert [(mark["from"], mark["to"], mark["depth"]) for mark in marks[:2]] == [
        (0, 300 * US, 0),
        (10 * US, 260 * US, 1),
    ]
    assert "addmm" in (page.text_content("#timeline-plot") or "")


def bands(drawn: dict[str, Any], rank: int, label: str) -> list[tuple[float, float, str]]:
    (band,) = [band for band in drawn["bands"] if band["rank"] == rank and band["label"] == label]
    return [(mark["from"], mark["to"], mark["kind"]) for mark in band["marks"]]


def test_phases_stand_above_the_lanes_of_each_rank(open_timeline: OpenReport) -> None:
    page = open_timeline(labelled_run())
    drawn = picture(page)
    assert bands(drawn, 0, "phase") == [
        (10 * US, 400 * US, "forward"),
        (410 * US, 800 * US, "backward"),
        (800 * US, 940 * US, "step"),
    ]
    assert [start for start, _, _ in bands(drawn, 1, "phase")] == [50 * US, 450 * US, 840 * US]
    assert page.locator("#timeline-labels .band").all_text_contents() == ["phase", "module"] * 2
    assert page.locator("#timeline-no-bands").count() == 0
    text = page.text_content("#timeline-plot") or ""
    assert all(name in text for name in ("forward", "backward", "blocks.0.fc"))
    # Above the lanes, never over them: every lane begins below both bands of its rank.
    tops = page.eval_on_selector_all(
        "#timeline-labels > :not(.owner)", "all => all.map(e => [e.textContent, parseFloat(e.style.top)])"
    )
    assert [name for name, _ in sorted(tops[:6], key=lambda entry: entry[1])][:3] == ["phase", "module", "compute"]
    assert violations(page) == []


def test_modules_narrower_than_eight_pixels_are_left_to_their_caller(open_timeline: OpenReport) -> None:
    page = open_timeline(labelled_run())
    forward = [(20 * US, 390 * US), (30 * US, 330 * US), (40 * US, 140 * US)]
    found = bands(picture(page), 0, "module")
    assert found == [(a, b, "module forward") for a, b in forward] + [(420 * US, 720 * US, "module backward")]
    drawn = show(page, 149 * US, 153 * US)
    assert (150 * US, 150 * US + 900, "module forward") in bands(drawn, 0, "module")
    assert drawn["lanes"]["0/0/compute"]["marks"] == [
        {"role": "compute", "from": 100 * US, "to": 150 * US, "row": -1, "depth": 0}
    ]


def test_tip_tells_phase_and_module_exactly(open_timeline: OpenReport) -> None:
    page = open_timeline(labelled_run())
    box = page.locator("#timeline-plot").bounding_box()
    assert box is not None

    def tip(time: float, unit: float) -> str:
        assert box is not None
        page.mouse.move(box["x"] + 150 + time / MS * (box["width"] - 162), box["y"] + 28 + 5 * unit)
        return page.inner_text("#timeline-tip") if page.is_visible("#timeline-tip") else ""

    phase = tip(500 * US, 3 + 1)
    for text in ("backward", "of rank 0, on its host", "starts 0.410000 ms into step 4", "lasts 390,000 ns"):
        assert text in phase
    assert "blocks.0.fc" in tip(60 * US, 3 + 3.5)
    assert "blocks.0\n" in tip(250 * US, 3 + 3.5)
    assert tip(960 * US, 3 + 1) == ""


def test_one_lane_a_rank_shows_the_bands_of_the_current_rank(open_timeline: OpenReport) -> None:
    page = open_timeline(labelled_run(), url_hash="#t=0,1000000&lanes=compute")
    assert page.locator("#timeline-labels .band").all_text_contents() == ["phase, rank 0", "module, rank 0"]
    page.locator("#timeline-labels .owner").nth(1).click()
    page.evaluate("zerotrace.drawn()")
    assert page.locator("#timeline-labels .band").all_text_contents() == ["phase, rank 1", "module, rank 1"]


def test_without_labels_one_line_says_why_there_are_no_phases(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run())
    assert picture(page)["bands"] == []
    assert page.locator("#timeline-labels .band").count() == 0
    assert "carry no labels" in (page.text_content("#timeline-no-bands") or "")


def test_names_of_modules_do_no_harm(open_timeline: OpenReport) -> None:
    hostile = HostileTexts()
    texts = [text.replace(" ", "%20").replace("\n", "%0A") for text in hostile.all]
    host = [HostRow(0, k * 100 * US, 90 * US, f"zt1:forward module={text}") for k, text in enumerate(texts)]
    run = replace(make_run([Row(0, "compute", 0, MS)], [(0, 1, 0, MS)]), host=tuple(host))
    page = open_timeline(run, width=1280)
    box = page.locator("#timeline-plot").bounding_box()
    assert box is not None
    shown = set()
    for k in range(len(texts)):
        x = (k * 100 + 45) * US / MS * (box["width"] - 162)
        page.mouse.move(box["x"] + 150 + x, box["y"] + 28 + 5 * (3 + 3.5))
        shown.add(page.inner_text("#timeline-tip").split("\n")[0])
    assert hostile.script in shown
    assert page.locator("#timeline-tip img, #timeline-plot img").count() == 0
