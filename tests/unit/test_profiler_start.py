"""A rank whose profiler started later is late for what the others began before: no waiting of the training."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from zerotrace.model import Analysis, Diagnostic, Level


def said(analysis: Analysis) -> list[Diagnostic]:
    return [note for note in analysis.diagnostics if note.code == "profiler_start_skew"]


def two_ranks(late: float, *, num_steps: int = 1, world: int = 2, ahead: float = 0) -> list[TraceBuilder]:
    """The last rank's profiler starts ``late``; in every later step all arrive within 10 µs."""
    traces = []
    for rank in range(world):
        first = late if rank == world - 1 else 0
        shift = ahead if rank == world - 1 else 0
        trace = TraceBuilder(rank, world)
        group = {"Process Group Ranks": str(list(range(world))), "Group size": world}
        for step in range(num_steps):
            begin = 20_000 * step + (first if step == 0 else 0) + shift
            trace.step(step, begin, 20_000 * step + 19_900 + shift)
            trace.all_gather(begin + 100, 20_000 * step + 18_000 + shift, Seq=step, **group)
            trace.compute(20_000 * step + 18_500 + shift, 20_000 * step + 19_000 + shift)
        traces.append(trace)
    return traces


def test_waiting_for_a_profiler_is_said_with_rank_and_length(analyse: Analyse, tmp_path: Path) -> None:
    analysis = analyse(*two_ranks(17_000))
    (note,) = said(analysis)
    assert note.level is Level.WARNING
    assert "rank 1" in note.message and "17000 µs" in note.message and "rank 0 waited" in note.message
    rows = pq.read_table(tmp_path / "run" / "analysis" / "collectives.parquet").to_pylist()
    assert [row["profiler_start_ns"] for row in rows] == [17_000_000, None]
    assert [row["transfer_ns"] for row in rows] == [900_000, 900_000]


def test_the_step_is_left_out_of_the_means_where_there_are_others(analyse: Analyse) -> None:
    analysis = analyse(*two_ranks(17_000, num_steps=3))
    assert analysis.left_out_steps == (0,)
    assert [(rank.rank, rank.num_steps, rank.exposed_wait_ns) for rank in analysis.ranks] == [(0, 2, 0), (1, 2, 0)]
    assert {part.step for part in analysis.partition} == {0, 1, 2}, "its own figures are all there"


def test_the_only_step_stays_in_the_means(analyse: Analyse) -> None:
    analysis = analyse(*two_ranks(17_000))
    assert [(rank.num_steps, rank.exposed_wait_ns) for rank in analysis.ranks] == [(1, 17_000_000), (1, 0)]


def test_a_short_wait_is_said_and_the_step_counts(analyse: Analyse) -> None:
    analysis = analyse(*two_ranks(300, num_steps=2))
    (note,) = said(analysis)
    assert (note.level, analysis.left_out_steps) == (Level.INFO, ())
    assert [rank.num_steps for rank in analysis.ranks] == [2, 2]


def test_a_rank_that_is_late_while_it_is_recorded_is_a_real_wait(analyse: Analyse) -> None:
    first, second = two_ranks(0)
    second.events = [e for e in second.events if e["cat"] != "kernel"]
    second.all_gather(17_000, 18_000, Seq=0).compute(18_500, 19_000)
    assert not said(analyse(first, second))


def test_several_ranks_that_wait_are_counted(analyse: Analyse) -> None:
    (note,) = said(analyse(*two_ranks(17_000, world=4)))
    assert note.count == 3
    assert "rank 3" in note.message and "3 ranks waited" in note.message


@pytest.mark.parametrize("ahead", [400_000, -400_000])
def test_the_hosts_clocks_make_no_late_profiler(analyse: Analyse, ahead: float) -> None:
    traces = two_ranks(0, num_steps=2, ahead=ahead)
    for rank, trace in enumerate(traces):
        trace.with_metadata(host_name="ab"[rank])
    analysis = analyse(*traces)
    assert not said(analysis)
    assert analysis.clock is not None and analysis.clock.hosts[1].offset_ns == 1000 * ahead
