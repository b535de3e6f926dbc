"""Records that stand twice in a file count once, and that is said; what only looks like it counts."""

from __future__ import annotations

import copy
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from zerotrace.model import Analysis, Diagnostic


def said(analysis: Analysis) -> list[Diagnostic]:
    return [note for note in analysis.diagnostics if note.code == "duplicate_events"]


def counts(analysis: Analysis, rank: int = 0) -> dict[str, int]:
    return {kernel.name[:12]: kernel.count for kernel in analysis.top_kernels if kernel.rank == rank}


def a_rank(rank: int = 0, world: int = 1) -> TraceBuilder:
    trace = TraceBuilder(rank, world).step(0, 0, 500)
    return trace.compute(50, 150).copy(160, 170).all_gather(120 + 10 * rank, 220, Seq=1)


def twice(trace: TraceBuilder, *cats: str) -> TraceBuilder:
    """The records of these categories delivered again, at the end of the file."""
    trace.events += copy.deepcopy([event for event in trace.events if event["cat"] in cats])
    return trace


@pytest.mark.parametrize("ranks", [(0,), (1,), (0, 1)])
def test_copies_are_removed_and_counted_by_file(analyse: Analyse, tmp_path: Path, ranks: tuple[int, ...]) -> None:
    plain = analyse(a_rank(0, 2), a_rank(1, 2))
    traces = [twice(a_rank(r, 2), "kernel", "gpu_memcpy") if r in ranks else a_rank(r, 2) for r in (0, 1)]
    analysis = analyse(*traces)
    assert analysis.partition == plain.partition
    assert [counts(analysis, rank) for rank in (0, 1)] == [counts(plain, rank) for rank in (0, 1)]
    assert [(note.file, note.count) for note in said(analysis)] == [(f"rank_{rank}.json", 3) for rank in ranks]
    assert all(f"rank_{rank}.json: 3 device rows" in note.message for rank, note in zip(ranks, said(analysis)))
    rows = pq.read_table(tmp_path / "run" / "analysis" / "collectives.parquet").to_pylist()
    assert [(row["rank"], row["num_members"], row["wait_ns"]) for row in rows] == [(0, 2, 10_000), (1, 2, 0)]
    assert {note.code for note in analysis.diagnostics} == {"duplicate_events"}


def test_a_record_of_a_buffer_delivered_three_times_counts_once(analyse: Analyse) -> None:
    trace = a_rank()
    kernels = [event for event in trace.events if event["cat"] == "kernel"]
    trace.events += copy.deepcopy(kernels) + copy.deepcopy(kernels)
    (note,) = said(analyse(trace))
    assert note.count == 4


def test_kernels_of_one_launch_are_no_copies(analyse: Analyse) -> None:
    """A CUDA graph: one call, one correlation id, branches that begin at one moment."""
    trace = TraceBuilder().step(0, 0, 500).host("cudaGraphLaunch", 10, 12, cat="cuda_runtime", correlation=500)
    for stream, name, end in ((7, "a", 100), (7, "b", 100), (7, "a", 101), (8, "a", 100)):
        trace.compute(50, end, name=name, stream=stream, correlation=500, launched=-1)
    analysis = analyse(trace)
    assert counts(analysis) == {"a": 3, "b": 1}
    assert not said(analysis)


def test_equal_kernels_of_two_launches_are_no_copies(analyse: Analyse) -> None:
    """Records in whole microseconds: two short kernels of one name may share start and duration."""
    analysis = analyse(TraceBuilder().step(0, 0, 500).compute(50, 51).compute(50, 51))
    assert counts(analysis) == {"gemm_bf16": 2}
    assert not said(analysis)


def test_copies_of_gloo_annotations_are_removed_in_host_mode(analyse: Analyse) -> None:
    trace = TraceBuilder(backend="gloo").step(0, 0, 500).host("aten::mm", 10, 60, **{"External id": 3})
    trace.host("gloo:all_reduce", 100, 200, tid=9, cat="user_annotation", **{"External id": 4})
    trace.host("gloo:all_reduce", 100, 200, tid=10, cat="user_annotation", **{"External id": 5})  # another thread's
    (note,) = said(analysis := analyse(twice(trace, "user_annotation", "cpu_op")))
    assert note.count == 4  # the step, the operator and both annotations
    assert counts(analysis) == {"gloo:all_red": 2, "aten::mm": 1}
