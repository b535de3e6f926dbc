"""Gates: figures by name are those of the analysis, and a run is worse only beyond the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.page.runs import MS, Row, host_run, make_run, manifest, training_run
from zerotrace.analysis.check import FIGURES, check, parse_condition
from zerotrace.errors import ComparisonError
from zerotrace.model import Analysis, Attribution, Check, ComparedFigure, Judgement, WindowKind, WindowRecord

UNITS = {name: spec.unit for name, spec in FIGURES.items()}
GIB = 1 << 30


def timed(*step_ms: float, compute_ms: Sequence[int] = (4,), **changes: Any) -> Analysis:
    """One rank: timed steps, and one profiled step of 10 ms for each amount of compute."""
    window = WindowRecord(kind=WindowKind.TIMED, first_step=0, step_ns=tuple(int(ms * MS) for ms in step_ms))
    record = manifest(1, **changes)
    record = replace(record, ranks=(replace(record.ranks[0], windows=(window,)),))
    rows = [Row(0, "compute", 10 * MS * i, ms * MS) for i, ms in enumerate(compute_ms)]
    steps = [(0, i, 10 * MS * i, 10 * MS * (i + 1)) for i in range(len(compute_ms))]
    analysis = make_run(rows, steps, manifest=record).analysis
    ordered = sorted(window.step_ns)
    middle = len(ordered) // 2
    median = (ordered[middle] + ordered[~middle]) / 2 if ordered else None
    return replace(analysis, verdict=replace(analysis.verdict, unprofiled_step_ns=median, dilation_ratio=1.0))


def judge(analysis: Analysis, *texts: str) -> Check:
    return check(analysis, [parse_condition(text, UNITS) for text in texts])


def figure(found: Check, name: str) -> ComparedFigure:
    (one,) = (entry for entry in found.figures if entry.figure == name)
    return one


def test_figures_over_ranks_are_the_worst_and_the_spread() -> None:
    analysis = training_run().analysis
    assert analysis.verdict.exposed_ns is not None
    assert analysis.verdict.overlap_ratio is not None
    value = {name: spec.value(analysis) for name, spec in FIGURES.items()}
    exposed = [rank.exposed_ns for rank in analysis.ranks]
    assert (value["exposed_ns"], value["exposed_ns.min"]) == (max(exposed), min(exposed))
    assert value["exposed_ns.median"] == fmean(exposed)
    # Of overlap, little is bad.
    assert value["overlap_ratio"] == value["overlap_ratio.min"] == analysis.verdict.overlap_ratio.min
    assert value["exposed_ratio"] == max(rank.exposed_ns / rank.span_ns for rank in analysis.ranks)
    for name in ("span_ns", "compute_ns", "exposed_ns", "copy_only_ns", "idle_ns"):
        assert value[name] == getattr(analysis.verdict, name).max


def test_every_scalar_of_the_verdict_is_a_figure() -> None:
    analysis = training_run().analysis
    fields = set(type(analysis.verdict).__struct_fields__) - {"headline", "baseline_name"}
    assert fields <= set(FIGURES)


def test_every_figure_is_known_or_says_why(analyse: Analyse) -> None:
    alone = analyse(TraceBuilder().step(2, 0, 500).compute(100, 200))
    for analysis in (alone, training_run().analysis, host_run().analysis, timed(1, 2, 3, 4)):
        for name, spec in FIGURES.items():
            value = spec.value(analysis)
            assert value is None or math.isfinite(value), name
            assert spec.reason(analysis), name


def test_conditions_hold_or_not() -> None:
    found = judge(timed(10, 10, 10, 10), "compute_ns > 3ms", "compute_ns > 4ms", "compute_ratio >= 40%")
    assert [condition.holds for condition in found.conditions] == [True, False, True]
    assert (found.failed, found.unknown) == (True, ())
    assert not judge(timed(10, 10, 10, 10), "compute_ns > 4ms").failed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("exposed_transfer_ns > 1ms", "matched on no other rank"),
        ("study_exposed_ns > 0", "without --baseline"),
        ("peak_bytes > 1GiB", "the run has no manifest"),
        ("unprofiled_step_ns > 1s", "the run has no manifest"),
        ("gather_hidden_ratio < 50%", "no gather of parameters was found"),
        ("overlap_ratio < 10%", "no rank communicates"),
    ],
)
def test_an_unknown_figure_never_passes(analyse: Analyse, text: str, reason: str) -> None:
    found = judge(analyse(TraceBuilder().step(2, 0, 500).compute(100, 200)), text)
    (condition,) = found.conditions
    assert condition.holds is None
    assert condition.reason is not None
    assert reason in condition.reason
    assert len(found.unknown) == 1


def test_the_step_is_worse_beyond_twice_both_standard_errors() -> None:
    # Deviations 3, 1, 1, 3 of the median: MAD 2 ms, so the error of a median is 1.2533 × 1.4826 × 2 / √4.
    old = timed(97, 99, 101, 103)
    error = 1.2533 * 1.4826 * 2 * MS / 2
    band = 2 * math.hypot(error, error)
    assert 5 * MS < band < 6 * MS
    for shift, judgement in (
        (-6, Judgement.BETTER),
        (-5, Judgement.EQUAL),
        (0, Judgement.EQUAL),
        (5, Judgement.EQUAL),
        (6, Judgement.WORSE),
    ):
        found = check(timed(*(ms + shift for ms in (97, 99, 101, 103))), baseline=old)
        step = figure(found, "unprofiled_step_ns")
        assert step.band == pytest.approx(band)
        assert step.noise == pytest.approx(band / 2)
        assert step.judgement is judgement
        assert found.failed is (judgement is Judgement.WORSE)


def test_steps_that_hardly_vary_are_equal_within_one_percent() -> None:
    old = timed(100, 100, 100, 100)
    assert figure(check(timed(101, 101, 101, 101), baseline=old), "unprofiled_step_ns").judgement is Judgement.EQUAL
    assert (
        figure(check(timed(101.1, 101.1, 101.1, 101.1), baseline=old), "unprofiled_step_ns").judgement
        is Judgement.WORSE
    )


def test_parts_of_four_profiled_steps_have_their_own_noise() -> None:
    old, new = timed(10, 10, 10, 10, compute_ms=(4, 4, 4, 4)), timed(10, 10, 10, 10, compute_ms=(4, 5, 5, 5))
    compute = figure(check(new, baseline=old), "compute_ns")
    # Mean 4.75 ms; squares 0.5625 + 3 × 0.0625 = 0.75, by 3, by 4: an error of 0.25 ms.
    assert compute.noise == pytest.approx(0.25 * MS)
    assert compute.judgement is Judgement.WORSE  # 0.75 ms more, beyond 0.5


def test_parts_of_fewer_profiled_steps_vary_as_timed_steps_do() -> None:
    old, new = timed(9, 10, 10, 11, compute_ms=(4,)), timed(9, 10, 10, 11, compute_ms=(6,))
    compute = figure(check(new, baseline=old), "compute_ns")
    # MAD 0.5 ms in both: 1.4826 × 0.5 for the one profiled step of each.
    assert compute.band == pytest.approx(2 * math.hypot(0.7413, 0.7413) * MS, rel=1e-3)
    assert compute.judgement is Judgement.EQUAL  # 2 ms more, within 2.1


def test_a_part_below_its_noise_is_not_called_equal() -> None:
    old, new = timed(5, 10, 15, 20, compute_ms=(4,)), timed(5, 10, 15, 20, compute_ms=(6,))
    compute = figure(check(new, baseline=old), "compute_ns")
    assert compute.judgement is Judgement.UNKNOWN
    assert compute.reason is not None
    assert "noise that is larger than itself" in compute.reason


def test_memory_is_worse_from_one_percent_on() -> None:
    def holding(bytes_: int) -> Analysis:
        analysis = timed(10, 10, 10, 10)
        peak = analysis.verdict.peak_bytes
        assert peak is not None
        return replace(analysis, verdict=replace(analysis.verdict, peak_bytes=replace(peak, max=bytes_)))

    old = holding(100 * GIB)
    assert figure(check(holding(101 * GIB), baseline=old), "peak_bytes").judgement is Judgement.EQUAL
    assert figure(check(holding(101 * GIB + 1), baseline=old), "peak_bytes").judgement is Judgement.WORSE
    assert figure(check(holding(98 * GIB), baseline=old), "peak_bytes").judgement is Judgement.BETTER


def test_the_profiled_step_counts_only_where_there_is_no_other() -> None:
    both = check(timed(10, 10, 10, 10), baseline=timed(10, 10, 10, 10))
    assert "span_ns" not in {entry.figure for entry in both.figures}
    old = timed(10, 10, compute_ms=(4, 4, 4, 4))
    found = check(timed(10, 10, compute_ms=(4, 4, 4, 4)), baseline=old)
    assert figure(found, "unprofiled_step_ns").judgement is Judgement.UNKNOWN
    assert figure(found, "span_ns").judgement is Judgement.EQUAL
    assert found.unknown == ()


def test_without_steps_enough_for_noise_nothing_is_said_to_pass() -> None:
    found = check(timed(10, 10), baseline=timed(10, 10))
    assert not found.failed
    assert [*found.unknown] == [
        "the step time does not compare with the baseline's: fewer than 4 timed steps do not tell its noise"
    ]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (timed(10, 10, 10, 10, micro_batch=2), "micro-batch 2, not 4"),
        (training_run(manifest=manifest()).analysis, "2 ranks, not 1"),
        (replace(timed(10, 10, 10, 10), attribution=Attribution.LAUNCH), "attributed by launch, not by clip"),
        (host_run().analysis, "host time, not device time"),
    ],
)
def test_other_work_is_refused(other: Analysis, words: str) -> None:
    with pytest.raises(ComparisonError, match=words):
        check(timed(10, 10, 10, 10), baseline=other)
