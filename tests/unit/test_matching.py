"""Eight ranks, with and without metadata: what is lost, missing or mixed up is named, and no pair is forced."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.jobs import Job
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Analysis, Diagnostic

NUM_COLLECTIVES = 24
WITH_SEQ = Job(8, NUM_COLLECTIVES, seed=3, num_steps=2)
BY_ORDER = Job(8, NUM_COLLECTIVES, seed=3, num_steps=2, seq=False)
NAMES_ALONE = Job(8, NUM_COLLECTIVES, seed=3, num_steps=2, metadata=False)
JOBS = pytest.mark.parametrize("job", [WITH_SEQ, BY_ORDER, NAMES_ALONE], ids=["Seq", "order", "names alone"])

Rows = list[dict[str, Any]]


def analysed(folder: Path) -> tuple[Analysis, Rows]:
    analysis, out, _ = analyze([folder], folder / "out", AnalyzeOptions(hta=False, jobs=1, force=True))
    return analysis, pq.read_table(out / "collectives.parquet").to_pylist()


def warned(analysis: Analysis, code: str) -> list[Diagnostic]:
    return [note for note in analysis.diagnostics if note.code == code]


def number_of(row: dict[str, Any], job: Job) -> int:
    """Which collective of the schedule a row truly is: the one that ends when it does."""
    ends = [BASE + round(one.end * 1000) for one in job.collectives]
    return min(range(len(ends)), key=lambda i: abs(ends[i] - row["end_ns"]))


BASE = 1_790_000_000_000_000_000


def assert_pairs_are_true(rows: Rows, job: Job) -> None:
    truth: dict[int, set[int]] = {}
    for row in rows:
        if row["collective"] is not None:
            truth.setdefault(row["collective"], set()).add(number_of(row, job))
    assert all(len(numbers) == 1 for numbers in truth.values())
    assert len({min(numbers) for numbers in truth.values()}) == len(truth)


@JOBS
def test_every_collective_is_matched_on_all_ranks(job: Job, tmp_path: Path) -> None:
    analysis, rows = analysed(job.write(tmp_path))
    assert_pairs_are_true(rows, job)
    assert {row["num_members"] for row in rows} == {8}
    assert len({row["collective"] for row in rows}) == NUM_COLLECTIVES
    for row in rows:
        one = job.collectives[row["collective"]]
        assert row["wait_ns"] == pytest.approx(1000 * (max(one.starts) - one.starts[row["rank"]]), abs=1)
        assert row["last_rank"] == one.starts.index(max(one.starts))
        assert row["matched_by"] == ("Seq" if job is WITH_SEQ else "order")
    assert not warned(analysis, "unmatched_collective")


@JOBS
@pytest.mark.parametrize("lost", [0, 5, NUM_COLLECTIVES - 1])
def test_a_record_that_one_rank_lost_is_named_and_the_others_still_match(job: Job, lost: int, tmp_path: Path) -> None:
    analysis, rows = analysed(job.write(tmp_path, lambda rank, number: (rank, number) == (4, lost)))
    assert_pairs_are_true(rows, job)
    assert {number_of(row, job): row["num_members"] for row in rows} == {
        number: 7 if number == lost else 8 for number in range(NUM_COLLECTIVES)
    }
    (note,) = warned(analysis, "unmatched_collective")
    assert (note.count, "rank 4: no record of 1 collective" in note.message) == (1, True)
    if job is WITH_SEQ:
        assert f"Seq {lost}" in note.message


@JOBS
def test_different_records_lost_on_two_ranks_shift_no_pair(job: Job, tmp_path: Path) -> None:
    lost = {(0, 3), (1, 8)}  # as many on each, in one step
    analysis, rows = analysed(Job(2, *_rest(job)).write(tmp_path, lambda rank, number: (rank, number) in lost))
    job = Job(2, *_rest(job))
    assert_pairs_are_true(rows, job)
    alone = {(row["rank"], number_of(row, job)) for row in rows if row["collective"] is None}
    assert alone == {(1, 3), (0, 8)}
    assert {note.message.split(":")[0] for note in warned(analysis, "unmatched_collective")} == {"rank 0", "rank 1"}


def _rest(job: Job) -> tuple[Any, ...]:
    return job.num_collectives, job.seed, job.num_steps, job.seq, job.metadata


@JOBS
def test_a_rank_whose_window_began_later_is_matched_from_the_end(job: Job, tmp_path: Path) -> None:
    analysis, rows = analysed(job.write(tmp_path, lambda rank, number: rank == 2 and number < 5))
    assert_pairs_are_true(rows, job)
    assert {number_of(row, job) for row in rows if row["num_members"] == 7} == set(range(5))
    (note,) = warned(analysis, "unmatched_collective")
    assert note.count == 5


@JOBS
def test_a_missing_rank_is_named_and_the_others_match(job: Job, tmp_path: Path) -> None:
    (job.write(tmp_path) / "rank_5.json").unlink()
    analysis, rows = analysed(tmp_path)
    assert_pairs_are_true(rows, job)
    assert {row["num_members"] for row in rows} == {7}
    (note,) = warned(analysis, "missing_ranks")
    assert "no trace of rank 5" in note.message
    assert not warned(analysis, "unmatched_collective")


def test_a_gap_in_the_numbers_is_a_missing_rank_where_no_trace_states_the_world(analyse: Analyse) -> None:
    traces = [TraceBuilder(rank).step(0, 0, 500).compute(100, 200) for rank in (0, 1, 3)]
    for trace in traces:
        trace.metadata["distributedInfo"] = {"rank": trace.rank, "backend": "nccl"}
    (note,) = warned(analyse(*traces), "missing_ranks")
    assert "no trace of rank 2" in note.message


def _exchange_names(folder: Path) -> None:
    (folder / "rank_2.json").rename(folder / "x")
    (folder / "rank_6.json").rename(folder / "rank_2.json")
    (folder / "x").rename(folder / "rank_6.json")


def _exchange_numbers(folder: Path) -> None:
    for rank, other in ((2, 6), (6, 2)):
        path = folder / f"rank_{rank}.json"
        path.write_text(path.read_text().replace(f'"rank": {rank}, ', f'"rank": {other}, ', 1))


def _exchange_both(folder: Path) -> None:
    _exchange_names(folder)
    for rank, other in ((2, 6), (6, 2)):
        path = folder / f"rank_{other}.json"
        path.write_text(path.read_text().replace(f'"rank": {rank}, ', f'"rank": {other}, ', 1))


@JOBS
@pytest.mark.parametrize("exchange", [_exchange_names, _exchange_numbers, _exchange_both])
def test_two_exchanged_ranks_are_named(job: Job, exchange: Callable[[Path], None], tmp_path: Path) -> None:
    exchange(job.write(tmp_path))
    analysis, rows = analysed(tmp_path)
    assert_pairs_are_true(rows, job)
    found = warned(analysis, "ranks_exchanged")
    assert found
    assert all("2" in note.message and "6" in note.message for note in found)


def test_names_that_count_within_a_host_are_no_exchange(tmp_path: Path) -> None:
    for rank in range(4):
        TraceBuilder(rank, 4).step(0, 0, 500).compute(100, 200).write(tmp_path, f"node{rank // 2}_rank{rank % 2}.json")
    analysis, _, _ = analyze([tmp_path], tmp_path / "out", AnalyzeOptions(hta=False, jobs=1))
    assert not warned(analysis, "ranks_exchanged")


def pipeline(*ranks: int, world: int = 4, **group: Any) -> list[TraceBuilder]:
    return [TraceBuilder(rank, world).step(0, 0, 5000).compute(4000, 4100) for rank in ranks]


def transfer(sender: TraceBuilder, receiver: TraceBuilder, start: float, end: float, **args: Any) -> None:
    """A send and its receive, as torch describes them: each names the other side alone."""
    group = {"Group size": 4, "Process Group Ranks": "[0, 1, 2, 3]", "Process Group Name": "7"}
    here = {"Collective name": "send", "Dst Rank": receiver.rank}
    there = {"Collective name": "recv", "Src Rank": sender.rank}
    sender.all_gather(start, end, **{**group, **here, **args})
    receiver.all_gather(start + 20, end, **{**group, **there, **args})


def by_collective(rows: Rows) -> dict[int | None, list[int]]:
    found: dict[int | None, list[int]] = {}
    for row in rows:
        found.setdefault(row["collective"], []).append(row["rank"])
    return found


@pytest.mark.parametrize("seq", [True, False])
def test_sends_and_receives_pair_by_their_two_sides(analyse: Analyse, tmp_path: Path, seq: bool) -> None:
    ranks = pipeline(0, 1, 2, 3)
    counted = [0, 0, 0, 0]
    for micro_step in range(3):
        for sender in range(3):
            start = 100.0 + 900 * micro_step + 250 * sender
            transfer(ranks[sender], ranks[sender + 1], start, start + 200)
            for rank in (sender, sender + 1):  # each rank counts its own transfers: 1 and 2 disagree
                counted[rank] += 1
                if seq:
                    ranks[rank].events[-1]["args"]["Seq"] = counted[rank]
    analysis = analyse(*ranks)
    rows = pq.read_table(tmp_path / "run" / "analysis" / "collectives.parquet").to_pylist()
    assert sorted(by_collective(rows).items()) == [
        (3 * micro_step + sender, [sender, sender + 1]) for micro_step in range(3) for sender in range(3)
    ]
    assert {(row["name"], row["wait_ns"]) for row in rows} == {("send", 20_000), ("recv", 0)}
    assert not warned(analysis, "unmatched_collective")


def test_a_lost_receive_leaves_its_send_alone(analyse: Analyse, tmp_path: Path) -> None:
    ranks = pipeline(0, 1)
    for start in (100, 400, 900, 1600):
        transfer(ranks[0], ranks[1], start, start + 200)
    ranks[1].events = [e for e in ranks[1].events if not (e["cat"] == "kernel" and e["ts"] == 420)]
    rows = _rows_of(analyse(*ranks), tmp_path)
    assert [row["start_ns"] - BASE for row in rows if row["collective"] is None] == [400_000]
    assert len(by_collective(rows)) == 4


def _rows_of(analysis: Analysis, tmp_path: Path) -> Rows:
    return pq.read_table(tmp_path / "run" / "analysis" / "collectives.parquet").to_pylist()


def test_transfers_and_collectives_of_one_group_and_seq_are_apart(analyse: Analyse, tmp_path: Path) -> None:
    ranks = pipeline(0, 1, world=2)
    group = {"Group size": 2, "Process Group Ranks": "[0, 1]", "Seq": 1}
    transfer(*ranks, 100, 200, **group)
    for trace in ranks:
        trace.all_gather(300 + 10 * trace.rank, 400, **{**group, "Collective name": "allreduce"})
    rows = _rows_of(analyse(*ranks), tmp_path)
    assert {row["name"]: row["collective"] for row in rows} == {"send": 0, "recv": 0, "allreduce": 1}


def test_a_group_of_one_waits_for_nobody(analyse: Analyse, tmp_path: Path) -> None:
    ranks = pipeline(0, 1, world=2)
    for trace in ranks:
        alone = {"Group size": 1, "Process Group Ranks": f"[{trace.rank}]", "Seq": 1}
        trace.all_gather(100 + 30 * trace.rank, 200, **alone)
    analysis = analyse(*ranks)
    assert [(row["wait_ns"], row["num_members"]) for row in _rows_of(analysis, tmp_path)] == [(0, 1), (0, 1)]
    assert not warned(analysis, "unmatched_collective")


def test_a_group_whose_other_members_are_not_there_is_said_to_be_so(analyse: Analyse, tmp_path: Path) -> None:
    ranks = pipeline(0, 1, world=4)
    for trace in ranks:
        trace.all_gather(100, 200, Seq=1, **{"Process Group Ranks": f"[{trace.rank}, {trace.rank + 2}]"})
    notes = warned(analyse(*ranks), "unmatched_collective")
    assert [("no other member among these traces" in note.message) for note in notes] == [True, True]


def test_groups_that_the_trace_does_not_tell_apart_are_paired_only_where_they_end_apart(
    analyse: Analyse, tmp_path: Path
) -> None:
    """Old traces: a size, and no members. Ranks 0 and 1 are one group, 2 and 3 the other."""
    ranks = pipeline(0, 1, 2, 3)
    for trace in ranks:
        for start, apart in ((100, 1), (600, 0)):  # once at two moments, once at one
            end = start + 200 + apart * 100 * (trace.rank // 2)
            trace.all_gather(start, end, **{"Process Group Ranks": None, "Process Group Name": None})
    analysis = analyse(*ranks)
    assert by_collective(_rows_of(analysis, tmp_path)) == {0: [0, 1], 1: [2, 3], None: [0, 1, 2, 3]}
    assert len(warned(analysis, "unmatched_collective")) == 4


def test_a_rank_in_a_group_of_others_is_named_and_not_paired(analyse: Analyse, tmp_path: Path) -> None:
    ranks = pipeline(0, 1, 2, 3)
    for trace in ranks:
        members = {0: "[0, 1]", 1: "[2, 3]", 2: "[0, 1]", 3: "[2, 3]"}[trace.rank]  # 1 and 2 are mixed up
        trace.all_gather(100, 200, Seq=1, **{"Process Group Ranks": members})
    analysis = analyse(*ranks)
    assert {note.message.split(":")[0] for note in warned(analysis, "rank_not_in_group")} == {"rank 1", "rank 2"}
    assert by_collective(_rows_of(analysis, tmp_path)) == {None: [0, 1, 2, 3]}


def test_order_that_slips_over_the_border_of_a_step_still_matches(analyse: Analyse, tmp_path: Path) -> None:
    """gloo: a thread begins a collective just before the step ends on one rank, and just after on the other."""
    ranks = [TraceBuilder(rank, 2, backend="gloo").host("aten::mm", 10, 20) for rank in range(2)]
    for trace in ranks:
        trace.step(0, 0, 1000).step(1, 1000, 2000)
        starts = (100, 500, 990 + 20 * trace.rank, 1500)
        for number, start in enumerate(starts):
            end = (250, 700, 1200, 1700)[number] + 300 * (trace.rank == 1 and number % 2)  # threads wake late
            trace.host("gloo:all_reduce", start, end, tid=9, cat="user_annotation")
    rows = _rows_of(analyse(*ranks), tmp_path)
    assert [row["collective"] for row in rows] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_gloo_rows_that_only_one_rank_has_at_the_start_are_left_alone(analyse: Analyse, tmp_path: Path) -> None:
    ranks = [TraceBuilder(rank, 2, backend="gloo").step(0, 0, 9000).host("aten::mm", 10, 20) for rank in range(2)]
    for trace in ranks:
        for number, start in enumerate((100, 700, 1100, 2500, 4000)):
            if trace.rank == 0 or number >= 2:
                trace.host("gloo:all_reduce", start, start + 300 + 140 * trace.rank, tid=9, cat="user_annotation")
    assert by_collective(_rows_of(analyse(*ranks), tmp_path)) == {
        None: [0, 0], 0: [0, 1], 1: [0, 1], 2: [0, 1],
    }  # fmt: skip


def test_split_sizes_of_an_all_to_all_may_differ_between_ranks(analyse: Analyse, tmp_path: Path) -> None:
    ranks = pipeline(0, 1, world=2)
    for trace in ranks:
        trace.all_gather(100, 200, elements=100 + trace.rank, **{"Collective name": "all_to_allv"})
    assert by_collective(_rows_of(analyse(*ranks), tmp_path)) == {0: [0, 1]}


PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "public" / "dlrm_8ranks"


@pytest.fixture
def published() -> dict[int, dict[str, Any]]:
    """Eight ranks of one host with a few all-to-alls and all-reduces, told by the names of their kernels alone."""
    if not PUBLISHED.is_dir():
        pytest.skip("the published traces are not on this machine")
    paths = {rank: PUBLISHED / f"worker{rank}.pt.trace.json.gz" for rank in range(8)}
    return {rank: json.loads(gzip.decompress(path.read_bytes())) for rank, path in paths.items()}


def analysed_documents(documents: dict[int, dict[str, Any]], folder: Path) -> tuple[Analysis, Rows]:
    folder.mkdir()
    for rank, document in documents.items():
        (folder / f"worker{rank}.json").write_text(json.dumps(document))
    return analysed(folder)


def collectives_in(document: dict[str, Any]) -> list[dict[str, Any]]:
    found = [e for e in document["traceEvents"] if e.get("cat") == "kernel" and e["name"].startswith("nccl")]
    return sorted(found, key=lambda event: event["ts"])


def ends_apart_us(rows: Rows) -> float:
    """The most that members of one collective end apart."""
    ends: dict[int, list[int]] = {}
    for row in rows:
        if row["collective"] is not None:
            ends.setdefault(row["collective"], []).append(row["end_ns"])
    return max(max(times) - min(times) for times in ends.values()) / 1000


def test_published_ranks_match_by_order(published: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    analysis, rows = analysed_documents(published, tmp_path / "run")
    assert (len(rows), len({row["collective"] for row in rows})) == (64, 8)
    assert {row["num_members"] for row in rows} == {8}
    assert ends_apart_us(rows) < 10
    assert analysis.clock is not None
    assert (analysis.clock.num_ends, analysis.clock.residual_worst_ns) == (56, 5_000)


def test_a_published_rank_that_is_missing_is_named(published: dict[int, dict[str, Any]], tmp_path: Path) -> None:
    del published[6]
    analysis, rows = analysed_documents(published, tmp_path / "run")
    assert {row["num_members"] for row in rows} == {7}
    assert ends_apart_us(rows) < 10
    (note,) = warned(analysis, "missing_ranks")
    assert "no trace of rank 6" in note.message


@pytest.mark.parametrize("stated", [True, False])
def test_published_ranks_that_were_exchanged_are_named(
    published: dict[int, dict[str, Any]], tmp_path: Path, stated: bool
) -> None:
    published[2], published[5] = published[5], published[2]
    for document in published.values():
        if not stated:
            del document["distributedInfo"]
    analysis, rows = analysed_documents(published, tmp_path / "run")
    assert ends_apart_us(rows) < 10
    (note,) = warned(analysis, "ranks_exchanged")
    assert "2" in note.message and "5" in note.message


@pytest.mark.parametrize("place", range(8))
def test_a_published_collective_that_was_deleted_is_named(
    published: dict[int, dict[str, Any]], tmp_path: Path, place: int
) -> None:
    published[3]["traceEvents"].remove(collectives_in(published[3])[place])
    analysis, rows = analysed_documents(published, tmp_path / "run")
    assert sorted(row["num_members"] for row in rows if row["rank"] == 0) == [7, *[8] * 7]
    assert ends_apart_us(rows) < 10
    (note,) = warned(analysis, "unmatched_collective")
    assert note.message.startswith("rank 3: no record of 1 collective")


def test_published_collectives_deleted_on_two_ranks_shift_no_pair(
    published: dict[int, dict[str, Any]], tmp_path: Path
) -> None:
    pair = {rank: published[rank] for rank in (0, 1)}
    for rank, place in ((0, 2), (1, 3)):
        pair[rank]["traceEvents"].remove(collectives_in(pair[rank])[place])
        pair[rank]["distributedInfo"]["world_size"] = 2
    analysis, rows = analysed_documents(pair, tmp_path / "run")
    assert ends_apart_us(rows) < 10
    assert [row["rank"] for row in rows if row["collective"] is None] == [0, 1]
    assert len(warned(analysis, "unmatched_collective")) == 2
