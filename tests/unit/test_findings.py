"""Findings: each rule fires where it should, keeps silent where it should, and nothing is said below the noise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from tests.page.runs import MS, Row, Run, make_run, manifest, training_run
from zerotrace.analysis.findings import find
from zerotrace.analysis.findings.host import host_bound
from zerotrace.analysis.findings.noise import step_noise_ns
from zerotrace.model import Analysis, Finding, Gain, Spread, WindowKind, WindowRecord


def bound_run(host_bound_ns: int) -> Run:
    """One rank, one step of 10 ms, of which 4 ms compute."""
    run = make_run([Row(0, "compute", 0, 4 * MS)], [(0, 2, 0, 10 * MS)])
    ranks = tuple(replace(rank, host_bound_ns=float(host_bound_ns)) for rank in run.analysis.ranks)
    parts = tuple(replace(part, host_bound_ns=host_bound_ns) for part in run.analysis.partition)
    return run.with_(ranks=ranks, partition=parts)


def costing(*costs: float) -> list:  # type: ignore[type-arg]
    def rule(_: Analysis) -> Iterator[Finding]:
        for index, cost in enumerate(costs):
            yield Finding(code=f"rule{index}", claim="It costs.", evidence="See.", cost_ns=cost)

    return [rule]


def test_a_host_that_launches_late_is_found_with_its_place_and_what_is_left_without_the_profiler() -> None:
    run = bound_run(5 * MS)
    verdict = replace(run.analysis.verdict, unprofiled_step_ns=7.0 * MS)
    (finding,) = host_bound(replace(run.analysis, verdict=verdict))
    assert "for 50 % of the profiled step rank 0 is idle" in finding.claim
    assert finding.cost_ns == 5 * MS
    assert finding.place is not None
    assert (finding.place.step, finding.place.end_ns - finding.place.start_ns) == (2, 10 * MS)
    # 10 ms profiled, 5 of them host-bound: 5 ms would remain, and the unprofiled step takes 7.
    assert finding.gain is not None
    assert finding.gain.step_ns == 2 * MS
    assert finding.gain.text.startswith("at most 2.00 ms a step (")


def test_without_an_unprofiled_step_nothing_is_predicted() -> None:
    (finding,) = host_bound(bound_run(5 * MS).analysis)
    assert finding.gain is None


def test_a_host_that_is_late_for_a_tenth_of_the_step_is_no_finding() -> None:
    assert list(host_bound(bound_run(1 * MS).analysis)) == []


def test_findings_come_worst_first_and_none_below_the_noise() -> None:
    analysis = bound_run(0).analysis  # a step of 10 ms: the floor of the noise is 0.1 ms
    found = find(analysis, costing(0.05 * MS, 0.2 * MS, 3 * MS))
    assert [finding.code for finding in found] == ["rule2", "rule1"]


def test_what_is_predicted_to_win_nothing_is_not_said() -> None:
    def rule(_: Analysis) -> Iterator[Finding]:
        gain = Gain(step_ns=0.05 * MS, basis="nothing would be left")
        yield Finding(code="rule", claim="It costs.", evidence="See.", cost_ns=5.0 * MS, gain=gain)

    assert find(bound_run(0).analysis, [rule]) == ()


def test_memory_counts_by_its_part_of_the_peak() -> None:
    def rule(_: Analysis) -> Iterator[Finding]:
        yield Finding(code="time", claim="t", evidence="t", cost_ns=2.0 * MS)  # 20 % of the step
        yield Finding(code="memory", claim="m", evidence="m", cost_bytes=3 << 30)  # 30 % of the peak

    run = bound_run(0)
    peak = Spread(min=10 << 30, median=10 << 30, max=10 << 30)
    analysis = replace(run.analysis, verdict=replace(run.analysis.verdict, peak_bytes=peak))
    assert [finding.code for finding in find(analysis, [rule])] == ["memory", "time"]


def test_noise_is_that_of_the_timed_steps() -> None:
    # Timed steps of 9, 10, 11 and 20 ms: median 10.5, absolute deviations 1.5, 0.5, 0.5, 9.5, so MAD 1.0 ms.
    timed = WindowRecord(kind=WindowKind.TIMED, first_step=5, step_ns=(9 * MS, 10 * MS, 11 * MS, 20 * MS))
    record = manifest(num_ranks=1)
    run = training_run(manifest=replace(record, ranks=(replace(record.ranks[0], windows=(timed,)),)))
    assert step_noise_ns(run.analysis) == pytest.approx(1.2533 * 1.4826 * MS / 2)


def test_noise_of_few_steps_is_one_percent_of_the_step() -> None:
    assert step_noise_ns(bound_run(0).analysis) == 0.1 * MS


def test_a_gain_says_both_amounts() -> None:
    gain = Gain(step_ns=2e6, memory_bytes=1 << 30, at_most=False, basis="measured")
    assert gain.text == "about 2.00 ms a step and 1.00 GiB a rank (measured)"
