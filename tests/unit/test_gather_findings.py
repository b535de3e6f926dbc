"""Findings about gathers, the coordinator and reductions: each rule fires where it should, and is silent elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.page.runs import manifest
from tests.unit.test_gathers import PREFETCH, REFRESH, cold_and_warm, stage_three
from zerotrace.analysis.findings import Rule
from zerotrace.analysis.findings.coordinator import cold_cache, coordinator_bound, tiny_refreshes
from zerotrace.analysis.findings.gathers import demands, large_prefetch_bucket, small_gathers, small_prefetch_bucket
from zerotrace.analysis.findings.reductions import serial_reduction
from zerotrace.labels import Label, LabelEvent, Phase
from zerotrace.model import Analysis, Finding


def configured(analysis: Analysis, **zero: Any) -> Analysis:
    """The analysis of a run of GPT-2 Large at stage 3 with these keys of ``zero_optimization``."""
    config = {"zero_optimization": {"stage": 3, **zero}}
    return replace(analysis, manifest=replace(manifest(), stage=3, ds_config=config))


def only(rule: Rule, analysis: Analysis) -> Finding:
    (finding,) = rule(analysis)
    return finding


def silent(rule: Rule, analysis: Analysis) -> bool:
    return not list(rule(analysis))


def test_demands_are_found_with_the_module_that_waits_longest(analyse: Analyse) -> None:
    finding = only(demands, analyse(stage_three(0), stage_three(1)))
    assert "1 parameter gather a step is a demand, most of all d" in finding.claim
    # The launch of d's compute returns at 334, its gather ends at 370.
    assert finding.cost_ns == 36_000
    assert finding.gain is not None and finding.gain.step_ns == 36_000
    assert finding.place is not None and finding.place.end_ns - finding.place.start_ns == 40_000
    assert finding.knob == "larger zero_optimization.stage3_prefetch_bucket_size"


def test_the_knob_of_demands_is_what_keeps_prefetch_from_working(analyse: Analyse) -> None:
    analysis = analyse(stage_three(0))
    off = only(demands, configured(analysis, stage3_prefetch_bucket_size=0))
    assert off.knob is not None and "prefetch is switched off" in off.knob
    live = only(demands, configured(analysis, stage3_max_live_parameters=1e8))
    assert live.knob is not None and "stage3_max_live_parameters" in live.knob


def test_a_run_without_demands_or_without_gathers_has_no_such_finding(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 100).compute(10, 30).gather(PREFETCH, 2, 8, 20, params="a.weight")
    assert silent(demands, analyse(trace))
    bare = analyse(TraceBuilder().step(0, 0, 100).compute(10, 30))
    rules = (demands, small_prefetch_bucket, small_gathers, large_prefetch_bucket, coordinator_bound, tiny_refreshes,
             cold_cache, serial_reduction)  # fmt: skip
    assert all(silent(rule, bare) for rule in rules)


def test_what_the_least_held_rank_waits_is_the_cost(analyse: Analyse) -> None:
    # On rank 1 compute of d had been launched 10 µs later, so that less of the wait is the gather's.
    late = stage_three(1)
    for event in late.events:
        if event["name"] == "cudaLaunchKernel" and event["ts"] == 332:
            event["ts"] = 342
    assert only(demands, analyse(stage_three(0), late)).cost_ns == 26_000


def test_a_prefetch_bucket_below_a_layer_is_found(analyse: Analyse) -> None:
    analysis = analyse(stage_three(0))
    finding = only(small_prefetch_bucket, configured(analysis, stage3_prefetch_bucket_size=1_000_000))
    assert finding.numbers["layer_elements"] == 12 * 1280**2 + 13 * 1280
    # late a: 8 µs, demand d: 36 µs
    assert finding.cost_ns == 44_000
    assert silent(small_prefetch_bucket, configured(analysis))
    assert silent(small_prefetch_bucket, configured(analysis, stage3_prefetch_bucket_size=0))
    assert silent(small_prefetch_bucket, analysis)


def sized(rank: int, *gathers: tuple[int, float]) -> TraceBuilder:
    """Prefetches of so many elements and µs, each followed at once by compute that had been launched before its end."""
    trace = TraceBuilder(rank=rank, world_size=2).step(0, 0, 1000)
    start = 10.0
    for number, (elements, length) in enumerate(gathers):
        name = f"m{number}.weight"
        trace.gather(PREFETCH, start - 8, start, start + length, params=name, elements=elements)
        trace.compute(start + length, start + length + 5, launched=start)
        start += length + 20
    return trace


def test_gathers_that_are_too_small_for_the_link_are_found(analyse: Analyse) -> None:
    # One of 4 MB in 40 µs; seven of 40 kB that take 20 µs each where 0.4 would do.
    small = [(10_000, 20.0)] * 7
    finding = only(small_gathers, analyse(*(sized(rank, (1_000_000, 40.0), *small) for rank in (0, 1))))
    assert finding.cost_ns == pytest.approx(180_000 - 40_000 * 1.07)
    # Each was waited for from 2 µs after its start on: 38 + 7 × 18 µs are all that can be won.
    assert finding.gain is not None and finding.gain.step_ns == pytest.approx(180_000 - 40_000 * 1.07)
    assert "24 % of the rate of the large ones" in finding.claim
    assert silent(small_gathers, analyse(*(sized(rank, *[(1_000_000, 40.0)] * 8) for rank in (0, 1))))


def test_parameters_in_one_gather_that_nothing_hides_are_found(analyse: Analyse) -> None:
    finding = only(large_prefetch_bucket, analyse(sized(0, (1_000_000, 400.0))))
    assert "in 1 piece of" in finding.claim
    assert finding.cost_ns == 398_000
    assert silent(large_prefetch_bucket, analyse(sized(0, *[(1000, 20.0)] * 4)))


def test_one_gather_that_compute_hides_is_not_too_large(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 1000).gather(PREFETCH, 2, 20, 420, params="a.weight")
    trace.compute(20, 400, launched=10).compute(420, 500, launched=410)
    assert silent(large_prefetch_bucket, analyse(trace))


def test_a_coordinator_that_keeps_the_device_idle_is_found(analyse: Analyse) -> None:
    analysis = analyse(stage_three(0))
    # 23 µs of a step of 1000 are too little to speak of.
    assert silent(coordinator_bound, analysis)
    trace = (
        TraceBuilder().step(0, 0, 1000).compute(0, 20).fetch("a", 25, 425).gather(PREFETCH, 400, 410, 430, params="b")
    )
    trace.compute(500, 900, launched=430)
    slow = analyse(trace)
    finding = only(coordinator_bound, slow)
    # Idle from 20 until the launch of the gather's collective returns at 403, within the fetch from 25 on.
    assert finding.cost_ns == 378_000
    assert finding.gain is None
    dilated = replace(slow, verdict=replace(slow.verdict, dilation_ratio=2.0))
    gain = only(coordinator_bound, dilated).gain
    assert gain is not None and gain.step_ns == 189_000


def refreshing(count: int, elements: int = 8) -> TraceBuilder:
    trace = TraceBuilder().step(0, 0, 5000).compute(10, 30).gather(PREFETCH, 2, 8, 20, params="a.weight")
    for number in range(count):
        at = 100 + 10 * number
        trace.gather(REFRESH, at, at + 5, at + 7, params=f"m{number}.bias", phase=Phase.STEP, elements=elements)
    return trace


def test_hundreds_of_tiny_refreshes_are_found_from_first_to_last(analyse: Analyse) -> None:
    finding = only(tiny_refreshes, analyse(refreshing(200)))
    assert "200 all-gathers refresh the persisted parameters, 32 B each" in finding.claim
    assert finding.cost_ns == 1000 * (10 * 199 + 7)
    assert finding.place is not None and finding.place.end_ns - finding.place.start_ns == finding.cost_ns
    assert silent(tiny_refreshes, analyse(refreshing(20)))
    assert silent(tiny_refreshes, analyse(refreshing(60, elements=1 << 20)))


def test_cold_steps_are_found_and_cost_what_warm_ones_do_not(analyse: Analyse) -> None:
    finding = only(cold_cache, analyse(cold_and_warm(prefetch=True)))
    assert finding.claim.startswith("1 of the profiled steps runs without prefetch")
    # Cold: 18 µs for a and 16 for b; warm: 18 for a alone. One of the two steps is cold.
    assert (finding.numbers["cold_blocking_ns"], finding.numbers["warm_blocking_ns"]) == (34_000, 18_000)
    assert finding.cost_ns == 8_000
    assert silent(cold_cache, analyse(cold_and_warm(prefetch=False)))


def reducing(count: int, *, synchronise: bool = False) -> TraceBuilder:
    """Reductions of 100 µs, each in the way of a kernel that was launched 60 µs before its end."""
    trace = TraceBuilder().step(0, 0, 2000).compute(0, 10)
    for number in range(count):
        at = 20 + 130 * number
        label = Label(event=LabelEvent.REDUCE, num_params=1, elements=4)
        trace.label(label, at - 8, at - 2)
        trace.collective("_reduce_scatter_base", at, at + 100, elements=1 << 20, launched=at - 6)
        trace.compute(at + 100, at + 110, launched=at + (70 if synchronise else 38))
        if synchronise:
            trace.host("cudaStreamSynchronize", at + 10, at + 60, cat="cuda_runtime")
    return trace


def test_compute_that_waits_behind_the_reduction_is_found_with_how(analyse: Analyse) -> None:
    queued = only(serial_reduction, analyse(reducing(5)))
    assert queued.cost_ns == 5 * 60_000
    assert "kernels are launched, and held back by it" in queued.claim
    waiting = only(serial_reduction, analyse(reducing(5, synchronise=True)))
    # 50 µs in the synchronising call, 28 behind the launch.
    assert waiting.cost_ns == 5 * 78_000
    assert "the host synchronises with it" in waiting.claim
    assert silent(serial_reduction, analyse(TraceBuilder().step(0, 0, 100).compute(0, 90)))


def test_without_overlap_the_knob_of_a_reduction_is_to_overlap(analyse: Analyse) -> None:
    finding = only(serial_reduction, configured(analyse(reducing(2)), overlap_comm=False))
    assert finding.knob == "zero_optimization.overlap_comm: true"
    # Few buckets that overlap are another finding.
    assert silent(serial_reduction, configured(analyse(reducing(2)), overlap_comm=True))


def test_small_collectives_are_no_reduction_of_gradients_without_a_label(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 500).compute(10, 20)
    assert analyse(trace.collective("allreduce", 30, 60, elements=8)).reductions == ()
    (step,) = analyse(trace.collective("allreduce", 100, 160, elements=1 << 20)).reductions
    assert (step.num_reductions, step.largest_bytes, step.reduce_ns) == (1, 2 << 20, 60_000)
