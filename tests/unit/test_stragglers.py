"""Who arrives last, why, and whether it is chance: hand-worked timelines.

Unless a test says otherwise there is one gather in each period of 100 µs, which ends with the period on all ranks. All
rows are launched long before, so that the host delays nothing. In each period a rank computes for 50 µs from 5 µs on,
and what makes a rank late comes after that.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.jobs import Job
from zerotrace.analysis.chance import MOST_EXACT, SIGNIFICANCE, chance_of_sum
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Lateness, Stragglers, StragglerVerdict

PERIOD = 100
FIRST = 10_000
AHEAD = 5_000


def job(num_ranks: int, num_periods: int) -> list[TraceBuilder]:
    """Ranks without a gather yet."""
    end = FIRST + num_periods * PERIOD
    ranks = [TraceBuilder(rank, num_ranks).step(0, FIRST, end) for rank in range(num_ranks)]
    for trace in ranks:
        for at in range(FIRST, end, PERIOD):
            trace.compute(at + 5, at + 55, launched=at - AHEAD)
    return ranks


def gather(trace: TraceBuilder, period: int, start: float, *, launched: float | None = None, **args: Any) -> None:
    """The gather of a period, which starts ``start`` µs after the period does."""
    at = FIRST + period * PERIOD
    args = {"Process Group Ranks": str(list(range(trace.metadata["distributedInfo"]["world_size"]))), **args}
    trace.all_gather(at + start, at + PERIOD, launched=at - AHEAD + 20 if launched is None else at + launched, **args)


def judge(analyse: Analyse, ranks: Sequence[TraceBuilder]) -> Stragglers:
    found = analyse(*ranks).stragglers
    assert found is not None
    return found


def of_rank(found: Stragglers, rank: int) -> Lateness:
    return next(lateness for lateness in found.ranks if lateness.rank == rank)


def extra(lateness: Lateness) -> dict[str, float]:
    """What the rank had more of than the one before it, µs."""
    own, before = lateness.own, lateness.before
    names = ("compute", "copy", "comm", "host_bound", "rest")
    parts = {name: (getattr(own, f"{name}_ns") - getattr(before, f"{name}_ns")) / 1000 for name in names}
    return {name: time for name, time in {**parts, "began": lateness.began_ns / 1000}.items() if time}


def test_a_rank_that_computes_longer_is_a_straggler_by_compute(analyse: Analyse) -> None:
    ranks = job(2, 10)
    for period in range(10):
        gather(ranks[0], period, 60)
        at = FIRST + period * PERIOD
        ranks[1].compute(at + 55, at + 75, launched=at - AHEAD + 10)
        gather(ranks[1], period, 80)
    found = judge(analyse, ranks)
    assert (found.verdict, found.rank) == (StragglerVerdict.STRAGGLER, 1)
    assert found.chance_ratio == pytest.approx(2 * 0.5**10)
    late = of_rank(found, 1)
    assert (late.num_collectives, late.num_last, late.num_late, late.num_independent) == (10, 10, 10, 10)
    assert (late.late_ns, late.median_late_ns, late.delay_ns) == (200_000, 20_000, 200_000)
    assert extra(late) == {"compute": 200}
    assert (late.own.total_ns, late.own.compute_ns, late.own.rest_ns) == (800_000, 700_000, 100_000)
    assert found.sentence.startswith(
        "Rank 1 is a straggler: late by 200 µs a step in sum (200 µs more compute), last at 10 of 10 collectives."
    )


def test_a_rank_that_copies_longer_is_a_straggler_by_copy(analyse: Analyse) -> None:
    ranks = job(2, 10)
    for period in range(10):
        gather(ranks[0], period, 60)
        at = FIRST + period * PERIOD
        ranks[1].copy(at + 55, at + 75, launched=at - AHEAD + 10)
        gather(ranks[1], period, 80)
    found = judge(analyse, ranks)
    assert (found.verdict, found.rank) == (StragglerVerdict.STRAGGLER, 1)
    assert extra(of_rank(found, 1)) == {"copy": 200}


def by_host(num_periods: int, *, meet: bool) -> list[TraceBuilder]:
    """Rank 1's host launches each gather 20 µs later; with ``meet``, both hosts wait for each gather's end."""
    ranks = job(2, num_periods)
    for period in range(num_periods):
        at = FIRST + period * PERIOD
        for rank, trace in enumerate(ranks):
            gather(trace, period, 60 + 20 * rank, launched=58 + 20 * rank)  # the call returns when the gather starts
            if meet:
                trace.host("cudaStreamSynchronize", at + 85, at + PERIOD, cat="cuda_runtime", correlation=1)
    return ranks


def test_a_rank_whose_host_is_late_anew_each_time_is_a_straggler_by_its_host(analyse: Analyse) -> None:
    found = judge(analyse, by_host(10, meet=True))
    assert (found.verdict, found.rank, found.num_independent) == (StragglerVerdict.STRAGGLER, 1, 10)
    late = of_rank(found, 1)
    assert extra(late) == {"host_bound": 200}
    assert (late.late_ns, late.delay_ns) == (200_000, 200_000)
    assert "200 µs more waiting for its host" in found.sentence


def test_a_host_that_stays_behind_is_one_delay_however_many_collectives_see_it(analyse: Analyse) -> None:
    found = judge(analyse, by_host(10, meet=False))
    assert (found.verdict, found.rank) == (StragglerVerdict.TOO_FEW, 1)
    assert (found.num_independent, found.num_needed) == (1, 8)
    late = of_rank(found, 1)
    assert (late.num_last, late.num_late, late.late_ns, late.delay_ns) == (10, 10, 200_000, 20_000)
    assert "last at 10 of 10 collectives. That goes back to 1 delay of its own, 20.0 µs a step" in found.sentence
    assert found.largest_ns == 20_000


def test_a_late_device_is_late_anew_though_its_host_was_behind_before(analyse: Analyse) -> None:
    ranks = by_host(2, meet=False)
    for rank, trace in enumerate(ranks):  # a third gather: rank 1 computes 30 µs more, and its host was in time
        at = FIRST + 2 * PERIOD
        trace.step(1, at, at + PERIOD).compute(at + 5, at + 60 + 30 * rank, launched=at - AHEAD)
        gather(trace, 2, 60 + 30 * rank)
    late = of_rank(judge(analyse, ranks), 1)
    assert (late.num_late, late.num_independent, late.delay_ns) == (3, 2, 20_000 + 30_000)


def test_ranks_that_are_late_in_turn_are_no_stragglers(analyse: Analyse) -> None:
    ranks = job(2, 10)
    for period in range(10):
        for rank, trace in enumerate(ranks):
            mine = period % 2 == rank
            at = FIRST + period * PERIOD
            trace.compute(at + 55, at + 60 + 20 * mine, launched=at - AHEAD + 10)
            gather(trace, period, 60 + 20 * mine)
    found = judge(analyse, ranks)
    assert found.verdict is StragglerVerdict.WITHIN_NOISE
    assert found.num_independent == 10
    assert found.chance_ratio is not None
    assert found.chance_ratio > 0.5
    assert found.sentence.startswith("No straggler: within noise.")
    assert [lateness.num_last for lateness in found.ranks] == [5, 5]


def test_one_long_delay_does_not_make_a_straggler_of_a_rank_that_is_else_in_time(analyse: Analyse) -> None:
    ranks = job(2, 10)
    for period in range(10):
        late_rank = int(period == 3)
        for rank, trace in enumerate(ranks):
            gather(trace, period, 60 + (35 if period == 3 else 10) * (rank == late_rank))
    found = judge(analyse, ranks)
    assert found.verdict is StragglerVerdict.WITHIN_NOISE
    assert found.rank == 0
    assert (of_rank(found, 1).late_ns, of_rank(found, 0).late_ns) == (35_000, 90_000)


def test_ranks_that_come_together_have_no_last_one(analyse: Analyse) -> None:
    ranks = job(2, 10)
    for period in range(10):
        for trace in ranks:
            gather(trace, period, 60)
    found = judge(analyse, ranks)
    assert (found.verdict, found.rank, found.num_ties, found.num_independent) == (
        StragglerVerdict.TOGETHER, None, 10, 0,
    )  # fmt: skip
    assert found.sentence == "No straggler: at all 10 collectives the last two ranks arrive within 0 ns of each other."
    assert found.largest_ns is found.spread_ns is found.chance_ratio is None


def test_arrivals_nearer_than_ends_agree_are_ties(analyse: Analyse) -> None:
    ranks = job(2, 10)
    for period in range(10):
        at = FIRST + period * PERIOD
        args = {"Process Group Ranks": "[0, 1]"}
        ranks[0].all_gather(at + 60, at + PERIOD, launched=at - AHEAD + 20, **args)
        ranks[1].all_gather(at + 62, at + PERIOD - 3, launched=at - AHEAD + 20, **args)  # ends differ by 3 µs
    found = judge(analyse, ranks)
    assert (found.tie_ns, found.num_ties, found.verdict) == (3_000, 10, StragglerVerdict.TOGETHER)
    assert of_rank(found, 1).num_last == 10


def test_a_rank_that_left_the_previous_collective_later_is_not_late_by_that(analyse: Analyse) -> None:
    ranks = job(2, 11)
    for period in range(11):
        for trace in ranks:
            gather(trace, period, 60)
    # in one period the gather lasts 30 µs longer on rank 1, and the next one follows on both ranks at once
    at = FIRST + 5 * PERIOD
    for rank, trace in enumerate(ranks):
        trace.events = [e for e in trace.events if e["ts"] not in (at + 60, at + PERIOD + 60)]
        args = {"Process Group Ranks": "[0, 1]"}
        trace.all_gather(at + 60, at + PERIOD + 30 * rank, launched=at - AHEAD, **args)
        trace.all_gather(at + PERIOD + 1 + 30 * rank, at + 2 * PERIOD, launched=at - AHEAD, **args)
    late = of_rank(judge(analyse, ranks), 1)
    assert (late.num_last, late.num_late) == (1, 0)


def test_among_eight_ranks_four_arrivals_are_enough(analyse: Analyse) -> None:
    for num_periods, verdict in ((3, StragglerVerdict.TOO_FEW), (4, StragglerVerdict.STRAGGLER)):
        ranks = job(8, num_periods)
        for period in range(num_periods):
            at = FIRST + period * PERIOD
            for rank, trace in enumerate(ranks):
                if rank == 5:
                    trace.compute(at + 55, at + 85, launched=at - AHEAD + 10)
                gather(trace, period, 90 if rank == 5 else 60 + rank, **{"Group size": 8})
        found = judge(analyse, ranks)
        assert (found.verdict, found.rank, found.num_needed) == (verdict, 5, 4)
        late = of_rank(found, 5)
        # the rank before it is rank 7, which starts at 67; what the others wait for each other is nobody's fault
        assert late.late_ns == 23_000 * num_periods
        assert extra(late) == {"compute": 30 * num_periods, "rest": -7 * num_periods}


def test_one_step_with_two_collectives_is_too_little_to_judge(analyse: Analyse) -> None:
    ranks = job(2, 2)
    for period in range(2):
        for rank, trace in enumerate(ranks):
            gather(trace, period, 60 + 20 * rank)
    found = judge(analyse, ranks)
    assert (found.verdict, found.rank, found.num_independent, found.num_needed) == (StragglerVerdict.TOO_FEW, 1, 2, 8)
    assert found.sentence.startswith("Too few delays to tell a straggler from chance.")
    assert found.sentence.endswith("8 of one rank are needed: profile more steps.")


def test_a_rank_whose_step_begins_later_is_late_by_that(analyse: Analyse) -> None:
    ranks = [TraceBuilder(rank, 2).step(0, FIRST + 30 * rank, FIRST + 500) for rank in range(2)]
    for rank, trace in enumerate(ranks):
        trace.compute(FIRST + 40 * rank + 10, FIRST + 40 * rank + 20, launched=10)
        gather(trace, 0, 30 + 40 * rank)
    late = of_rank(judge(analyse, ranks), 1)
    assert (late.late_ns, late.began_ns, late.own.total_ns, late.before.total_ns) == (40_000, 30_000, 40_000, 30_000)
    assert extra(late) == {"rest": 10, "began": 30}


def test_collectives_of_another_group_are_part_of_the_own_time(analyse: Analyse) -> None:
    ranks = job(2, 1)
    ranks[1].all_gather(FIRST + 55, FIRST + 75, launched=10, **{"Process Group Name": "1", "Group size": 1})
    for rank, trace in enumerate(ranks):
        gather(trace, 0, 60 + 20 * rank)
    assert extra(of_rank(judge(analyse, ranks), 1)) == {"comm": 20}


def test_one_delay_that_two_groups_see_counts_once(analyse: Analyse) -> None:
    ranks = job(2, 1)
    for rank, trace in enumerate(ranks):
        for group in range(2):
            gather(trace, 0, 60 + 20 * rank + group, stream=20 + group, **{"Process Group Name": str(group)})
    late = of_rank(judge(analyse, ranks), 1)
    assert (late.num_late, late.num_independent) == (2, 1)


def test_the_table_holds_each_rank_and_step(analyse: Analyse, tmp_path: Path) -> None:
    ranks = job(2, 4)
    for trace in ranks:
        trace.events = [e for e in trace.events if not e["name"].startswith("ProfilerStep")]
        trace.step(0, FIRST, FIRST + 2 * PERIOD).step(1, FIRST + 2 * PERIOD, FIRST + 4 * PERIOD)
    for period in range(4):
        for rank, trace in enumerate(ranks):
            late = rank == (period == 3)
            gather(trace, period, 60 + 20 * late, launched=1)
    found = judge(analyse, ranks)
    rows = pq.read_table(tmp_path / "run" / "analysis" / "stragglers.parquet").to_pylist()
    assert [(row["rank"], row["step"], row["num_last"], row["late_ns"]) for row in rows] == [
        (0, 0, 2, 40_000), (0, 1, 1, 20_000), (1, 0, 0, 0), (1, 1, 1, 20_000),
    ]  # fmt: skip
    for row in rows:
        parts = ("compute", "copy", "comm", "host_bound", "rest")
        for whose in ("own", "before"):
            assert row[f"{whose}_ns"] == sum(row[f"{whose}_{part}_ns"] for part in parts)
        assert row["late_ns"] == row["own_ns"] - row["before_ns"] + row["began_ns"]
    for lateness in found.ranks:
        mine = [row for row in rows if row["rank"] == lateness.rank]
        assert sum(row["late_ns"] for row in mine) == lateness.late_ns
        assert sum(row["own_host_bound_ns"] for row in mine) == lateness.own.host_bound_ns


def test_in_host_mode_what_is_no_operator_is_the_rest(analyse: Analyse) -> None:
    ranks = [TraceBuilder(rank, 2, backend="gloo").step(0, 0, 100) for rank in range(2)]
    for rank, trace in enumerate(ranks):
        trace.host("aten::mm", 10, 20 + 15 * rank)
        trace.host("gloo:all_gather", 40 + 20 * rank, 80, tid=9, cat="user_annotation")
    late = of_rank(judge(analyse, ranks), 1)
    assert late.own.host_bound_ns is late.before.host_bound_ns is None
    own, before = late.own, late.before
    assert (own.compute_ns, own.rest_ns, before.compute_ns, before.rest_ns) == (25_000, 35_000, 10_000, 30_000)


def test_one_rank_alone_has_nobody_to_be_later_than(analyse: Analyse) -> None:
    (rank,) = job(1, 2)
    gather(rank, 0, 60)
    assert analyse(rank).stragglers is None


def test_the_chance_of_a_sum_is_that_of_all_ways_to_give_arrivals_to_ranks() -> None:
    places, share = np.array([2, 4, 7, 7, 10]), np.array([0.5, 0.5, 0.25, 0.5, 0.125])
    own = np.array([False, True, False, True, True])
    at_least = int(places[own].sum())
    ways = [
        float(np.prod(np.where(taken, share, 1 - share)))
        for taken in product([False, True], repeat=5)
        if places[list(taken)].sum() >= at_least
    ]
    assert chance_of_sum(places, share, own) == pytest.approx(sum(ways))


@pytest.mark.parametrize("num_ranks", [2, 8])
def test_among_equal_ranks_one_in_a_hundred_is_called_a_straggler_at_most(num_ranks: int) -> None:
    random, num_jobs, num_arrivals = np.random.default_rng(11), 500, 24
    share, called = np.full(num_arrivals, 1 / num_ranks), 0
    for _ in range(num_jobs):
        places = 2 * random.permutation(num_arrivals) + 2
        last = random.integers(0, num_ranks, num_arrivals)
        chances = [chance_of_sum(places, share, last == rank) for rank in range(num_ranks)]
        called += num_ranks * min(chances) <= SIGNIFICANCE
    assert called <= num_jobs * SIGNIFICANCE + 3 * (num_jobs * SIGNIFICANCE) ** 0.5


def test_a_job_of_random_arrivals_has_no_straggler(tmp_path: Path) -> None:
    for seed in range(3):
        job_ = Job(num_ranks=4, num_collectives=40, seed=seed, num_steps=2).write(tmp_path / f"job{seed}")
        found = analyze([job_], options=AnalyzeOptions(hta=False, jobs=1))[0].stragglers
        assert found is not None
        assert (found.verdict, found.num_collectives) == (StragglerVerdict.WITHIN_NOISE, 40)


def test_many_arrivals_are_judged_as_exactly_as_matters() -> None:
    random = np.random.default_rng(7)
    places, share = np.arange(2, 2 * MOST_EXACT + 2, 2), np.full(MOST_EXACT, 0.5)
    own = random.random(MOST_EXACT) < 0.56
    exact = chance_of_sum(places, share, own)
    one_more = chance_of_sum(np.append(places, 1), np.append(share, 0.5), np.append(own, True))
    assert SIGNIFICANCE / 100 < exact < 0.5
    assert one_more == pytest.approx(exact, rel=0.05)


def test_hosts_whose_clocks_differ_are_compared_on_one(analyse: Analyse) -> None:
    ranks = job(2, 10)
    for period in range(10):
        for rank, trace in enumerate(ranks):
            at = FIRST + period * PERIOD
            trace.compute(at + 55, at + 60 + 20 * rank, launched=at - AHEAD + 10)
            gather(trace, period, 60 + 20 * rank)
    for rank, trace in enumerate(ranks):
        trace.with_metadata(host_name=f"host{rank}")
    alone = judge(analyse, ranks)
    for event in ranks[0].events:
        event["ts"] += 3_000_000  # three seconds ahead
    assert of_rank(alone, 1).late_ns == 200_000
    assert judge(analyse, ranks).ranks == alone.ranks


def test_waiting_for_a_profiler_is_nobodys_lateness(analyse: Analyse) -> None:
    ranks = job(2, 2)
    for period in range(2):
        for rank, trace in enumerate(ranks):
            gather(trace, period, 60 + 20 * rank)
    assert of_rank(judge(analyse, ranks), 1).num_late == 2
    # what rank 1 did before its first gather was not recorded: its trace begins after rank 0's gather did
    ranks[1].events = [e for e in ranks[1].events if e["ts"] > FIRST + 60 or e["name"].startswith("ProfilerStep")]
    ranks[1].events[0].update(ts=FIRST + 70, dur=130)
    found = judge(analyse, ranks)
    assert (of_rank(found, 1).num_last, of_rank(found, 1).num_late) == (2, 1)
