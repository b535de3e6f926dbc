"""Clocks of several hosts: the offset that collectives show, what it leaves, and when no offset explains the ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.builders import BASE_TIME_NS, TraceBuilder
from tests.conftest import Analyse
from tests.jobs import Job
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Analysis, Diagnostic, Level
from zerotrace.report.payload import encode_timeline
from zerotrace.store import read_events

TRACES = Path(__file__).resolve().parents[2] / "traces"
TWO_HOSTS = Job(4, 30, seed=5, ranks_a_host=2, clock_us=(0, 350))


def analysed(folder: Path, **options: Any) -> tuple[Analysis, list[dict[str, Any]]]:
    analysis, out, _ = analyze([folder], folder / "out", AnalyzeOptions(hta=False, jobs=1, **options))
    return analysis, pq.read_table(out / "collectives.parquet").to_pylist()


def warned(analysis: Analysis, code: str) -> list[Diagnostic]:
    return [note for note in analysis.diagnostics if note.code == code]


def assert_waits_are_true(rows: list[dict[str, Any]], job: Job) -> None:
    assert rows
    for row in rows:
        one = job.collectives[row["collective"]]
        assert abs(row["wait_ns"] - 1000 * (max(one.starts) - one.starts[row["rank"]])) <= 1000  # ends jitter
        assert row["last_rank"] == one.starts.index(max(one.starts))


@pytest.mark.parametrize("seq", [True, False])
@pytest.mark.parametrize("ahead", [350.0, -350.0, 250_000_000.0, -12.5])
def test_the_offset_of_a_host_is_taken_off_where_ranks_are_compared(ahead: float, seq: bool, tmp_path: Path) -> None:
    job = Job(4, 30, seed=5, seq=seq, ranks_a_host=2, clock_us=(0, ahead))
    analysis, rows = analysed(job.write(tmp_path))
    assert_waits_are_true(rows, job)
    assert analysis.clock is not None
    first, second = analysis.clock.hosts
    assert (first.host, first.ranks, first.offset_ns) == ("node-0", (0, 1), 0)
    assert (second.host, second.ranks) == ("node-1", (2, 3))
    assert second.offset_ns == pytest.approx(1000 * ahead, abs=300)
    assert second.residual_median_ns is not None and second.residual_median_ns < 600
    assert second.residual_worst_ns is not None and second.residual_worst_ns < 1200
    (note,) = warned(analysis, "clock_offset")
    assert note.level is Level.WARNING
    assert "node-1" in note.message
    assert ("ahead of" if ahead > 0 else "behind") in note.message


def test_tables_keep_each_ranks_own_clock_and_say_how_far_it_is_ahead(tmp_path: Path) -> None:
    _, rows = analysed(TWO_HOSTS.write(tmp_path))
    for row in rows:
        own = BASE_TIME_NS + round(1000 * (TWO_HOSTS.collectives[row["collective"]].starts[row["rank"]]))
        assert row["start_ns"] - own == (350_000 if row["rank"] >= 2 else 0)
        assert row["clock_offset_ns"] == pytest.approx(350_000 if row["rank"] >= 2 else 0, abs=300)
        assert row["wait_ns"] == row["arrival_ns"] - (row["start_ns"] - row["clock_offset_ns"])


def test_exposed_waiting_does_not_see_the_offset(tmp_path: Path) -> None:
    apart, _ = analysed(TWO_HOSTS.write(tmp_path / "apart"))
    together, _ = analysed(Job(4, 30, seed=5, ranks_a_host=2).write(tmp_path / "together"))
    for mine, theirs in zip(apart.partition, together.partition):
        assert mine.exposed_wait_ns is not None and theirs.exposed_wait_ns is not None
        assert abs(mine.exposed_wait_ns - theirs.exposed_wait_ns) <= 30 * 1000
        assert mine.exposed_ns == theirs.exposed_ns


def test_an_offset_within_what_it_leaves_is_no_warning(tmp_path: Path) -> None:
    analysis, _ = analysed(Job(4, 30, seed=5, ranks_a_host=2, clock_us=(0, 0)).write(tmp_path))
    (note,) = warned(analysis, "clock_offset")
    assert note.level is Level.INFO


def test_hosts_that_meet_only_through_a_third_are_aligned_through_it(analyse: Analyse) -> None:
    """Groups of 0 and 1, and of 1 and 2: host c is measured against b, and b against a."""
    traces = []
    for rank, (host, ahead) in enumerate((("a", 0), ("b", 400), ("c", -900))):
        trace = TraceBuilder(rank, 3).with_metadata(host_name=host).step(0, 0 + ahead, 2000 + ahead)
        trace.compute(1900 + ahead, 1910 + ahead)
        for number, members in enumerate(([0, 1], [1, 2], [0, 1], [1, 2])):
            if rank in members:
                start = 200 + 300 * number + 10 * rank + ahead
                trace.all_gather(start, 350 + 300 * number + ahead, Seq=number, **{"Process Group Ranks": str(members)})
        traces.append(trace)
    clock = analyse(*traces).clock
    assert clock is not None
    assert [(host.host, host.offset_ns) for host in clock.hosts] == [("a", 0), ("b", 400_000), ("c", -900_000)]
    assert (clock.residual_median_ns, clock.residual_worst_ns) == (0, 0)


def test_a_host_without_a_common_collective_is_said_to_be_of_unknown_clock(analyse: Analyse, tmp_path: Path) -> None:
    traces = []
    for rank in range(4):
        host = "ab"[rank // 2]
        trace = TraceBuilder(rank, 4).with_metadata(host_name=host).step(0, 0, 1000).compute(900, 910)
        members = "[0, 1]" if rank < 2 else "[2, 3]"
        traces.append(trace.all_gather(100 + rank, 200, Seq=1, **{"Process Group Ranks": members}))
    analysis = analyse(*traces)
    (note,) = warned(analysis, "clock_unknown")
    assert "b (ranks 2, 3)" in note.message
    assert analysis.clock is not None
    assert analysis.clock.hosts[1].offset_ns is None
    rows = pq.read_table(tmp_path / "run" / "analysis" / "collectives.parquet").to_pylist()
    assert [row["clock_offset_ns"] for row in rows] == [0, 0, None, None]
    assert [row["wait_ns"] for row in rows] == [1_000, 0, 1_000, 0], "within one host nothing is needed"


@pytest.mark.parametrize("host", ["node-a", None])
def test_another_clock_on_what_should_be_one_host_is_a_warning(tmp_path: Path, host: str | None) -> None:
    job = Job(4, 30, seed=5, ranks_a_host=2, clock_us=(0, 350), named=False)
    for path in job.write(tmp_path).glob("rank_*.json"):
        path.write_text(json.dumps(json.loads(path.read_text()) | {"host_name": host}))
    analysis, rows = analysed(tmp_path)
    (note,) = warned(analysis, "clocks_disagree")
    assert note.level is Level.WARNING
    assert "ranks 2, 3" in note.message and "350.1 µs later" in note.message
    assert {row["clock_offset_ns"] for row in rows} == {0}, "clocks are aligned only between different host names"


def test_a_rank_that_its_host_does_not_explain_is_a_warning_after_alignment(analyse: Analyse) -> None:
    traces = []
    for rank, (host, ahead) in enumerate((("a", 0), ("b", 500), ("b", 500), ("b", 1500))):
        trace = TraceBuilder(rank, 4).with_metadata(host_name=host).step(0, ahead, 9000 + ahead)
        trace.compute(8000 + ahead, 8010 + ahead)
        for number in range(6):
            group = {"Process Group Ranks": "[0, 1, 2, 3]", "Group size": 4}
            start = 200 + 700 * number + ahead
            trace.all_gather(start + 10 * rank, start + 100 + number, Seq=number, **group)
        traces.append(trace)
    analysis = analyse(*traces)
    (note,) = warned(analysis, "clocks_disagree")
    assert "rank 3" in note.message and "1000 µs" in note.message and "after alignment" in note.message
    assert not warned(analysis, "members_apart")


@pytest.mark.parametrize(("count", "said"), [(1, False), (3, False), (4, True)])
def test_a_few_ends_tell_no_other_clock(analyse: Analyse, count: int, said: bool) -> None:
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(0, 0, 9000).compute(8000, 8010)
        for number in range(count):
            start = 200 + 700 * number + 600 * rank
            group = {"Process Group Ranks": "[0, 1]", "Group size": 2}
            trace.all_gather(start, start + 50, Seq=number, **group)
        traces.append(trace)
    assert bool(warned(analyse(*traces), "clocks_disagree")) is said


def test_members_that_never_run_together_are_a_warning(analyse: Analyse) -> None:
    """Equal Seq numbers of different collectives, say after a communicator was made anew."""
    traces = [TraceBuilder(rank, 2).step(0, 0, 9000).compute(8000, 8010) for rank in range(2)]
    for trace in traces:
        for number in range(8):
            start = 100 + 400 * number + (3000 if trace.rank and number == 5 else 0)
            trace.all_gather(start, start + 100, Seq=number)
    (note,) = warned(analyse(*traces), "members_apart")
    assert "1 of 8 matched collectives" in note.message


def test_rooted_collectives_say_nothing_of_clocks_where_others_do(analyse: Analyse) -> None:
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2).with_metadata(host_name="ab"[rank]).step(0, 0, 9000).compute(8000, 8010)
        for number in range(9):
            name = "_allgather_base" if number % 3 == 0 else "broadcast"
            early = 300 * (rank == 0 and name == "broadcast")  # the root is done before the other has come
            trace.all_gather(100 + 700 * number, 500 + 700 * number - early, Seq=number, **{"Collective name": name})
        traces.append(trace)
    clock = analyse(*traces).clock
    assert clock is not None
    assert (clock.hosts[1].offset_ns, clock.num_ends) == (0, 3)


def test_two_hosts_without_seq_and_with_a_lost_record_find_their_offset(tmp_path: Path) -> None:
    job = Job(2, 40, seed=8, seq=False, ranks_a_host=1, clock_us=(0, 7_000_000))
    analysis, rows = analysed(job.write(tmp_path, lambda rank, number: (rank, number) == (1, 17)))
    assert analysis.clock is not None
    assert analysis.clock.hosts[1].offset_ns == pytest.approx(7_000_000_000, abs=500)
    alone = [row for row in rows if row["collective"] is None]
    assert [(row["rank"], row["start_ns"] - BASE_TIME_NS) for row in alone] == [
        (0, round(1000 * job.collectives[17].starts[0]))
    ]
    assert len({row["collective"] for row in rows}) == 40


def test_offsets_of_many_hosts_are_one_line(tmp_path: Path) -> None:
    analysis, _ = analysed(
        Job(8, 12, seed=5, ranks_a_host=1, clock_us=tuple(300.0 * n for n in range(8))).write(tmp_path)
    )
    notes = warned(analysis, "clock_offset")
    assert len(notes) == 5
    assert "the clocks of 3 more hosts lie" in notes[-1].message
    assert analysis.clock is not None and len(analysis.clock.hosts) == 8


def test_a_manifest_tells_hosts_that_traces_do_not_name(tmp_path: Path) -> None:
    job = Job(2, 30, seed=5, ranks_a_host=1, clock_us=(0, 350), named=False)
    job.write(tmp_path)
    manifest = json.loads((TRACES / "stage3" / "manifest.json").read_text())
    for rank, record in enumerate(manifest["ranks"]):
        record["host"] = rank
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    analysis, rows = analysed(tmp_path)
    assert_waits_are_true(rows, job)
    assert "host 1" in warned(analysis, "clock_offset")[0].message


@pytest.mark.parametrize("clock_us", [(0.0, 0.0), (0.0, 350.0)])
def test_the_timeline_of_the_page_is_on_one_clock(tmp_path: Path, clock_us: tuple[float, float]) -> None:
    job = Job(4, 30, seed=5, ranks_a_host=2, clock_us=clock_us)
    analysis, _ = analysed(job.write(tmp_path))
    payload = encode_timeline(analysis, read_events(tmp_path / "out"))
    starts = {window.rank: window.start_ns for window in payload.windows}
    assert max(starts.values()) - min(starts.values()) < 500
    for group in payload.groups:
        assert group.base_ns - payload.groups[0].base_ns == pytest.approx(1000 * clock_us[group.rank // 2], abs=500)
    assert payload.note is not None and "aligned" in payload.note


@pytest.mark.parametrize(("late_us", "said"), [(374, False), (3000, True)])
def test_threads_that_are_woken_late_are_no_other_clock(analyse: Analyse, late_us: int, said: bool) -> None:
    """gloo on one host: ends are when a thread was woken, by a scheduler that may favour one rank."""
    ranks = [TraceBuilder(rank, 2, backend="gloo").step(0, 0, 100_000).host("aten::mm", 10, 20) for rank in range(2)]
    for rank, trace in enumerate(ranks):
        for start in range(1000, 60_000, 8000):
            trace.host("gloo:all_reduce", start, start + 5000 + late_us * rank, tid=9, cat="user_annotation")
    assert ("clocks_disagree" in {note.code for note in analyse(*ranks).diagnostics}) is said
