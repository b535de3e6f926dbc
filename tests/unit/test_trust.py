"""Time of unknown class makes bounds; what weakens figures is counted."""

from __future__ import annotations

import io
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from rich.console import Console

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from zerotrace.analysis.bounds import bound_summary, device_doubts, sure_compute
from zerotrace.analysis.launches import find_launches
from zerotrace.analysis.partition import DeviceSets, clip_steps, device_times
from zerotrace.analysis.verdict import summarise_rank
from zerotrace.cli.summary import print_summary
from zerotrace.ingest.classify import is_unclassified
from zerotrace.ingest.rank import ingest_rank
from zerotrace.model import Analysis, Attribution, Bound, Trust
from zerotrace.report.trust_words import trust_rows, trust_sentence


def trust_of(analysis: Analysis) -> Trust:
    assert analysis.trust is not None
    return analysis.trust


def doubtful() -> TraceBuilder:
    """Compute 100–300, a gather 250–400, and a kernel of unknown class 350–500 in a step of 1,000 µs."""
    trace = TraceBuilder().step(0, 0, 1000).compute(100, 300).all_gather(250, 400)
    return trace.compute(350, 500, name="fused_all_reduce_rmsnorm", stream=9)


def test_a_kernel_that_may_communicate_makes_bounds_of_the_figures(analyse: Analyse) -> None:
    analysis = analyse(doubtful())
    (summary,) = analysis.ranks
    assert (summary.compute_ns, summary.comm_ns, summary.exposed_ns) == (350_000, 150_000, 50_000), "as compute"
    assert summary.bounds is not None
    assert summary.bounds.unclassified_ns == 150_000
    assert summary.bounds.compute_ns == Bound(low=200_000, high=350_000)
    assert summary.bounds.comm_ns == Bound(low=150_000, high=250_000)
    assert summary.bounds.exposed_ns == Bound(low=50_000, high=200_000)
    assert summary.bounds.overlap_ratio == Bound(low=0.2, high=pytest.approx(2 / 3))
    verdict = analysis.verdict
    assert verdict.exposed_ns is not None
    assert (verdict.exposed_ns.min, verdict.exposed_ns.max) == (50_000, 200_000)
    trust = trust_of(analysis)
    assert trust.unclassified_ratio == pytest.approx(150 / 350)
    assert trust.unclassified_names == ("fused_all_reduce_rmsnorm",)
    (note,) = [note for note in analysis.diagnostics if note.code == "unclassified_kernels"]
    assert (note.count, note.event is not None) == (1, True)
    assert "fused_all_reduce_rmsnorm" in note.message


def test_the_terminal_prints_the_bounds_and_not_the_point(analyse: Analyse) -> None:
    out = io.StringIO()
    print_summary(analyse(doubtful()), Console(file=out, width=200))
    row = next(line for line in out.getvalue().splitlines() if line.startswith("    0 "))
    assert "200 µs to 350 µs" in row
    assert "50.0 µs to 200 µs" in row
    assert "20.0 % to 66.7 %" in row


@pytest.mark.parametrize(
    ("name", "odd"),
    [
        ("fused_all_reduce_rmsnorm", True), ("userbuffers_fp16_sum_inplace", True), ("", True), ("  ", True),
        ("my_AllToAll_v2", True), ("void p2p_copy(float*)", True),
        ("sm90_xmma_gemm_bf16", False), ("indexing_backward_kernel", False), ("vectorized_gather_kernel", False),
        ("void at::native::reduce_kernel<512>", False), ("stopp2player", False),
    ],
)  # fmt: skip
def test_only_names_that_speak_of_moving_data_are_in_doubt(name: str, odd: bool) -> None:
    assert is_unclassified("kernel", name) is odd
    assert not is_unclassified("gpu_memcpy", name)


def test_a_collective_with_metadata_or_a_rule_is_never_in_doubt(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 1000).compute(100, 300)
    trace.all_gather(250, 400).device("kernel", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 400, 450, stream=20)
    analysis = analyse(trace)
    assert analysis.ranks[0].bounds is None
    assert trust_of(analysis).unclassified_ratio == 0


Spans = st.lists(st.tuples(st.integers(0, 80), st.integers(1, 30)), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(sure=Spans, comm=Spans, odd=st.lists(Spans, min_size=1, max_size=3))
def test_bounds_hold_whatever_the_names_are(sure: Any, comm: Any, odd: Any) -> None:
    """Against each way to decide, painted microsecond by microsecond."""
    trace = TraceBuilder().step(0, 0, 120)
    for start, length in sure:
        trace.compute(start, start + length)
    for start, length in comm:
        trace.all_gather(start, start + length)
    for number, spans in enumerate(odd):
        for start, length in spans:
            trace.compute(start, start + length, name=f"all_reduce_{number}", stream=30 + number)
    with tempfile.TemporaryDirectory() as folder:
        read = ingest_rank(trace.write(Path(folder)))
    times = device_times(read.events)
    sets = [DeviceSets(time.device, time.comm, time.exposed, None) for time in times]
    certain = {time.device: sure_compute(read.events, time.device) for time in times}
    (doubt,) = device_doubts(read.events, sets, certain, read.windows, find_launches(read.events))

    def painted(spans: Any) -> set[int]:
        return {tick for start, length in spans for tick in range(start, start + length)}

    found = []
    for choice in product((False, True), repeat=len(odd)):
        compute, moving = painted(sure), painted(comm)
        for spans, moves in zip(odd, choice):
            (moving if moves else compute).update(painted(spans))
        found.append((len(compute), len(moving), len(moving - compute)))
    parts = clip_steps(0, times, [None] * len(times), read.windows)
    summary = summarise_rank(parts, 0, doubt=doubt)
    assert summary is not None
    bounds = summary.bounds
    assert bounds is not None
    for number, bound in enumerate((bounds.compute_ns, bounds.comm_ns, bounds.exposed_ns)):
        values = [1000 * one[number] for one in found]
        assert (bound.low, bound.high) == (min(values), max(values))
    ratios = [1 - bare / whole for _, whole, bare in found]
    assert bounds.overlap_ratio == Bound(low=pytest.approx(min(ratios)), high=pytest.approx(max(ratios)))
    # As with too many names to try each.
    outer = bound_summary(summary, replace(doubt, readings=()), [0], clipped=True)
    assert outer.overlap_ratio is not None
    assert outer.overlap_ratio.low <= min(ratios) + 1e-9
    assert outer.overlap_ratio.high >= max(ratios) - 1e-9
    assert outer.exposed_ns.high >= bounds.exposed_ns.high
    assert outer.compute_ns.low <= bounds.compute_ns.low


def test_launches_and_kernels_that_lack_each_other_are_counted(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 1000).compute(100, 300)
    trace.host("cudaLaunchKernel", 500, 510, cat="cuda_runtime", correlation=900)
    trace.host("cudaLaunchKernel", 520, 530, cat="cuda_runtime", correlation=901)
    trace.host("cudaLaunchHostFunc", 540, 550, cat="cuda_runtime", correlation=902)
    trace.host("cudaLaunchKernel", 1500, 1510, cat="cuda_runtime", correlation=903)
    trace.event(ph="X", cat="kernel", name="orphan", pid=0, tid=7, ts=950, dur=100, args={"stream": 7, "device": 0})
    trust = trust_of(analyse(trace))
    assert (trust.num_launches, trust.num_launches_without_kernel, trust.num_kernels_without_launch) == (3, 2, 1)
    assert trust.num_clipped == 1, "the orphan runs over the end of the step"


def test_the_rest_is_counted_or_unknown(analyse: Analyse) -> None:
    ranks = [TraceBuilder(rank, 4).step(0, 0, 1000).compute(100, 300) for rank in range(2)]
    for rank, trace in enumerate(ranks):
        trace.all_gather(400, 500, Seq=1)
        if rank:
            trace.all_gather(600, 700, Seq=2)
        trace.event(ph="X", cat="kernel", name="bad", pid=0, tid=7, ts=5, dur=-1, args={"stream": 7, "device": 0})
    trust = trust_of(analyse(*ranks))
    assert (trust.num_dropped, trust.num_missing_ranks, trust.num_unmatched) == (2, 2, 1)
    assert (trust.clock_residual_median_ns, trust.dilation_ratio) == (0, None)


def test_host_time_has_no_launches(analyse: Analyse) -> None:
    trace = TraceBuilder(0, 1, backend="gloo").step(0, 0, 100)
    trust = trust_of(analyse(trace.host("gloo:all_reduce", 1, 2, tid=9, cat="user_annotation")))
    assert (trust.num_launches, trust.num_missing_ranks) == (None, 0)


def test_the_words_name_what_was_found_and_the_table_what_was_looked_at(analyse: Analyse) -> None:
    trust = trust_of(analyse(doubtful()))
    assert trust_sentence(trust) == "Trust: unclassified kernel time 42.9 % of compute."
    rows = {row.key: row for row in trust_rows(trust)}
    assert len(rows) == 9
    assert rows["num_unmatched"].text == "–", "one rank cannot tell"
    assert [key for key, row in rows.items() if row.weakens] == ["unclassified_ratio"]


ODD = "fused_all_reduce_rmsnorm"


def launched_apart(case: int, *, odd: bool) -> TraceBuilder:
    """A kernel that is launched in one step and runs in another, or in none; of unknown class, or a collective."""
    trace = TraceBuilder().step(0, 0, 1000)

    def kernel(start: float, end: float, launched: float) -> None:
        if odd:
            trace.compute(start, end, name=ODD, launched=launched, stream=9)
        else:
            trace.all_gather(start, end, launched=launched, stream=9)

    if case == 0:
        trace.compute(100, 300).all_gather(250, 400)
        kernel(1100, 1300, 900)
    elif case == 1:
        trace.step(1, 1000, 2000).compute(100, 300).all_gather(1200, 1400).compute(1750, 1800)
        kernel(1100, 1700, 900)
    else:
        trace.compute(920, 930)
        kernel(100, 900, -10)
    return trace


@pytest.mark.parametrize("case", range(3))
def test_by_launch_the_bounds_hold_what_the_figures_are_if_the_kernel_communicates(analyse: Analyse, case: int) -> None:
    bounds = analyse(launched_apart(case, odd=True), attribution=Attribution.LAUNCH).ranks[0].bounds
    assert bounds is not None
    assert trust_of(analyse(launched_apart(case, odd=True))).unclassified_ratio <= 1
    truth = analyse(launched_apart(case, odd=False), attribution=Attribution.LAUNCH).ranks[0]
    for bound, value in (
        (bounds.compute_ns, truth.compute_ns),
        (bounds.comm_ns, truth.comm_ns),
        (bounds.exposed_ns, truth.exposed_ns),
    ):
        assert bound.low <= value <= bound.high
    if bounds.overlap_ratio is not None:
        assert truth.overlap_ratio is not None
        assert bounds.overlap_ratio.low <= truth.overlap_ratio <= bounds.overlap_ratio.high


def test_the_headline_claims_nothing_of_communication_that_is_in_doubt(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 1000).compute(100, 300).compute(350, 900, name=ODD)
    headline = analyse(trace).verdict.headline
    assert "no communication" not in headline
    assert "between 0 ns and 550 µs a step are exposed" in headline


def test_a_kernel_in_doubt_outside_of_all_steps_weakens_nothing(analyse: Analyse) -> None:
    analysis = analyse(TraceBuilder().step(0, 0, 1000).compute(100, 300).compute(2000, 2500, name=ODD, launched=1900))
    assert "unclassified_kernels" not in {note.code for note in analysis.diagnostics}
    assert analysis.ranks[0].bounds is None


def test_launches_without_a_correlation_are_counted_one_by_one(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 1000).compute(100, 300)
    for start in (500, 520):
        trace.host("cudaLaunchKernel", start, start + 5, cat="cuda_runtime")
    trust = trust_of(analyse(trace))
    assert (trust.num_launches, trust.num_launches_without_kernel) == (3, 2)
