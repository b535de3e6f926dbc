"""Stage 3's gathers against hand-worked timelines, with labels and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from zerotrace.cli.gathers import gather_lines
from zerotrace.labels import GatherKind, Label, LabelEvent, Phase, is_label
from zerotrace.model import Analysis, Attribution, GatherGroup, GatherReport, Level
from zerotrace.report.gather_words import gather_remarks

DEMAND, PREFETCH, REFRESH = GatherKind.DEMAND, GatherKind.PREFETCH, GatherKind.REFRESH
GATHERS = 25
"""The stream of DeepSpeed's gathers, which waits for NCCL's and for which compute waits."""


def stage_three(rank: int = 0, *, early_by: float = 0) -> TraceBuilder:
    """Gathers that are late (a), fully hidden (b), half hidden (c), missed (d) and of persisted parameters.

    Compute runs from 60 to 180, 240 to 300, 370 to 400 and 420 to 460.

    Args:
        rank: whose trace it is.
        early_by: how long before 140 the collective of c starts on this rank.
    """
    trace = TraceBuilder(rank=rank, world_size=2).step(0, 0, 1000)
    trace.fetch("", 8, 20).stream_wait(11)
    trace.gather(PREFETCH, 14, 20, 60, params="a.weight", module="")
    trace.fetch("a", 30, 46).stream_wait(32, stream=GATHERS).stream_wait(36)
    trace.gather(PREFETCH, 40, 60, 100, params="b.weight,c.bias", module="a", num_params=9)
    trace.compute(60, 160, launched=50, name="a")
    trace.fetch("b", 110, 130).stream_wait(112, stream=GATHERS).stream_wait(116)
    trace.gather(PREFETCH, 120, 140 - early_by, 220, params="c.weight", module="b")
    trace.compute(160, 180, launched=135, name="b")
    trace.fetch("c", 222, 229).stream_wait(226, stream=GATHERS).stream_wait(227)
    trace.host("cudaEventSynchronize", 223, 225, cat="cuda_runtime")
    trace.compute(240, 300, launched=230, name="c")
    trace.fetch("d", 310, 330)
    trace.gather(DEMAND, 312, 330, 370, params="d.weight", module="d")
    trace.stream_wait(320, stream=GATHERS).stream_wait(324)
    trace.compute(370, 400, launched=332, name="d")
    trace.label("Optimizer.step#AdamW.step", 405, 450).compute(420, 460, launched=415, name="adam")
    trace.gather(REFRESH, 470, 480, 484, params="a.bias", phase=Phase.STEP, elements=8)
    trace.gather(REFRESH, 480, 490, 494, params="b.bias", phase=Phase.STEP, elements=8)
    return trace.label(Label(event=LabelEvent.RELEASE, module="d", phase=Phase.FORWARD), 401, 403)


def without_labels(trace: TraceBuilder) -> TraceBuilder:
    trace.events = [event for event in trace.events if not is_label(event["name"])]
    return trace


def table_of(tmp_path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(tmp_path / "run" / "analysis" / "gathers.parquet").to_pylist()
    return rows


def report_of(analysis: Analysis) -> GatherReport:
    assert analysis.gathers is not None, analysis.no_gathers
    return analysis.gathers


def microseconds(row: dict[str, Any], *names: str) -> list[float | None]:
    return [None if row[f"{name}_ns"] is None else row[f"{name}_ns"] / 1000 for name in names]


def total_of(report: GatherReport) -> GatherGroup:
    assert report.total is not None
    return report.total


def test_each_kind_of_gather_has_its_hand_worked_figures(analyse: Analyse, tmp_path: Path) -> None:
    report = report_of(analyse(stage_three(0), stage_three(1, early_by=10)))
    rows = [row for row in table_of(tmp_path) if row["rank"] == 0]
    # gather, hidden, exposed, blocking, slack: the launch of what computes next returns 2 µs after it began.
    assert [microseconds(row, "gather", "hidden", "exposed", "blocking", "slack") for row in rows] == [
        [40, 0, 40, 60 - 52, 0],
        [40, 40, 0, 0, 60],
        [80, 40, 40, 0, 20],
        [40, 0, 40, 370 - 334, 0],
        [4, 0, 4, 0, None],
        [4, 0, 4, 0, None],
    ]
    assert [(row["kind"], row["late"], row["need_module"]) for row in rows] == [
        ("prefetch", True, "a"),
        ("prefetch", False, "b"),
        ("prefetch", False, "c"),
        ("demand", False, "d"),
        ("refresh", False, None),
        ("refresh", False, None),
    ]
    assert not any(row["inferred"] or row["cold"] for row in rows)
    (step,) = [step for step in report.steps if step.rank == 0]
    assert (step.num_demand, step.num_prefetch, step.num_refresh, step.num_unknown) == (1, 3, 2, 0)
    assert (step.num_late, report.num_persisted) == (1, 2)
    assert step.totals.hidden_ratio == pytest.approx(80 / 208)
    assert step.fetched.hidden_ratio == pytest.approx(80 / 200)


def test_transfer_begins_when_the_last_rank_has_arrived(analyse: Analyse, tmp_path: Path) -> None:
    analyse(stage_three(0), stage_three(1, early_by=10))
    both = [row for row in table_of(tmp_path) if row["gather"] == 2]
    assert [microseconds(row, "gather", "transfer", "wait", "hidden", "hidden_transfer") for row in both] == [
        [80, 80, 0, 40, 40],
        [90, 80, 10, 50, 40],
    ]


def test_ratios_are_given_over_all_time_and_over_transfer(analyse: Analyse) -> None:
    totals = total_of(report_of(analyse(stage_three(0), stage_three(1, early_by=10)))).totals
    assert (totals.gather_ns, totals.hidden_ns, totals.exposed_ns) == (426_000, 170_000, 256_000)
    assert (totals.transfer_ns, totals.wait_ns, totals.hidden_transfer_ns) == (416_000, 10_000, 160_000)
    assert totals.hidden_ratio == pytest.approx(170 / 426)
    assert totals.hidden_transfer_ratio == pytest.approx(160 / 416)


def test_alone_a_rank_knows_no_waiting(analyse: Analyse) -> None:
    totals = total_of(report_of(analyse(stage_three(0)))).totals
    assert (totals.transfer_ns, totals.wait_ns, totals.hidden_transfer_ratio) == (None, None, None)
    assert totals.hidden_ratio == pytest.approx(80 / 208)


def test_groups_are_by_kind_phase_and_the_module_that_needs_them(analyse: Analyse) -> None:
    report = report_of(analyse(stage_three(0), stage_three(1)))
    assert [(group.kind, group.totals.num_gathers) for group in report.kinds] == [
        (DEMAND, 2),
        (PREFETCH, 6),
        (REFRESH, 4),
    ]
    assert [(group.phase, group.totals.hidden_ns) for group in report.phases] == [
        (Phase.FORWARD, 160_000),
        (Phase.STEP, 0),
    ]
    assert [(group.module, group.totals.hidden_ratio) for group in report.modules] == [
        ("a", 0),
        ("b", 1),
        ("c", 0.5),
        ("d", 0),
    ]
    assert [(late.rank, late.need_module, late.blocking_ns) for late in report.late] == [(0, "a", 8000), (1, "a", 8000)]
    slack = {(bin_.low_ns, bin_.high_ns): (bin_.num_prefetch, bin_.num_demand) for bin_ in report.slack}
    assert slack[0, 100_000] == (6, 2)
    assert sum(map(sum, slack.values())) == 8


def test_the_coordinator_is_charged_with_its_host_time(analyse: Analyse) -> None:
    step = report_of(analyse(stage_three(0))).steps[0]
    # fetches of "", a, b, c and d, and one release
    assert step.coordinator_ns == 1000 * (12 + 16 + 20 + 7 + 20 + 2)
    # Idle 0-20 up to the launch of A's collective at 17; 220-240 up to 232; 300-330 to 315; 400-420 to 417.
    # In fetches or a release: 8-17, 222-229, 310-315, 401-403.
    assert step.coordinator_host_bound_ns == 1000 * (9 + 7 + 5 + 2)
    assert (step.num_forced_syncs, step.forced_sync_ns) == (1, 2000)


def test_without_labels_kinds_phases_and_needs_are_inferred(analyse: Analyse, tmp_path: Path) -> None:
    labelled = report_of(analyse(stage_three(0)))
    want = table_of(tmp_path)
    analysis = analyse(without_labels(stage_three(0)))
    report, rows = report_of(analysis), table_of(tmp_path)
    same = ("step", "kind", "phase", "bytes", "start_ns", "end_ns", "need_ns", "slack_ns", "hidden_ns", "exposed_ns",
            "blocking_ns", "late")  # fmt: skip
    assert [{name: row[name] for name in same} for row in rows] == [{name: row[name] for name in same} for row in want]
    assert all(row["inferred"] and row["module"] is None for row in rows)
    assert report.inferred_ratio == 1
    assert report.steps[0].num_forced_syncs == labelled.steps[0].num_forced_syncs == 1
    assert report.steps[0].coordinator_ns is None
    assert "inferred from the order" in gather_lines(analysis)[-1]


def malformed(trace: TraceBuilder, change: tuple[str, str]) -> TraceBuilder:
    """The same trace with labels that cannot be read."""
    for event in trace.events:
        if is_label(event["name"]):
            event["name"] = event["name"].replace(*change, 1)
    return trace


@pytest.mark.parametrize("change", [("zt1:", "zt1:broken_"), ("zt1:", "zt2:")])
def test_labels_that_cannot_be_read_are_not_said_to_be_absent(change: tuple[str, str], analyse: Analyse) -> None:
    trace = stage_three(0)
    count = sum(is_label(event["name"]) for event in trace.events)
    assert count == 12
    analysis = analyse(malformed(trace, change))
    (note,) = [note for note in analysis.diagnostics if note.code == "labels_unread"]
    assert (note.level, note.file, note.count) == (Level.WARNING, "rank_0.json", count)
    assert "rank_0.json: 12 of 12 labels are malformed or of another version, and were not read" in note.message
    assert note.hint
    report = report_of(analysis)
    assert (report.inferred_ratio, report.num_unread_labels) == (1, count)
    said = gather_lines(analysis)[-1]
    assert said.startswith("12 labels are malformed or of another version: kind and phase are inferred")


def test_a_run_whose_gather_labels_alone_are_malformed_says_so(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 200).compute(20, 60, launched=10)
    trace.label("zt1:gather kind=unheard", 2, 6).all_gather(30, 90, launched=4)
    trace.label(Label(event=LabelEvent.PHASE, phase=Phase.FORWARD), 1, 100)
    analysis = analyse(trace)
    assert analysis.gathers is None
    assert "labels that could not be read, malformed or later: 1." in (analysis.no_gathers or "")
    (note,) = [note for note in analysis.diagnostics if note.code == "labels_unread"]
    assert "1 of 2 labels" in note.message
    assert "'zt1:gather kind=unheard'" in note.message


def test_a_gather_with_several_collectives_counts_shared_time_once(analyse: Analyse, tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 200).fetch("a", 0, 20).compute(20, 60, launched=10)
    trace.gather(DEMAND, 2, 10, 50, params="a.weight")
    trace.all_gather(30, 90, launched=4, stream=21).all_gather(95, 100, launched=5)
    analyse(trace)
    (row,) = table_of(tmp_path)
    assert row["num_collectives"] == 3
    assert microseconds(row, "gather", "hidden", "exposed") == [85, 40, 45]
    assert row["end_ns"] - row["start_ns"] == 90_000


def test_a_gather_belongs_to_the_step_in_which_it_runs_or_by_launch_was_submitted(
    analyse: Analyse, tmp_path: Path
) -> None:
    trace = TraceBuilder().step(0, 0, 100).step(1, 100, 200).compute(10, 20).compute(160, 190)
    trace.fetch("a", 90, 99).gather(DEMAND, 92, 120, 150, params="a.weight")
    analyse(trace)
    assert [row["step"] for row in table_of(tmp_path)] == [1]
    analyse(trace, attribution=Attribution.LAUNCH)
    assert [row["step"] for row in table_of(tmp_path)] == [0]


def test_a_need_that_nothing_shows_is_unknown(analyse: Analyse, tmp_path: Path) -> None:
    """No waits in the trace: the module is known where all parameters are named, and only there."""
    trace = TraceBuilder().step(0, 0, 300)
    trace.fetch("a", 0, 10).gather(PREFETCH, 4, 20, 40, params="b.weight")
    trace.gather(PREFETCH, 12, 40, 60, params="c.weight", num_params=2).compute(20, 30, launched=11)
    trace.fetch("b", 30, 35).compute(70, 80, launched=50)
    analyse(trace)
    assert [(row["need_module"], *microseconds(row, "slack")) for row in table_of(tmp_path)] == [
        ("b", 30),
        (None, None),
    ]


def test_where_gathers_share_the_compute_stream_the_last_wait_of_a_fetch_is_its_end(
    analyse: Analyse, tmp_path: Path
) -> None:
    trace = TraceBuilder().step(0, 0, 300)
    trace.fetch("a", 0, 20).stream_wait(2).gather(PREFETCH, 4, 20, 40, params="b.weight", num_params=5)
    trace.compute(20, 30, launched=12).fetch("b", 30, 40).stream_wait(32).stream_wait(34).compute(70, 80, launched=50)
    analyse(trace)
    assert [(row["need_module"], *microseconds(row, "slack")) for row in table_of(tmp_path)] == [("b", 30)]


def cold_and_warm(*, prefetch: bool) -> TraceBuilder:
    """Step 0 fetches on demand alone; step 1 prefetches b, if asked for."""
    trace = TraceBuilder().step(0, 0, 200).step(1, 200, 400)
    for start, late in ((0, True), (200, not prefetch)):
        trace.fetch("a", start + 2, start + 9).gather(DEMAND, start + 3, start + 10, start + 30, params="a.weight")
        trace.compute(start + 30, start + 70, launched=start + 10)
        if late:
            trace.fetch("b", start + 60, start + 69).gather(
                DEMAND, start + 62, start + 70, start + 90, params="b.weight"
            )
            trace.compute(start + 90, start + 120, launched=start + 72)
        else:
            trace.gather(PREFETCH, start + 12, start + 30, start + 50, params="b.weight")
            trace.compute(start + 70, start + 100, launched=start + 60)
    return trace


def test_a_step_without_prefetch_beside_one_with_it_is_cold_and_in_no_mean(analyse: Analyse) -> None:
    report = report_of(analyse(cold_and_warm(prefetch=True)))
    assert [(step.step, step.cold, step.totals.hidden_ratio) for step in report.steps] == [
        (0, True, 0),
        (1, False, 0.5),
    ]
    assert report.cold_steps == (0,)
    assert total_of(report).totals.hidden_ratio == 0.5


def test_whether_a_run_without_any_prefetch_is_cold_is_unknown_without_its_configuration(analyse: Analyse) -> None:
    report = report_of(analyse(cold_and_warm(prefetch=False)))
    assert [step.cold for step in report.steps] == [None, None]
    assert total_of(report).totals.hidden_ratio == 0


def test_all_gathers_behind_the_optimizer_alone_are_no_gathers_of_stage_three(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 300).host("autograd::engine::evaluate_function: MulBackward0", 20, 30)
    trace.compute(20, 90, launched=10).label("Optimizer.step#AdamW.step", 100, 110).all_gather(120, 150)
    analysis = analyse(trace)
    assert analysis.gathers is None
    assert analysis.no_gathers is not None and "optimizer step" in analysis.no_gathers


def test_a_labelled_run_without_a_coordinator_has_no_gathers(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 300).compute(20, 90)
    trace.label(Label(event=LabelEvent.PHASE, phase=Phase.FORWARD), 0, 200).all_gather(120, 150)
    assert analyse(trace).gathers is None


def test_the_phase_of_an_inferred_gather_is_that_of_its_host_call(analyse: Analyse, tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 400).compute(30, 50, launched=20).all_gather(10, 30, launched=5)
    trace.host("autograd::engine::evaluate_function: MulBackward0", 100, 160, tid=77)
    trace.all_gather(120, 140, launched=110, launch_tid=77).compute(140, 150, launched=125, launch_tid=77)
    # The same time on another thread is not in the backward pass.
    trace.all_gather(150, 158, launched=115).label("Optimizer.step#AdamW.step", 200, 230).compute(
        220, 240, launched=210
    )
    trace.all_gather(250, 252, launched=240).all_gather(260, 262, launched=255)
    trace.compute(300, 320, launched=290).all_gather(330, 340, launched=325)
    analyse(trace)
    assert [row["phase"] for row in table_of(tmp_path)] == ["forward", "backward", "forward", "step", "step", "forward"]


def test_collectives_name_their_gather(analyse: Analyse, tmp_path: Path) -> None:
    other = {"Collective name": "allreduce"}
    analyse(stage_three(0).all_gather(600, 610, **other), stage_three(1).all_gather(600, 610, **other))
    rows = pq.read_table(tmp_path / "run" / "analysis" / "collectives.parquet").to_pylist()
    assert [row["gather"] for row in rows if row["rank"] == 0] == [0, 1, 2, 3, 4, 5, None]


def test_a_labelled_gather_without_its_collective_is_unknown_and_said(analyse: Analyse, tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 100).compute(10, 30)
    trace.label(Label(event=LabelEvent.GATHER, kind=PREFETCH, phase=Phase.FORWARD, num_params=1, bytes=4), 40, 44)
    analysis = analyse(trace)
    (row,) = table_of(tmp_path)
    assert (row["gather_ns"], row["hidden_ns"], row["start_ns"], row["num_collectives"]) == (None, None, None, 0)
    assert "gathers_without_collective" in {note.code for note in analysis.diagnostics}
    assert report_of(analysis).steps[0].totals.hidden_ratio is None


def test_the_log_says_that_the_prefetch_cache_was_thrown_away(analyse: Analyse, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.log").write_text(
        "[rank0] step=1\nInvalidate trace cache @ step 3: expected module 4, but got module 9\n"
    )
    analysis = analyse(cold_and_warm(prefetch=True))
    (note,) = [note for note in analysis.diagnostics if note.code == "prefetch_cache_invalidated"]
    assert "train.log" in note.message and "expected module 4, but got module 9" in note.message
    assert "train.log" in analysis.inputs


def test_the_terminal_says_what_prefetch_hides_and_the_page_what_else_there_is(analyse: Analyse) -> None:
    analysis = analyse(stage_three(0), stage_three(1, early_by=10))
    assert gather_lines(analysis) == [
        "Gathers: A step of a rank has 3 prefetches, 1 demand and 2 refreshes. Compute hides 39.9 % of their time, and "
        "38.5 % of the transfer alone, waiting left out.",
    ]
    assert analysis.gathers is not None
    assert list(gather_remarks(analysis.gathers)) == [
        "1 prefetch is late; gathers hold compute back for 44.0 µs.",
        "2 small parameters are persisted: kept whole, and refreshed after each step.",
        "DeepSpeed's coordinator takes 77.0 µs of the host's time a step; for 23.0 µs of it the device is idle and "
        "waits for the host.",
        "1 time a step it makes the host wait for a pending fetch, 2.00 µs in all.",
    ]
    cold = gather_lines(analyse(cold_and_warm(prefetch=True)))
    assert cold[-1].endswith("step 0.")
