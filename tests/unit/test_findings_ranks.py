"""A rank that is late, and compute beside collectives: each rule fires beyond noise, and is silent within."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from msgspec.structs import replace

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.unit.test_overlap_tax import ALONE, BESIDE, kernels
from tests.unit.test_stragglers import AHEAD, FIRST, PERIOD, gather, job
from zerotrace.analysis.findings import RULES
from zerotrace.analysis.findings.overlap import overlap_tax
from zerotrace.analysis.findings.ranks import straggler
from zerotrace.model import Analysis, Finding, Place, StragglerVerdict, TaxVerdict


def one(found: Iterator[Finding]) -> Finding:
    (finding,) = found
    return finding


def late_by_compute(num_periods: int) -> Sequence[TraceBuilder]:
    """Rank 1 computes 20 µs longer ahead of each gather, and rank 0 has nothing else to do meanwhile."""
    ranks = job(2, num_periods)
    for period in range(num_periods):
        gather(ranks[0], period, 60)
        at = FIRST + period * PERIOD
        ranks[1].compute(at + 55, at + 75, launched=at - AHEAD + 10)
        gather(ranks[1], period, 80)
    return ranks


def with_host(analysis: Analysis) -> Analysis:
    """The same with rank 1 waiting for its host where it computed longer, and its longest delay in the step."""
    found = analysis.stragglers
    assert found is not None
    first, late = found.ranks
    extra = late.own.compute_ns - late.before.compute_ns
    own = replace(
        late.own,
        compute_ns=late.before.compute_ns,
        host_bound_ns=(late.before.host_bound_ns or 0) + extra,
    )
    place = Place(rank=1, step=0, start_ns=1, end_ns=2)
    found = replace(found, ranks=(first, replace(late, own=own)), largest_place=place)
    return replace(analysis, stragglers=found)


def test_a_straggler_is_found_with_who_how_much_and_why(analyse: Analyse) -> None:
    analysis = analyse(*late_by_compute(10))
    finding = one(straggler(analysis))
    assert finding.claim == (
        "Rank 1 is a straggler: the others wait for it at 10 of 10 collectives, mostly for its longer compute."
    )
    assert finding.cost_ns == 200_000
    assert (finding.numbers["rank"], finding.numbers["delay_ns"], finding.numbers["more_compute_ns"]) == (
        1, 200_000, 200_000
    )  # fmt: skip
    assert finding.numbers["chance_ratio"] == pytest.approx(2 * 0.5**10)
    assert "Of the independent delays 10 are its own and none other ranks': 200 µs a step." in finding.evidence
    assert finding.gain is not None
    assert (finding.gain.step_ns, finding.gain.at_most) == (200_000, True)
    assert finding.knob is not None
    assert finding.knob.startswith("the device of that rank")
    assert finding in analysis.findings


def test_a_host_that_is_late_gains_no_more_than_without_the_profiler(analyse: Analyse) -> None:
    analysis = with_host(analyse(*late_by_compute(10)))
    finding = one(straggler(analysis))
    assert "mostly for its host, which launches later" in finding.claim
    assert finding.cost_ns is not None
    assert finding.place is not None
    assert (finding.place.rank, finding.place.step) == (1, 0)
    assert finding.gain is None
    dilated = replace(analysis, verdict=replace(analysis.verdict, dilation_ratio=2.0))
    gain = one(straggler(dilated)).gain
    assert gain is not None
    assert gain.step_ns == finding.cost_ns / 2
    assert "data loading" in (finding.knob or "")


def test_a_gain_is_no_more_than_the_others_wait(analyse: Analyse) -> None:
    analysis = analyse(*late_by_compute(10))
    ranks = tuple(replace(rank, exposed_wait_ns=5_000.0 if rank.rank == 0 else 0.0) for rank in analysis.ranks)
    gain = one(straggler(replace(analysis, ranks=ranks))).gain
    assert gain is not None
    assert gain.step_ns == 5_000


def test_lateness_that_chance_explains_is_no_finding(analyse: Analyse) -> None:
    too_few = analyse(*late_by_compute(4))
    assert too_few.stragglers is not None
    assert too_few.stragglers.verdict is StragglerVerdict.TOO_FEW
    assert [*straggler(too_few)] == []
    ranks = job(2, 20)
    for period in range(20):
        for rank in range(2):
            gather(ranks[rank], period, 60 + 20 * (period % 2 == rank))
    in_turn = analyse(*ranks)
    assert in_turn.stragglers is not None
    assert in_turn.stragglers.verdict is StragglerVerdict.WITHIN_NOISE
    assert [*straggler(in_turn)] == []


def test_compute_beside_collectives_that_is_slower_is_found_with_what_it_wins(analyse: Analyse) -> None:
    finding = one(overlap_tax(analyse(*(kernels([ALONE] * 6, [BESIDE] * 6, rank=rank) for rank in range(2)))))
    assert finding.code == "overlap_tax"
    assert finding.claim == (
        "Overlap has its price: beside collectives compute takes 1.60 × as long as alone. What it hides is more."
    )
    assert (finding.cost_ns, finding.numbers["net_ns"], finding.numbers["hidden_transfer_ns"]) == (
        36_000, 60_000, 96_000
    )  # fmt: skip
    assert finding.gain is not None
    assert (finding.gain.step_ns, finding.gain.at_most) == (36_000, True)
    assert "NCCL_MAX_CTAS" in (finding.knob or "")


def test_overlap_that_costs_more_than_it_hides_is_told_to_go(analyse: Analyse) -> None:
    """Kernels of 10 µs take 90 beside gathers of 50: 480 µs lost, 300 hidden."""
    finding = one(overlap_tax(analyse(*(kernels([ALONE] * 6, [90] * 6, rank=rank) for rank in range(2)))))
    assert finding.code == "overlap_costs_more"
    assert finding.claim.startswith("Overlap costs more than it hides")
    assert finding.cost_ns == 180_000
    assert finding.gain is not None
    assert finding.gain.step_ns == 180_000
    assert (finding.knob or "").startswith("zero_optimization.overlap_comm: false")


def test_a_rank_on_which_it_hides_less_is_named(analyse: Analyse) -> None:
    analysis = analyse(*(kernels([ALONE] * 6, [BESIDE] * 6, rank=rank) for rank in range(2)))
    assert analysis.overlap_tax is not None
    first, second = analysis.overlap_tax.ranks
    mixed = replace(analysis.overlap_tax, ranks=(first, replace(second, net_ns=-5_000.0)))
    assert one(overlap_tax(replace(analysis, overlap_tax=mixed))).claim.endswith("On rank 1 it hides less.")


def test_a_tax_of_few_kernels_or_within_noise_or_of_one_rank_alone_is_no_finding(analyse: Analyse) -> None:
    few = analyse(*(kernels([ALONE] * 4, [BESIDE] * 4, rank=rank) for rank in range(2)))
    noisy = [10, 11, 12, 10, 11, 12]
    same = analyse(*(kernels(noisy, noisy, rank=rank) for rank in range(2)))
    for analysis, verdict in ((few, TaxVerdict.TOO_FEW), (same, TaxVerdict.WITHIN_NOISE)):
        assert analysis.overlap_tax is not None
        assert {tax.verdict for tax in analysis.overlap_tax.ranks} == {verdict}
        assert [*overlap_tax(analysis)] == []
    alone = replace(few, overlap_tax=None)
    assert [*overlap_tax(alone)] == []


def test_without_peers_nobody_knows_what_overlap_wins(analyse: Analyse) -> None:
    analysis = analyse(kernels([ALONE] * 6, [BESIDE] * 6))
    assert analysis.overlap_tax is not None
    assert analysis.overlap_tax.ranks[0].verdict is TaxVerdict.MEASURED
    assert [*overlap_tax(analysis)] == []


def test_where_noise_hides_whether_overlap_wins_nothing_is_said(analyse: Analyse) -> None:
    """Kernels of 10 µs take 58 to 62 beside gathers of 50: 300 µs lost, 300 hidden, give or take the noise."""
    analysis = analyse(*(kernels([ALONE] * 6, [58, 59, 60, 60, 61, 62], rank=rank) for rank in range(2)))
    assert analysis.overlap_tax is not None
    (tax, _) = analysis.overlap_tax.ranks
    assert tax.verdict is TaxVerdict.MEASURED
    assert (tax.lost_ns, tax.hidden_transfer_ns, tax.net_ns) == (300_000, 300_000, 0)
    assert [*overlap_tax(analysis)] == []


def test_no_rule_has_a_word_for_a_run_that_is_all_compute(analyse: Analyse) -> None:
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(0, 0, 10_000)
        for at in range(0, 10_000, 100):
            trace.compute(at, at + 100, launched=max(at - 50, 0))
        traces.append(trace.collective("allreduce", 2_000, 2_100, elements=1 << 20))
    analysis = analyse(*traces)
    assert {rule.__name__: [*rule(analysis)] for rule in RULES} == {rule.__name__: [] for rule in RULES}
    assert analysis.findings == ()
