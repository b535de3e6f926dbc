"""The words at the top of the page."""

from __future__ import annotations

import pytest

from tests.page.runs import MS, Row, Run, host_run, make_run, manifest, training_run
from zerotrace.model import Attribution, Diagnostic, Level, Spread
from zerotrace.report.summary import (
    Tile,
    diagnostic_groups,
    format_parameters,
    format_spread,
    header_facts,
    reading_line,
    trust_line,
    verdict_tiles,
)
from zerotrace.units import format_bytes, format_ns, format_ratio


def tiles(run: Run) -> dict[str, Tile]:
    return {tile.key: tile for tile in verdict_tiles(run.analysis)}


def test_tiles_carry_the_exact_values() -> None:
    run = training_run(manifest=manifest())
    found = tiles(run)
    verdict = run.analysis.verdict
    assert verdict.exposed_ns is not None
    assert dict(found["exposed"].numbers) == {
        "exposed-ns-min": verdict.exposed_ns.min,
        "exposed-ns-median": verdict.exposed_ns.median,
        "exposed-ns-max": verdict.exposed_ns.max,
    }
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
    by_launch = by_launch.with_(verdict=type(verdict)(**{**vars(verdict), "idle_ns": None}))
    assert tiles(by_launch)["idle"].note == "not defined by launch"


@pytest.mark.parametrize(
    ("spread", "formatter", "text"),
    [
        (Spread(min=58e6, median=60e6, max=63e6), format_ns, "58.0–63.0 ms"),
        (Spread(min=58e6, median=58e6, max=58e6), format_ns, "58.0 ms"),
        (Spread(min=640e3, median=1e6, max=2e6), format_ns, "640 µs–2.00 ms"),
        (Spread(min=0.0, median=1e6, max=2e6), format_ns, "0–2.00 ms"),
        (Spread(min=0.045, median=0.05, max=0.051), format_ratio, "4.50–5.10 %"),
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


def test_equal_diagnostics_become_one_entry_worst_first() -> None:
    run = training_run(
        diagnostics=[
            Diagnostic(code="b", level=Level.WARNING, message="odd", file="x", count=2),
            Diagnostic(code="b", level=Level.WARNING, message="odd", file="y", count=3, hint="do this"),
            Diagnostic(code="c", level=Level.ERROR, message="bad"),
            Diagnostic(code="a", level=Level.INFO, message="fine"),
        ]
    )
    groups = diagnostic_groups(run.analysis, Level.ERROR, Level.WARNING)
    assert [(g.code, g.count, g.files, g.hint) for g in groups] == [("c", 1, (), None), ("b", 5, ("x", "y"), "do this")]
