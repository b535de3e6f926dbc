"""Collectives in figures, worked out by hand: sums and medians by kind, who comes last, and the sample."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.unit.test_profiler_start import two_ranks as late_profiler
from zerotrace.analysis import collective_figures
from zerotrace.labels import Label, LabelEvent, Phase
from zerotrace.model import Analysis, CollectiveFigures, CollectiveKind, Collectives

US = 1_000


def two_ranks(*steps: int) -> tuple[TraceBuilder, TraceBuilder]:
    first, second = (TraceBuilder(rank, 2) for rank in range(2))
    for trace in (first, second):
        for number in steps or (0,):
            trace.step(number, 1000 * number, 1000 * number + 1000).compute(1000 * number + 900, 1000 * number + 910)
    return first, second


def of(analysis: Analysis) -> Collectives:
    assert analysis.collectives is not None
    return analysis.collectives


def only(analysis: Analysis) -> CollectiveFigures:
    (kind,) = of(analysis).kinds
    return kind


def test_sums_are_of_a_step_and_rank_and_medians_of_single_collectives(analyse: Analyse) -> None:
    ranks = two_ranks()
    # 1 MB in 30 µs, 2 MB in 40 µs, 3 MB in 50 µs; rank 1 comes 70, 20 and 0 µs later
    for begin, late, end, elements in ((100, 70, 200, 500_000), (300, 20, 360, 1_000_000), (400, 0, 450, 1_500_000)):
        ranks[0].collective("_allgather_base", begin, end, elements=elements)
        ranks[1].collective("_allgather_base", begin + late, end, elements=elements)
    ranks[0].compute(100, 120)
    kind = only(analyse(*ranks))
    assert (kind.name, kind.kind, kind.group, kind.num_groups) == (
        "_allgather_base", CollectiveKind.ALL_GATHER, "[0, 1] 0", 1,
    )  # fmt: skip
    assert (kind.num_calls, kind.size_bytes, kind.median_size_bytes) == (3, 6e6, 2e6)
    assert (kind.duration_ns, kind.transfer_ns) == ((210 + 120) / 2 * US, 120 * US)
    assert (kind.wait_ns, kind.median_skew_ns, kind.median_transfer_ns) == (45 * US, 20 * US, 40 * US)
    assert (kind.median_algbw_gbps, kind.median_busbw_gbps) == (50.0, 25.0)
    assert (kind.exposed_ns, kind.exposed_ratio) == ((190 + 120) / 2 * US, 1.0)


def test_kinds_are_told_apart_by_phase_and_type_and_the_most_exposed_comes_first(analyse: Analyse) -> None:
    ranks = two_ranks()
    for trace in ranks:
        trace.label(Label(event=LabelEvent.PHASE, phase=Phase.FORWARD), 50, 200)
        trace.label(Label(event=LabelEvent.PHASE, phase=Phase.BACKWARD), 200, 400)
        trace.collective("_allgather_base", 100, 110, elements=64).collective("_allgather_base", 300, 330, elements=64)
        trace.collective("_allgather_base", 310, 316, elements=64, dtype="Float", stream=21)
    found = of(analyse(*ranks))
    assert [(k.phase, k.dtype, k.exposed_ns) for k in found.kinds] == [
        ("backward", "BFloat16", 30 * US), ("forward", "BFloat16", 10 * US), ("backward", "Float", 6 * US),
    ]  # fmt: skip
    assert [k.exposed_ratio for k in found.kinds] == [pytest.approx(part / 46) for part in (30, 10, 6)]


def test_groups_of_one_size_are_summed_and_counted(analyse: Analyse) -> None:
    traces = [TraceBuilder(rank, 4).step(0, 0, 1000).compute(900, 910) for rank in range(4)]
    for rank, trace in enumerate(traces):
        members = (0, 1) if rank < 2 else (2, 3)
        trace.collective("allreduce", 100, 200, elements=100, ranks=members)
    kind = only(analyse(*traces))
    assert (kind.group, kind.num_groups, kind.group_size, kind.num_calls, kind.size_bytes) == (None, 2, 2, 1, 200)


def test_who_comes_last_and_what_the_others_wait(analyse: Analyse) -> None:
    ranks = two_ranks(1, 2)
    for step, (first, second) in ((1, (100, 160)), (1, (300, 310)), (1, (500, 490)), (2, (100, 100)), (2, (300, 280))):
        for trace, start in zip(ranks, (first, second)):
            trace.collective("allreduce", 1000 * step + start, 1000 * step + first + 90, elements=8)
    assert [
        (a.rank, a.step, a.num_collectives, a.num_last, a.caused_wait_ns // US) for a in of(analyse(*ranks)).arrivals
    ] == [(0, 1, 3, 1, 10), (0, 2, 2, 1, 20), (1, 1, 3, 2, 70), (1, 2, 2, 0, 0)]


def test_what_has_no_partner_is_counted_and_has_no_transfer(analyse: Analyse) -> None:
    ranks = two_ranks()
    ranks[1].collective("allreduce", 100, 200, elements=8, Seq=7)
    ranks[0].all_gather(300, 400, Seq=8)
    ranks[1].all_gather(300, 400, Seq=8)
    found = of(analyse(*ranks))
    assert (found.num_matched, found.num_unmatched) == (1, 1)
    lonely = next(kind for kind in found.kinds if kind.kind is CollectiveKind.ALL_REDUCE)
    assert (lonely.num_calls, lonely.num_unmatched, lonely.duration_ns) == (0.5, 1, 50 * US)
    assert (lonely.transfer_ns, lonely.wait_ns, lonely.median_busbw_gbps) == (None, None, None)


def test_one_rank_alone_has_durations_and_no_transfer(analyse: Analyse) -> None:
    found = of(analyse(two_ranks()[0].all_gather(100, 200)))
    assert (found.num_matched, found.num_unmatched, found.arrivals) == (0, 0, ())
    assert (found.kinds[0].duration_ns, found.kinds[0].transfer_ns) == (100 * US, None)
    assert found.sample.num_all == 0


def test_collectives_outside_of_steps_are_in_no_figure(analyse: Analyse) -> None:
    ranks = two_ranks()
    for trace in ranks:
        trace.all_gather(100, 200, Seq=1).all_gather(1500, 1600, Seq=2)
    found = of(analyse(*ranks))
    assert (found.num_matched, only(analyse(*ranks)).num_calls) == (1, 1)


def test_unknown_bytes_leave_times(analyse: Analyse) -> None:
    ranks = [trace.collective("allreduce", 100, 150, elements=8, dtype="UInt4") for trace in two_ranks()]
    kind = only(analyse(*ranks))
    assert (kind.size_bytes, kind.median_size_bytes, kind.transfer_ns) == (None, None, 50 * US)


def test_no_collective_is_no_figure(analyse: Analyse) -> None:
    assert analyse(two_ranks()[0]).collectives is None


def test_the_sample_keeps_the_slowest_and_is_the_same_again(analyse: Analyse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective_figures, "MAX_SAMPLE", 20)
    monkeypatch.setattr(collective_figures, "NUM_SLOWEST", 5)
    ranks = two_ranks()
    for trace in ranks:
        for place in range(60):
            length = 13 if place in (7, 31) else 1 + place / 100
            trace.collective("allreduce", 100 + 13 * place, 100 + 13 * place + length, elements=place + 1, Seq=place)
    first: Any = of(analyse(*ranks)).sample
    assert first.num_all == 60
    assert len(first.step) <= 20
    assert {2 * 8, 2 * 32} <= set(first.size_bytes)
    assert sorted(first.transfer_ns)[-2:] == [13 * US] * 2
    assert first == of(analyse(*ranks)).sample


def test_waiting_for_a_profiler_is_in_no_mean_and_nobodys_fault(analyse: Analyse) -> None:
    found = of(analyse(*late_profiler(17_000, num_steps=3)))
    assert (found.num_steps, found.kinds[0].wait_ns, found.num_matched) == (2, 0, 2)
    short = of(analyse(*late_profiler(300, num_steps=2)))
    assert (short.num_steps, short.kinds[0].wait_ns) == (2, 300 * US / 4), "a short one leaves the step in the means"
    assert [a.caused_wait_ns for a in short.arrivals] == [0] * 4
