"""Findings on the page: at most five, worst first, with a link that moves the timeline."""

from __future__ import annotations

import pytest

from tests.page.conftest import OpenReport
from tests.page.runs import EPOCH, MS, training_run
from zerotrace.model import Finding, Gain, Place

pytestmark = pytest.mark.page


def finding(code: str, **changes: object) -> Finding:
    given = {"claim": f"{code} costs 1.50 ms.", "evidence": "See <b>there</b>.", "cost_ns": 1.5 * MS}
    return Finding(code=code, **{**given, **changes})  # type: ignore[arg-type]


def test_the_worst_five_are_shown_and_the_rest_is_counted(open_report: OpenReport) -> None:
    page = open_report(training_run().with_(findings=tuple(finding(f"rule{i}") for i in range(7))))
    shown = page.eval_on_selector_all("[data-finding]", "items => items.map(item => item.dataset.finding)")
    assert shown == [f"rule{i}" for i in range(5)]
    assert "2 more in analysis.json" in (page.text_content("#verdict") or "")
    assert "See <b>there</b>." in (page.text_content(".findings") or "")


def test_a_run_without_findings_says_nothing_of_them(open_report: OpenReport) -> None:
    assert open_report(training_run()).query_selector(".findings") is None


def test_knob_and_gain_stand_with_their_source(open_report: OpenReport) -> None:
    gain = Gain(step_ns=1.25 * MS, at_most=False, basis="measured twice")
    page = open_report(training_run().with_(findings=(finding("rule", knob="reduce_bucket_size", gain=gain),)))
    text = " ".join((page.text_content(".findings") or "").split())
    assert "Knob: reduce_bucket_size. Predicted gain: about 1.25 ms a step (measured twice)." in text


def test_the_link_moves_the_timeline_to_the_evidence(open_timeline: OpenReport) -> None:
    run = training_run()
    start = EPOCH + run.zero + MS
    place = Place(rank=0, step=run.windows[0].step, start_ns=start, end_ns=start + 2 * MS)
    page = open_timeline(run.with_(findings=(finding("rule", place=place),)))
    page.click("[data-finding] a")
    page.wait_for_function("zerotrace.window().then(w => w.start === 1e6 && w.end === 3e6)")
    assert page.evaluate("document.activeElement.id") == "timeline-box"
