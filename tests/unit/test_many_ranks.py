"""Many ranks: matching a million rows takes seconds, and a job of hundreds of ranks is analysed in one go."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.jobs import Job
from zerotrace.analysis.arrivals import arrivals
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.matching import Reason, match
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.ingest.columns import Texts
from zerotrace.model import StragglerVerdict

NUM_RANKS = 64


def many_rows(count: int, *, seq: bool) -> CollectiveRows:
    """So many collectives of all ranks one after the other, at random times, of three kinds."""
    rng = np.random.default_rng(4)
    starts = np.arange(count)[:, None] * 200_000 + rng.integers(0, 50_000, (count, NUM_RANKS))
    ends = starts.max(axis=1) + rng.integers(20_000, 120_000, count)
    kind = rng.integers(0, 3, count).astype(np.int32)
    elements = rng.choice((640, 2560), count)

    def of_each(column: np.ndarray) -> np.ndarray:
        return np.tile(column, NUM_RANKS)

    nothing = np.full(starts.size, ABSENT)
    return CollectiveRows(
        rank=np.repeat(np.arange(NUM_RANKS), count),
        device=np.zeros(starts.size, dtype=np.int64),
        event=np.arange(starts.size),
        step=of_each(np.arange(count) // 1000),
        start=starts.T.ravel(),
        end=of_each(ends) + rng.integers(-500, 500, starts.size),
        name=Texts(of_each(kind), ["_allgather_base", "allreduce", "_reduce_scatter_base"]),
        group=Texts(np.zeros(starts.size, dtype=np.int32), [str(list(range(NUM_RANKS)))]),
        dtype=Texts(np.zeros(starts.size, dtype=np.int32), ["BFloat16"]),
        phase=Texts(np.full(starts.size, -1, dtype=np.int32), []),
        purpose=Texts(np.full(starts.size, -1, dtype=np.int32), []),
        size=np.full(starts.size, NUM_RANKS),
        seq=of_each(np.arange(count)) if seq else nothing,
        in_elements=of_each(elements),
        out_elements=of_each(elements),
        src=nothing,
        dst=nothing,
    )


def processor_seconds(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def assert_all_match(count: int, *, seq: bool, num_lost: int, several_clocks: bool = False) -> float:
    """Matches so many collectives of 64 ranks, some records lost, and gives the processor seconds that it took."""
    rows = many_rows(count, seq=seq)
    kept = np.ones(len(rows), dtype=bool)
    kept[np.random.default_rng(1).choice(len(rows), num_lost, replace=False)] = False
    truth = np.tile(np.arange(count), NUM_RANKS)[kept]
    host = rows.rank // 16
    if several_clocks:
        ahead = 7_000_000 * host
        rows = replace(rows, start=rows.start + ahead, end=rows.end + ahead)
    hosts = {rank: f"node-{rank // 16}" if several_clocks else None for rank in range(NUM_RANKS)}
    rows = rows.take(kept)
    begin = time.process_time()
    matches = match(rows, hosts)
    found = arrivals(rows, matches)
    taken = time.process_time() - begin
    assert np.array_equal(matches.collective, truth)
    assert int((found.num_members < NUM_RANKS).sum()) == len(np.unique(np.flatnonzero(~kept) % count))
    assert (matches.reason == Reason.MATCHED).all()
    expected = [7_000_000 * number for number in range(4)] if several_clocks else [0]
    assert matches.clocks.offset.tolist() == pytest.approx(expected, abs=50)
    return taken


@pytest.mark.parametrize("seq", [True, False])
@pytest.mark.parametrize("num_lost", [0, 40])
@pytest.mark.parametrize("several_clocks", [False, True])
def test_collectives_of_64_ranks_match(seq: bool, num_lost: int, several_clocks: bool) -> None:
    assert_all_match(500, seq=seq, num_lost=num_lost, several_clocks=several_clocks)


def test_matching_takes_time_in_proportion_to_the_rows() -> None:
    """A million rows in seconds is for the tests marked ``bench``."""
    assert assert_all_match(2_000, seq=False, num_lost=40, several_clocks=True) < 4


def assert_job_is_right(job: Job, tmp_path: Path) -> None:
    analysis, _, _ = analyze([tmp_path / "job"], tmp_path / "out", AnalyzeOptions(hta=False, jobs=2))
    assert len(analysis.sources) == job.num_ranks
    assert len(analysis.partition) == job.num_ranks * job.num_steps
    assert analysis.collectives is not None
    assert (analysis.collectives.num_matched, analysis.collectives.num_unmatched) == (job.num_collectives, 0)
    assert analysis.clock is not None
    assert [clock.offset_ns for clock in analysis.clock.hosts] == pytest.approx(
        [1000 * ahead for ahead in job.clock_us], abs=50
    )
    lateness = {one.rank: one for one in analysis.stragglers.ranks} if analysis.stragglers else {}
    assert len(lateness) == job.num_ranks
    assert analysis.stragglers is not None and analysis.stragglers.verdict is not StragglerVerdict.STRAGGLER


def test_a_job_of_64_ranks_is_analysed(tmp_path: Path) -> None:
    job = Job(64, 60, seed=2, num_steps=2, ranks_a_host=8, clock_us=tuple(100.0 * host for host in range(8)))
    job.write(tmp_path / "job")
    begin = processor_seconds(resource.getrusage(resource.RUSAGE_CHILDREN)) + time.process_time()
    assert_job_is_right(job, tmp_path)
    taken = processor_seconds(resource.getrusage(resource.RUSAGE_CHILDREN)) + time.process_time() - begin
    assert taken < 30


@pytest.mark.parametrize(("num_ranks", "asked", "left_out"), [(16, None, False), (17, None, True), (17, False, False)])
def test_hta_which_holds_all_ranks_at_once_is_run_of_few_unless_asked(
    num_ranks: int, asked: bool | None, left_out: bool, tmp_path: Path
) -> None:
    folder = Job(num_ranks, 4, seed=1).write(tmp_path / "job")
    analysis, _, _ = analyze([folder], options=AnalyzeOptions(hta=asked, jobs=1))
    assert (analysis.hta is not None) is (asked is None and not left_out)
    assert ("hta_left_out" in {note.code for note in analysis.diagnostics}) is left_out
