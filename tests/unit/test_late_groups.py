"""Ranks that are late together: who is named, who never is, and how often chance gives as much."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from math import comb
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.jobs import Job
from tests.meetings import arrive, judge
from tests.unit.test_stragglers import AHEAD, FIRST, PERIOD, gather, job, of_rank
from zerotrace.analysis import chance
from zerotrace.analysis.chance import chance_of_sum
from zerotrace.analysis.check import FIGURES
from zerotrace.analysis.findings.ranks import straggler
from zerotrace.analysis.gaps import by_arrival
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.analysis.splits import split
from zerotrace.analysis.straggler_words import rank_words
from zerotrace.model import Analysis, Stragglers, StragglerVerdict

Noise = Callable[[np.random.Generator, tuple[int, int]], npt.NDArray[np.float64]]

#: Shapes that own times of ranks that are alike may have, microseconds: some of 20 µs, some with long tails.
NOISES: dict[str, Noise] = {
    "uniform": lambda random, shape: random.uniform(0, 40, shape),
    "normal": lambda random, shape: np.abs(200 + random.normal(0, 20, shape)),
    "exponential": lambda random, shape: random.exponential(30, shape),
    "lognormal": lambda random, shape: random.lognormal(3, 1, shape),
    "rare": lambda random, shape: random.uniform(0, 5, shape) + (random.random(shape) < 0.05) * 500,
    "steps": lambda random, shape: np.floor(random.uniform(0, 8, shape)) * 5,
}


def named(found: Stragglers) -> set[int]:
    """All ranks that are called late."""
    if found.verdict is not StragglerVerdict.STRAGGLER:
        return set()
    together = () if found.group is None or found.group.is_early else found.group.ranks
    return {*together, *([] if found.rank is None else [found.rank])}


def slowed(noise: str, shape: tuple[int, int], slow: Sequence[int], by: float, seed: int) -> Stragglers:
    own = NOISES[noise](np.random.default_rng(seed), shape)
    own[:, list(slow)] += by
    return judge(arrive(own))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    ("num_ranks", "slow"), [(3, [1, 2]), (3, [0, 2]), (8, [4, 5, 6, 7]), (8, [1, 6]), (16, [*range(8, 16)])]
)
def test_ranks_that_are_slow_together_are_named_together(noise: str, num_ranks: int, slow: list[int]) -> None:
    found = slowed(noise, (30, num_ranks), slow, 5_000, seed=3)
    assert (found.verdict, found.rank) == (StragglerVerdict.STRAGGLER, None)
    assert found.group is not None
    assert list(found.group.ranks) == slow
    assert (found.group.num_late, found.group.num_collectives, found.group.is_early) == (30, 30, False)
    assert found.chance_ratio == found.group.chance_ratio <= 0.01
    assert found.sentence.startswith(f"R{rank_words(slow)[1:]} are late together: all of them start after all others")


def test_the_lateness_of_a_group_is_what_its_first_starts_after_the_last_of_the_others() -> None:
    own = np.tile([10.0, 30, 110, 150], (12, 1))
    found = judge(arrive(own))
    assert found.group is not None
    assert (found.group.ranks, found.group.others) == ((2, 3), (0, 1))
    assert (found.group.late_ns, found.group.delay_ns, found.group.median_late_ns) == (960_000, 960_000, 80_000)
    assert (found.group.own.compute_ns, found.group.before.compute_ns) == (12 * 110_000, 12 * 30_000)
    # by itself rank 3 is late at each by 40 µs more; but each of two that are late is last as likely as the other
    assert of_rank(found, 3).late_ns == 480_000
    assert found.rank is None


def test_the_chance_of_a_group_is_that_of_its_set_or_of_its_weakest_member() -> None:
    for num_ranks, slow, count in ((4, [2, 3], 8), (8, [4, 5, 6, 7], 6), (3, [1, 2], 9)):
        group = slowed("uniform", (count, num_ranks), slow, 1_000, seed=1).group
        assert group is not None
        size, outside = len(slow), num_ranks - len(slow)
        of_set = comb(num_ranks, size) ** (1 - count) * (num_ranks - 2)
        of_member = (outside + 1) ** (1 - count)
        assert group.chance_ratio == pytest.approx(max(of_set, of_member))


def test_too_few_collectives_make_no_group() -> None:
    assert slowed("uniform", (7, 3), [1, 2], 1_000, seed=1).group is None
    assert slowed("uniform", (8, 3), [1, 2], 1_000, seed=1).group is not None


def test_one_rank_that_waits_for_all_others_is_early_and_nobody_is_accused() -> None:
    for noise in NOISES:
        found = slowed(noise, (40, 8), range(1, 8), 5_000, seed=2)
        assert named(found) == set()
        assert found.group is not None
        assert (found.group.is_early, found.group.others) == (True, (0,))
        assert found.sentence.startswith("Rank 0 arrives earlier than all others, by ")
        assert "at 40 of 40 collectives (ranks 1 to 7: " in found.sentence
        assert "Nobody is a straggler by this" in found.sentence


def test_a_rank_that_is_late_among_those_that_one_is_ahead_of_is_named_still() -> None:
    own = NOISES["uniform"](np.random.default_rng(2), (60, 8))
    own[:, 1:] += 5_000
    own[:, 5] += 200
    found = judge(arrive(own))
    assert named(found) == {5}
    assert found.sentence.startswith("Rank 5 is a straggler: ")
    assert "Rank 0 arrives earlier than all others" in found.sentence


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("num_ranks", "slow"), [(3, [1, 2]), (8, [4, 5, 6, 7]), (8, [2, 3])])
def test_no_rank_that_waits_is_named_however_little_the_others_are_late(
    num_ranks: int, slow: list[int], seed: int
) -> None:
    for number, noise in enumerate(NOISES):
        for by in (20, 60):
            found = slowed(noise, (80, num_ranks), slow, by, seed=100 * seed + number)
            assert named(found) <= set(slow)


def test_a_late_rank_is_judged_as_if_there_were_no_groups() -> None:
    for num_ranks in (2, 3, 8):
        found = slowed("uniform", (20, num_ranks), [1], 500, seed=4)
        assert (found.verdict, found.rank, found.group) == (StragglerVerdict.STRAGGLER, 1, None)
        assert found.chance_ratio == pytest.approx(num_ranks * num_ranks**-20.0)
        assert found.sentence.startswith("Rank 1 is a straggler: late by ")


def test_ranks_that_come_at_one_moment_are_late_together_and_not_who_waits_for_them() -> None:
    """Ranks 1 and 2 start together, so that neither is ever last by itself; rank 0 is, at times."""
    own = np.full((20, 3), 50.0)
    own[:12, 1:] += 200
    own[12:, 0] += 250
    found = judge(arrive(own))
    assert of_rank(found, 0).num_independent == found.num_independent == 8
    assert named(found) == set()
    assert found.chance_ratio is not None
    assert found.chance_ratio > 0.1
    own[12:, 0] -= 100
    assert named(judge(arrive(own))) == {1, 2}


def test_of_a_rank_and_a_group_the_longer_delays_decide() -> None:
    own = NOISES["uniform"](np.random.default_rng(5), (80, 8))
    own[:70, 4:] += 300
    own[70:, 1] += 5_000
    found = judge(arrive(own))
    assert (found.rank, found.group and found.group.ranks) == (1, (4, 5, 6, 7))
    assert found.sentence.startswith("Rank 1 is a straggler: ")
    assert "Ranks 4 to 7 are late together" in found.sentence
    own[70:, 1] -= 4_000
    found = judge(arrive(own))
    assert (found.rank, found.group and found.group.ranks) == (None, (4, 5, 6, 7))


def test_of_two_hundred_jobs_of_equal_ranks_chance_makes_a_group_in_two_at_most() -> None:
    random, called = np.random.default_rng(12), 0
    for number in range(200):
        noise = list(NOISES.values())[number % len(NOISES)]
        shape = int(random.choice((12, 30, 60))), int(random.choice((3, 4, 8, 16)))
        called += judge(arrive(noise(random, shape))).group is not None
    assert called <= 2


def test_a_host_is_named_where_it_is_all_of_its_ranks() -> None:
    own = NOISES["uniform"](np.random.default_rng(6), (20, 8))
    own[:, 4:] += 1_000
    hosts: dict[int, str | None] = {rank: f"host-{rank // 4}" for rank in range(8)}
    group = judge(arrive(own, hosts)).group
    assert group is not None
    assert (group.hosts, group.name) == (("host-1",), "host-1 (ranks 4 to 7)")
    sentence = judge(arrive(own, hosts)).sentence
    assert sentence.startswith("host-1 (ranks 4 to 7) is late as a whole: all of its ranks start after all others")
    for others in ({**hosts, 3: "host-1"}, {**hosts, 7: "host-2"}, {**hosts, 7: None}):
        group = judge(arrive(own, others)).group
        assert group is not None
        assert group.hosts == (("host-1", "host-2") if others[7] == "host-2" else ())


def test_a_slow_node_among_a_thousand_ranks_is_found_in_seconds() -> None:
    own = NOISES["lognormal"](np.random.default_rng(7), (300, 1024))
    own[:, 512:520] += 5_000
    arriving = arrive(own, {rank: f"host-{rank // 8}" for rank in range(1024)})
    begin = time.process_time()
    found = judge(arriving)
    assert time.process_time() - begin < 5
    assert found.group is not None
    assert found.group.name == "host-64 (ranks 512 to 519)"


def test_what_takes_next_to_nothing_of_the_step_is_immaterial() -> None:
    own = 50_000 + NOISES["uniform"](np.random.default_rng(8), (40, 8)) / 100
    own[:, 3] += 10
    found = judge(arrive(own))
    assert (found.verdict, found.rank, found.is_immaterial) == (StragglerVerdict.STRAGGLER, 3, True)
    assert found.late_ratio is not None
    assert 0.0001 < found.late_ratio < 0.001
    assert "That is no chance, but immaterial: 0.020 % of the step." in found.sentence.replace("0.02 %", "0.020 %")
    own[:, 3] += 490
    assert not judge(arrive(own)).is_immaterial
    own[:, 3] -= 490
    own[:, 4] += 10
    together = judge(arrive(own))
    assert (together.group and together.group.ranks, together.is_immaterial) == ((3, 4), True)
    assert "immaterial" in together.sentence


def test_hosts_that_stay_behind_together_are_one_delay(analyse: Analyse) -> None:
    """The launches of ranks 2 and 3 come 20 µs later each time, since their hosts fell behind once."""
    for meet, is_group in ((False, False), (True, True)):
        ranks = job(4, 12)
        for period in range(12):
            at = FIRST + period * PERIOD
            for rank, trace in enumerate(ranks):
                behind = 20 * (rank > 1)
                gather(trace, period, 60 + behind, launched=58 + behind, **{"Group size": 4})
                if meet:
                    trace.host("cudaStreamSynchronize", at + 85, at + PERIOD, cat="cuda_runtime", correlation=1)
        found = analyse(*ranks).stragglers
        assert found is not None
        assert (found.group is not None) is is_group


def test_a_collective_of_one_member_makes_nobody_late(analyse: Analyse) -> None:
    ranks = job(2, 4)
    for period in range(4):
        at = FIRST + period * PERIOD
        alone = {"Process Group Name": "1", "Group size": 1, "Process Group Ranks": "[1]"}
        ranks[1].all_gather(at + 56, at + 58, launched=at - AHEAD, **alone)
        for trace in ranks:
            gather(trace, period, 60)
    found = analyse(*ranks).stragglers
    assert found is not None
    assert (found.verdict, found.num_collectives) == (StragglerVerdict.TOGETHER, 4)
    assert [(one.num_collectives, one.num_last, one.late_ns) for one in found.ranks] == [(4, 0, 0)] * 2


def test_one_delay_that_two_devices_see_counts_once(analyse: Analyse) -> None:
    ranks = [TraceBuilder(rank, 3).step(0, 0, 2000) for rank in range(3)]
    for at in range(100, 1300, 100):
        for rank, trace in enumerate(ranks):
            for device in range(2):
                start = at + 20 * (rank > 0)
                args = {"Group size": 6, "Process Group Ranks": "[0, 1, 2]", "device": device}
                trace.all_gather(start, at + 60, launched=5, **args)
    found = analyse(*ranks).stragglers
    assert found is not None and found.group is not None
    assert (found.group.ranks, found.group.num_late, found.group.num_independent) == ((1, 2), 24, 12)
    assert found.group.chance_ratio == pytest.approx(2 * 0.5**12)


def test_collectives_in_which_a_rank_is_twice_tell_nothing_of_groups() -> None:
    arriving = arrive(np.tile([10.0, 110, 110, 110], (12, 1)))
    meeting, order = arriving.meeting, by_arrival(arriving.meeting)
    assert split(meeting, arriving.own, order, 0).counts.all()
    rows = replace(meeting.rows, rank=np.where(meeting.rows.rank == 3, 2, meeting.rows.rank))
    twice = split(replace(meeting, rows=rows), arriving.own, order, 0)
    assert not twice.counts.any()


@pytest.fixture(scope="module")
def slow_node(tmp_path_factory: pytest.TempPathFactory) -> tuple[Analysis, Path]:
    """Eight ranks on two hosts, whose clocks differ; one host computes 5 ms longer ahead of each collective."""
    folder = tmp_path_factory.mktemp("node")
    made = Job(8, 30, seed=1, num_steps=2, ranks_a_host=4, clock_us=(0.0, 900.0),
               slow_us=tuple((rank, 5_000.0) for rank in range(4, 8)))  # fmt: skip
    analysis, out, _ = analyze([made.write(folder / "job")], options=AnalyzeOptions(hta=False, jobs=1))
    return analysis, out


def test_a_slow_node_is_a_finding_with_what_it_costs(slow_node: tuple[Analysis, Path]) -> None:
    analysis, _ = slow_node
    (finding,) = straggler(analysis)
    assert finding in analysis.findings
    assert finding.code == "stragglers_together"
    assert finding.claim == (
        "node-1 (ranks 4 to 7) is late as a whole: the others wait for them at 30 of 30 collectives, mostly for their "
        "longer compute."
    )
    assert finding.cost_ns == pytest.approx(15 * 5_000_000, rel=0.02)
    assert finding.place is not None
    assert finding.place.rank in range(4, 8)
    assert finding.gain is not None
    assert finding.gain.step_ns is not None
    waits = [rank.exposed_wait_ns for rank in analysis.ranks if rank.rank < 4]
    assert finding.gain.step_ns == min(wait for wait in waits if wait is not None)
    assert finding.knob is not None
    assert finding.knob.startswith("what these ranks share")


def test_a_gate_counts_the_ranks_that_are_late_together(slow_node: tuple[Analysis, Path]) -> None:
    analysis, _ = slow_node
    assert FIGURES["num_stragglers"].value(analysis) == 4
    assert analysis.stragglers is not None
    trifle = replace(analysis, stragglers=replace(analysis.stragglers, is_immaterial=True))
    assert FIGURES["num_stragglers"].value(trifle) == 0
    assert [*straggler(trifle)] == []


def test_the_table_says_of_each_rank_and_step_how_often_its_group_is_late(slow_node: tuple[Analysis, Path]) -> None:
    analysis, out = slow_node
    assert analysis.stragglers is not None and analysis.stragglers.group is not None
    rows = pq.read_table(out / "stragglers.parquet").to_pylist()
    assert [(row["rank"], row["num_together"]) for row in rows if row["step"] == 2] == [
        *((rank, None) for rank in range(4)), *((rank, 15) for rank in range(4, 8))
    ]  # fmt: skip
    for rank in range(4, 8):
        mine = [row["together_ns"] for row in rows if row["rank"] == rank]
        assert sum(mine) == analysis.stragglers.group.late_ns


def test_ranks_are_told_as_runs() -> None:
    assert rank_words([3]) == "rank 3"
    assert rank_words([3, 4]) == "ranks 3 and 4"
    assert rank_words([0, 2, 5, 6, 7, 8]) == "ranks 0, 2 and 5 to 8"
    assert rank_words(range(0, 64, 2)) == "ranks 0, 2, 4, 6, 8, 10 and others"


@pytest.mark.parametrize("share", [1 / 2, 1 / 8, 1 / 64])
def test_beyond_what_is_exact_a_chance_is_right_within_a_tenth(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    random, places = np.random.default_rng(9), 2 * np.arange(1, 261)
    for more in (1.3, 2.0, 4.0):
        own = random.random(places.size) < min(0.9, more * share)
        near = chance_of_sum(places, np.full(places.size, share), own)
        with monkeypatch.context() as patch:
            patch.setattr(chance, "MOST_EXACT", places.size)
            exact = chance_of_sum(places, np.full(places.size, share), own)
        assert near == pytest.approx(exact, rel=0.1)


def test_sure_things_and_impossible_ones_beyond_what_is_exact() -> None:
    places, share = 2 * np.arange(1, 261), np.full(260, 0.5)
    assert chance_of_sum(places, share, np.zeros(260, dtype=bool)) == 1
    assert chance_of_sum(places, share, np.ones(260, dtype=bool)) == pytest.approx(0.5**260)
    share[:130] = 1
    assert chance_of_sum(places, share, share == 1) == 1
    share[:130] = 0
    assert chance_of_sum(places, share, np.arange(260) < 259) == 0
