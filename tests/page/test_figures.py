"""The bars of section 2 as plotly is given them."""

from __future__ import annotations

import plotly.graph_objects as go
import pytest
from msgspec.structs import replace

from tests.page.runs import MS, Row, Run, make_run, training_run
from zerotrace.model import Attribution
from zerotrace.report.figures import MAX_BARS, StepFigure, step_figure


def traces(figure: StepFigure) -> dict[str, dict]:
    return {trace["meta"]["role"]: trace for trace in figure.figure["data"]}


def num_marks(figure: StepFigure) -> int:
    return sum(len(trace["y"]) for trace in figure.figure["data"])


def test_bars_close_at_the_span_of_their_step() -> None:
    run = training_run()
    by_role = traces(step_figure(run.analysis))
    for index, part in enumerate(run.analysis.partition):
        end = 0.0
        for role in ("compute", "exposed", "copy", "idle"):
            assert by_role[role]["base"][index] == pytest.approx(end, abs=1e-9)
            end = by_role[role]["base"][index] + by_role[role]["x"][index]
        assert end == pytest.approx(part.span_ns / MS, abs=1e-9)
        assert by_role["total"]["x"][index] == part.span_ns / MS


def test_overlapped_time_lies_inside_of_compute() -> None:
    run = training_run()
    by_role = traces(step_figure(run.analysis))
    for base, length, compute in zip(
        by_role["overlapped"]["base"], by_role["overlapped"]["x"], by_role["compute"]["x"]
    ):
        assert length > 0
        assert base + length == pytest.approx(compute)


def test_plotly_accepts_the_figure() -> None:
    go.Figure(step_figure(training_run().analysis).figure)


def test_step_without_device_rows_is_drawn_empty() -> None:
    run = make_run([Row(0, "compute", 0, 5)], [(0, 1, 0, 10), (0, 2, 100, 200)])
    unknown = traces(step_figure(run.analysis))["unknown"]
    assert unknown["text"] == ["\u2002no device rows: unknown"]
    assert unknown["x"] == [100 / MS]


def test_many_ranks_show_their_mean_step_and_say_so() -> None:
    figure = step_figure(training_run(num_ranks=17, num_steps=2).analysis)
    assert len(figure.bars) == 17
    assert "mean step" in figure.caption
    assert figure.figure["layout"]["yaxis"]["ticktext"][16] == "rank 16"


def test_marks_stay_below_three_thousand_with_a_thousand_ranks() -> None:
    run = training_run(num_ranks=1, num_steps=1)
    wide = replace(
        run.analysis,
        partition=tuple(replace(run.analysis.partition[0], rank=rank) for rank in range(1000)),
        ranks=tuple(replace(run.analysis.ranks[0], rank=rank, exposed_ns=float(rank)) for rank in range(1000)),
    )
    figure = step_figure(wide)
    assert num_marks(figure) <= 3000
    assert f"the {MAX_BARS} of 1,000 ranks" in figure.caption
    assert figure.figure["layout"]["yaxis"]["ticktext"][0] == f"rank {1000 - MAX_BARS}"


def test_by_launch_idle_is_not_drawn_and_the_caption_says_why() -> None:
    run = training_run()
    parts = tuple(replace(part, idle_ns=None) for part in run.analysis.partition)
    figure = step_figure(run.with_(attribution=Attribution.LAUNCH, partition=parts).analysis)
    assert "idle time is not defined" in figure.caption
    assert traces(figure)["idle"]["x"] == [0.0] * len(parts)


def test_two_devices_of_a_rank_are_told_apart() -> None:
    run: Run = training_run(num_ranks=1, num_steps=1)
    part = run.analysis.partition[0]
    figure = step_figure(run.with_(partition=(part, replace(part, device=1))).analysis)
    assert [bar.label for bar in figure.bars] == ["rank 0 · device 0 · step 2", "rank 0 · device 1 · step 2"]


def test_a_run_without_steps_has_no_bars() -> None:
    assert step_figure(make_run([Row(0, "compute", 0, 5)]).analysis).bars == ()
