"""Which rows are one collective, who waits, and what is never paired by force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from zerotrace.model import Analysis


def pair(*gathers: tuple[tuple[float, float], tuple[float, float]], **args: Any) -> tuple[TraceBuilder, TraceBuilder]:
    """Two ranks; each entry is one gather: its interval on rank 0 and on rank 1."""
    ranks = TraceBuilder(0, 2).step(0, 0, 1000), TraceBuilder(1, 2).step(0, 0, 1000)
    for rank, trace in enumerate(ranks):
        trace.compute(900, 910)
        for seq, gather in enumerate(gathers):
            trace.all_gather(*gather[rank], **({"Seq": seq} | args))
    return ranks


def codes(analysis: Analysis) -> list[str]:
    return [note.code for note in analysis.diagnostics if note.code == "unmatched_collective"]


def test_exposed_splits_into_waiting_for_the_late_rank_and_transfer(analyse: Analyse, collectives: Any) -> None:
    analysis = analyse(*pair(((100, 200), (170, 200))))
    assert [(p.exposed_wait_ns, p.exposed_transfer_ns) for p in analysis.partition] == [(70_000, 30_000), (0, 30_000)]
    first, second = collectives()
    assert (first["wait_ns"], second["wait_ns"]) == (70_000, 0)
    assert {row["last_rank"] for row in (first, second)} == {1}
    assert {(row["skew_ns"], row["transfer_ns"], row["num_members"]) for row in (first, second)} == {
        (70_000, 30_000, 2)
    }


def test_hidden_waiting_is_not_exposed(analyse: Analyse) -> None:
    ranks = pair(((100, 200), (170, 200)))
    ranks[0].compute(100, 150)
    assert analyse(*ranks).partition[0].exposed_wait_ns == 20_000


def test_bandwidth_counts_the_output_of_a_gather(analyse: Analyse, collectives: Any) -> None:
    analyse(*pair(((100, 200), (100, 200)), elements=1_000_000))
    row = collectives()[0]
    # 2 M elements of two bytes in 100 µs; a bus factor of one half between two ranks
    assert (row["size_bytes"], row["algbw_gbps"], row["busbw_gbps"]) == (4_000_000, 40.0, 20.0)
    assert row["last_rank"] is None, "nobody is last where all come together"


@pytest.mark.parametrize("dtype", ["UInt4", None])
def test_a_type_without_a_known_size_has_no_bandwidth(analyse: Analyse, collectives: Any, dtype: str | None) -> None:
    analyse(*pair(((100, 200), (100, 200)), dtype=dtype))
    assert (collectives()[0]["size_bytes"], collectives()[0]["busbw_gbps"]) == (None, None)


def test_seq_matches_whatever_the_order_and_a_lost_record_stays_alone(analyse: Analyse, collectives: Any) -> None:
    first, second = pair(((100, 150), (110, 150)), ((200, 250), (210, 250)), ((300, 350), (310, 350)))
    first.events = [e for e in first.events if not (e["ph"] == "X" and e["args"].get("Seq") == 1)]
    analysis = analyse(first, second)
    by_seq = {(row["rank"], row["seq"]): row["collective"] for row in collectives()}
    assert by_seq[0, 0] == by_seq[1, 0]
    assert by_seq[0, 2] == by_seq[1, 2]
    assert by_seq[1, 1] is None
    (note,) = [note for note in analysis.diagnostics if note.code == "unmatched_collective"]
    assert "rank 1" in note.message
    assert "Seq 1" in note.message


def test_without_seq_the_order_in_the_step_matches(analyse: Analyse, collectives: Any) -> None:
    analyse(*pair(((100, 150), (110, 150)), ((200, 250), (210, 250)), Seq=None))
    assert [row["collective"] for row in collectives()] == [0, 1, 0, 1]


def test_without_seq_rows_that_look_different_are_not_paired(analyse: Analyse, collectives: Any) -> None:
    first, second = pair(((100, 150), (110, 150)), Seq=None)
    first.all_gather(200, 250, elements=64)
    second.all_gather(200, 250, elements=128)
    analysis = analyse(first, second)
    assert [row["collective"] for row in collectives()] == [0, None, 0, None]
    assert len(codes(analysis)) == 2


def test_a_deleted_collective_pairs_nothing_by_force(analyse: Analyse, collectives: Any) -> None:
    gathers = tuple(((100.0 * i, 100.0 * i + 50), (100.0 * i + 10, 100.0 * i + 50)) for i in range(1, 6))
    first, second = pair(*gathers, Seq=None)
    lost = [e for e in first.events if e["cat"] == "kernel" and e["ts"] == 300]
    first.events = [e for e in first.events if e not in lost]
    analysis = analyse(first, second)
    rows = collectives()
    pairs = {(row["collective"], row["end_ns"]) for row in rows if row["collective"] is not None}
    assert len(pairs) == 4, "each pair ends at one moment"
    assert [row["rank"] for row in rows if row["collective"] is None] == [1]
    assert len(codes(analysis)) == 1


def test_groups_of_equal_name_are_told_apart_by_their_members(analyse: Analyse, collectives: Any) -> None:
    traces = [TraceBuilder(rank, 4).step(0, 0, 1000).compute(900, 910) for rank in range(4)]
    for rank, trace in enumerate(traces):
        members = "[0, 1]" if rank < 2 else "[2, 3]"
        trace.all_gather(100 + rank, 200, Seq=1, **{"Process Group Ranks": members})
    analyse(*traces)
    assert {(row["rank"], row["collective"]) for row in collectives()} == {(0, 0), (1, 0), (2, 1), (3, 1)}


def test_a_send_and_its_receive_are_one_transfer(analyse: Analyse, collectives: Any) -> None:
    ranks = TraceBuilder(0, 2).step(0, 0, 1000).compute(900, 910), TraceBuilder(1, 2).step(0, 0, 1000).compute(900, 910)
    for trace, name, start in zip(ranks, ("send", "recv"), (100, 140)):
        trace.all_gather(start, 200, Seq=1, **{"Collective name": name, "Src Rank": 0, "Dst Rank": 1})
    analyse(*ranks)
    assert [(row["collective"], row["wait_ns"]) for row in collectives()] == [(0, 40_000), (0, 0)]


def test_gloo_annotations_match_by_order(analyse: Analyse, collectives: Any) -> None:
    traces = [TraceBuilder(rank, 2, backend="gloo").step(0, 0, 1000).host("aten::mm", 10, 20) for rank in range(2)]
    for rank, trace in enumerate(traces):
        trace.host("gloo:all_gather", 100 + 20 * rank, 200, tid=9, cat="user_annotation")
    analysis = analyse(*traces)
    assert [row["name"] for row in collectives()] == ["all_gather", "all_gather"]
    assert [part.exposed_wait_ns for part in analysis.partition] == [20_000, 0]


def test_one_rank_alone_cannot_tell_waiting(analyse: Analyse, tmp_path: Path) -> None:
    analysis = analyse(pair(((100, 200), (170, 200)))[0])
    assert analysis.partition[0].exposed_wait_ns is None
    assert not (tmp_path / "run" / "analysis" / "collectives.parquet").exists()


def operator(
    trace: TraceBuilder, number: int, *, kernel: tuple[float, float] | None = None, copies: tuple[float, ...]
) -> None:
    """One operator that alone carries the metadata; its kernel, if it has one, and copies have its External id."""
    metadata = {"Collective name": "allgather", "In msg nelems": 1024, "Out msg nelems": 2048, "Group size": 2,
                "dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}  # fmt: skip
    link = {"External id": number}
    trace.host("record_param_comms", 90, 95, **link, **metadata)
    if kernel is not None:
        trace.device("kernel", "ncclDevKernel_AllGather_RING_LL(x)", *kernel, stream=20, **link)
    for start in copies:
        trace.copy(start, start + 10, stream=20, **link)


def test_copies_of_a_collectives_operator_are_part_of_it(analyse: Analyse, collectives: Any) -> None:
    ranks = [TraceBuilder(rank, 2).step(0, 0, 1000).compute(900, 910) for rank in range(2)]
    for rank, trace in enumerate(ranks):
        operator(trace, 7, kernel=(100 + 20 * rank, 200), copies=(85, 210, 225))
    analysis = analyse(*ranks)
    assert [(row["collective"], row["size_bytes"], row["wait_ns"], row["transfer_ns"]) for row in collectives()] == [
        (0, 4096, 20_000, 80_000), (0, 4096, 0, 80_000),
    ]  # fmt: skip
    parts = [(p.comm_ns, p.exposed_wait_ns, p.exposed_transfer_ns) for p in analysis.partition]
    assert parts == [(130_000, 20_000, 110_000), (110_000, 0, 110_000)], "copies are communication that nobody waits in"
    assert analysis.collectives is not None
    assert [(kind.num_calls, kind.size_bytes) for kind in analysis.collectives.kinds] == [(1, 4096)]


def test_copies_without_a_kernel_are_one_collective_for_each_operator(analyse: Analyse, collectives: Any) -> None:
    """Copy engines move the data of a gather in pieces, one for each peer: it lasts from the first to the last."""
    ranks = [TraceBuilder(rank, 2).step(0, 0, 1000).compute(900, 910) for rank in range(2)]
    for rank, trace in enumerate(ranks):
        operator(trace, 7, copies=(100 + 20 * rank, 130, 190))
        operator(trace, 8, copies=(300, 330))
    analysis = analyse(*ranks)
    assert [(row["collective"], row["rank"], row["size_bytes"], row["wait_ns"]) for row in collectives()] == [
        (0, 0, 4096, 20_000), (1, 0, 4096, 0), (0, 1, 4096, 0), (1, 1, 4096, 0),
    ]  # fmt: skip
    assert [row["end_ns"] - row["start_ns"] for row in collectives()] == [100_000, 40_000, 80_000, 40_000]
    assert analysis.collectives is not None
    assert [(kind.num_calls, kind.size_bytes) for kind in analysis.collectives.kinds] == [(2, 8192)]
    assert [part.comm_ns for part in analysis.partition] == [50_000, 50_000], "only the copies themselves take time"


def copied(trace: TraceBuilder, start: float, number: int, seq: int, name: str = "allgather", **where: Any) -> None:
    metadata = {"Collective name": name, "In msg nelems": 1024, "Out msg nelems": 2048, "Group size": 2, "Seq": seq,
                "dtype": "BFloat16", "Process Group Name": "0", "Process Group Ranks": "[0, 1]"}  # fmt: skip
    trace.copy(start, start + 40, **{"stream": 20, "External id": number, **metadata, **where})


@pytest.mark.parametrize(
    ("second", "number"),
    [({"seq": 2}, 7), ({"seq": 2, "name": "reduce_scatter"}, 7), ({"seq": 2}, 0), ({"seq": 1, "device": 1}, 7)],
)
def test_copies_whose_own_words_differ_are_no_one_collective(
    analyse: Analyse, collectives: Any, second: dict[str, Any], number: int
) -> None:
    ranks = [TraceBuilder(rank, 2).step(0, 0, 1000).compute(900, 910) for rank in range(2)]
    for rank, trace in enumerate(ranks):
        copied(trace, 100 + 30 * rank, number, seq=1)
        copied(trace, 500 + 30 * rank, number, **second)
    analyse(*ranks)
    rows = [row for row in collectives() if row["rank"] == 0]
    assert [row["end_ns"] - row["start_ns"] for row in rows] == [40_000, 40_000]
