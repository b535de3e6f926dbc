"""The words at the top of the page."""

from __future__ import annotations

from statistics import median

import pytest
from msgspec.structs import replace

from tests.page.runs import MS, Row, Run, host_run, make_run, manifest, training_run
from zerotrace.model import Attribution, Spread
from zerotrace.report.build import render
from zerotrace.report.summary import (
    Tile,
    baseline_line,
    format_parameters,
    format_percent,
    format_spread,
    header_facts,
    reading_line,
    tiles_line,
    trust_line,
    verdict_tiles,
)
from zerotrace.units import format_bytes, format_ns


def tiles(run: Run) -> dict[str, Tile]:
    return {tile.key: tile for tile in verdict_tiles(run.analysis)}


def share_numbers(key: str, shares: list[float]) -> dict[str, float]:
    return {
        f"{key}-share-min": min(shares),
        f"{key}-share-median": median(shares),
        f"{key}-share-max": max(shares),
    }


def test_shares_are_each_ranks_own_and_are_not_capped() -> None:
    # 9 of 10 ms on one rank and 18 of 100 ms on the other: by the median span (55 ms) they would read 16 and 33 %.
    rows = [Row(0, "compute", 0, 9 * MS), Row(1, "compute", 0, 18 * MS)]
    run = make_run(rows, [(0, 1, 0, 10 * MS), (1, 1, 0, 100 * MS)])
    found = tiles(run)
    assert found["compute"].note == "18.0–90.0 % of the profiled step"
    assert found["idle"].note == "10.0–82.0 % of the profiled step"
    # By launch, a step can launch more device time than its host window is long.
    ranks = tuple(replace(rank, compute_ns=1.5 * rank.span_ns) for rank in run.analysis.ranks)
    assert tiles(run.with_(ranks=ranks))["compute"].note == "150.0 % of the profiled step"


def test_exposed_tile_tells_transfer_from_waiting() -> None:
    run = training_run()
    verdict = replace(
        run.analysis.verdict,
        exposed_transfer_ns=Spread(min=2e6, median=2e6, max=3e6),
        exposed_wait_ns=Spread(min=0, median=1e6, max=4e6),
    )
    assert tiles(run.with_(verdict=verdict))["exposed"].note.endswith(
        " %: 2.00–3.00 ms transfer, 0–4.00 ms waiting for a rank"
    )


def test_dilation_below_one_is_no_dilation() -> None:
    run = training_run(manifest=manifest())
    run = run.with_(verdict=replace(run.analysis.verdict, dilation_ratio=0.94))
    assert tiles(run)["step"].note == "profiled 6.00 ms, no dilation measurable"
    assert trust_line(run.analysis) == (
        "No dilation by the profiler is measurable here: profiled steps took 0.94 × as long, so that noise is larger "
        "than its cost; without it the step takes 4.00 ms."
    )
    assert "0.94" not in tiles_line(run.analysis)
    assert "× 1.50 as long" in tiles_line(training_run(manifest=manifest()).analysis)


def test_percentages_of_a_column_have_the_same_digits() -> None:
    shares = (None, 0.0, 0.0004, 0.01, 0.0999, 0.99, 0.9999, 1.0)
    assert [format_percent(share) for share in shares] == [
        "–", "0.0 %", "< 0.1 %", "1.0 %", "10.0 %", "99.0 %", "> 99.9 %", "100.0 %",
    ]  # fmt: skip


def test_tiles_carry_the_exact_values() -> None:
    run = training_run(manifest=manifest())
    found = tiles(run)
    verdict = run.analysis.verdict
    assert verdict.exposed_ns is not None
    assert dict(found["exposed"].numbers) == {
        "exposed-ns-min": verdict.exposed_ns.min,
        "exposed-ns-median": verdict.exposed_ns.median,
        "exposed-ns-max": verdict.exposed_ns.max,
    } | share_numbers("exposed", [r.exposed_ns / r.span_ns for r in run.analysis.ranks])
    assert dict(found["step"].numbers)["unprofiled-step-ns"] == 4 * MS
    assert found["step"].value == "4.00 ms"
    assert found["step"].note == "profiled 6.00 ms, × 1.50"
    assert found["memory"].value == "7.00 · 14.0–15.0 GiB"


def test_unknown_figures_say_why() -> None:
    found = tiles(training_run())
    assert (found["step"].value, found["step"].note) == ("–", "no capture manifest; profiled 6.00 ms")
    assert (found["memory"].value, found["memory"].note) == ("–", "no capture manifest")
    assert tiles(host_run())["memory"].note == "not measured on CPU"
    silent = tiles(make_run([], [(0, 2, 0, 100)]))
    assert {silent[key].note for key in ("compute", "exposed", "overlap", "idle")} == {"no step has device rows"}
    no_comm = tiles(make_run([Row(0, "compute", 0, 50)], [(0, 2, 0, 100)]))
    assert (no_comm["overlap"].value, no_comm["overlap"].note) == ("–", "no communication in the steps")
    by_launch = training_run().with_(attribution=Attribution.LAUNCH)
    verdict = by_launch.analysis.verdict
    by_launch = by_launch.with_(verdict=replace(verdict, idle_ns=None))
    assert tiles(by_launch)["idle"].note == "not defined by launch"


@pytest.mark.parametrize(
    ("spread", "formatter", "text"),
    [
        (Spread(min=58e6, median=60e6, max=63e6), format_ns, "58.0–63.0 ms"),
        (Spread(min=58e6, median=58e6, max=58e6), format_ns, "58.0 ms"),
        (Spread(min=640e3, median=1e6, max=2e6), format_ns, "640 µs–2.00 ms"),
        (Spread(min=0.0, median=1e6, max=2e6), format_ns, "0–2.00 ms"),
        (Spread(min=0.045, median=0.05, max=0.051), format_percent, "4.5–5.1 %"),
        (Spread(min=2**30, median=2**30, max=2**31), format_bytes, "1.00–2.00 GiB"),
        (None, format_ns, "–"),
    ],
)
def test_ranges_name_their_unit_once(spread: Spread | None, formatter: object, text: str) -> None:
    assert format_spread(spread, formatter) == text  # type: ignore[arg-type]


def test_header_says_what_ran_where() -> None:
    facts = header_facts(training_run(manifest=manifest()).analysis)
    assert facts == (
        "DeepSpeed ZeRO-3",
        "gpt2-large",
        "Ψ 774.1 M",
        "2 × NVIDIA H200",
        "nccl",
        "DeepSpeed 0.19.8, torch 2.11.0, NCCL 2.28.9",
    )
    assert header_facts(training_run().analysis) == ("2 ranks", "NVIDIA H200", "nccl")
    assert header_facts(training_run(num_ranks=1).analysis)[0] == "1 rank of 2"


def test_parameters_read_as_in_papers() -> None:
    assert [format_parameters(n) for n in (7, 2_500, 774_090_000, 7_000_000_000)] == ["7", "2.5 K", "774.1 M", "7.0 B"]


def test_reading_line_counts_what_was_read() -> None:
    run = training_run()
    events = sum(source.num_events for source in run.analysis.sources)
    assert (
        reading_line(run.analysis)
        == f"Profiled steps 2 and 3 of 2 ranks; {events:,} events, read and analysed in 1.25 s."
    )
    assert reading_line(training_run(num_ranks=1, num_steps=9).analysis).startswith("Profiled steps 2 to 10 of 1 rank;")
    whole = make_run([Row(0, "compute", 0, 5)], [(0, -1, 0, 5)])
    assert reading_line(whole.analysis).startswith("The whole trace of 1 rank, without step windows;")
    assert reading_line(make_run([Row(0, "compute", 0, 5)]).analysis).startswith("1 rank, no step window;")


def test_dilation_is_said_or_said_to_be_unknown() -> None:
    assert "1.50 ×" in trust_line(training_run(manifest=manifest()).analysis)
    assert "unknown" in trust_line(training_run().analysis)


def test_a_run_without_an_engine_is_named_as_such_and_has_no_configuration() -> None:
    single = manifest(num_ranks=1, engine="single", stage=None, ds_config=None, world_size=1)
    run = training_run(manifest=single)
    assert header_facts(run.analysis)[0] == "single device"
    page = render(run.analysis, run.events)
    assert "DeepSpeed configuration" not in page
    assert "<summary>DeepSpeed configuration</summary>" in render(
        training_run(manifest=manifest()).analysis, run.events
    )


def against(study_exposed_ns: float) -> Run:
    run = training_run(manifest=manifest())
    changes = {"baseline_name": "traces/single", "baseline_step_ns": 1.5 * MS, "study_exposed_ns": study_exposed_ns}
    return run.with_(verdict=replace(run.analysis.verdict, **changes))  # type: ignore[arg-type]


def test_the_baseline_s_figure_stands_beside_the_trace_s() -> None:
    run = against(2.5 * MS)
    line = baseline_line(run.analysis)
    assert line.startswith(
        "One device alone takes 1.50 ms for the same work (traces/single): by step − baseline, 2.50 "
    )
    assert format_spread(run.analysis.verdict.exposed_ns, format_ns) in line
    tile = tiles(run)["step"]
    assert tile.note == "profiled 6.00 ms, × 1.50; 1.50 ms on one device"
    assert dict(tile.numbers)["study-exposed-ns"] == 2.5 * MS
    page = render(run.analysis, run.events)
    assert "by step − baseline" in page
    assert '<th scope="row">step − baseline</th>' in page


def test_a_step_that_is_faster_than_the_baseline_says_nothing_of_communication() -> None:
    assert "says nothing of communication" in baseline_line(against(-0.5 * MS).analysis)
    assert baseline_line(training_run(manifest=manifest()).analysis) == ""
    run = training_run(manifest=manifest())
    assert "step − baseline" not in render(run.analysis, run.events)
