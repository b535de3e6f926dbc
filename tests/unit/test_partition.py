"""The partition of a step against hand-worked figures, and its identities on anything."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.builders import COMM_STREAM, TraceBuilder
from tests.conftest import Analyse
from zerotrace.analysis.launches import find_launches
from zerotrace.analysis.partition import clip_steps, device_causes, device_times
from zerotrace.ingest.rank import ingest_rank
from zerotrace.model import Attribution, Level

span = st.tuples(st.integers(0, 120), st.integers(1, 40)).map(lambda pair: (pair[0], pair[0] + pair[1]))
rows = st.lists(
    st.tuples(st.sampled_from(["compute", "comm", "copy"]), st.integers(0, 2), span), min_size=1, max_size=9
)


def test_a_copy_counts_only_where_neither_kernel_runs(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 100).compute(10, 30).all_gather(20, 50).copy(25, 70, stream=9)
    (part,) = analyse(trace).partition
    assert (part.copy_only_ns, part.exposed_ns, part.idle_ns) == (20_000, 20_000, 40_000)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(rows)
def test_every_step_closes_and_equals_a_painted_axis(
    tmp_path: Path, found: list[tuple[str, int, tuple[int, int]]]
) -> None:
    trace = TraceBuilder().step(0, 0, 60).step(1, 60, 130)
    painted: dict[str, set[int]] = {"compute": set(), "comm": set(), "copy": set()}
    for kind, lane, (start, end) in found:
        painted[kind] |= set(range(start, end))
        if kind == "comm":
            trace.all_gather(start, end, stream=COMM_STREAM + lane)
        else:
            getattr(trace, kind)(start, end, stream=lane)
    read = ingest_rank(trace.write(tmp_path))
    launches, times = find_launches(read.events), device_times(read.events)
    causes = [device_causes(read.events, time, launches) for time in times]
    for part in clip_steps(0, times, causes, read.windows):
        low, high = (0, 60) if part.step == 0 else (60, 130)
        compute, comm, copy = ({t for t in painted[k] if low <= t < high} for k in ("compute", "comm", "copy"))
        if not compute | comm | copy:
            assert part.compute_ns is None
            continue
        want = [len(compute), len(comm & compute), len(comm - compute), len(copy - compute - comm),
                high - low - len(compute | comm | copy)]  # fmt: skip
        got = [part.compute_ns, part.overlapped_ns, part.exposed_ns, part.copy_only_ns, part.idle_ns]
        assert got == [1000 * value for value in want]


def late_device() -> TraceBuilder:
    """The host runs ahead: step 0's last 50 µs and all of step 1's tail run outside their windows."""
    trace = TraceBuilder().step(0, 0, 100).step(1, 100, 200)
    return trace.compute(50, 150, launched=20).compute(150, 230, launched=120)


def test_clipping_and_launching_give_a_row_to_different_steps(analyse: Analyse) -> None:
    clipped = analyse(late_device())
    assert [part.compute_ns for part in clipped.partition] == [50_000, 100_000]
    assert clipped.ranks[0].outside_steps_ns == 30_000
    launched = analyse(late_device(), attribution=Attribution.LAUNCH)
    assert [part.compute_ns for part in launched.partition] == [100_000, 80_000]
    assert [part.idle_ns for part in launched.partition] == [None, None]
    for analysis in (clipped, launched):
        (note,) = [n for n in analysis.diagnostics if n.code == "attribution_differs"]
        assert note.level is Level.INFO
        assert "50.0 %" in note.message


def test_by_launch_a_collective_is_hidden_by_any_compute_of_the_device(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 100).step(1, 100, 200).all_gather(90, 140, launched=50).compute(110, 130)
    parts = analyse(trace, attribution=Attribution.LAUNCH).partition
    assert [(p.comm_ns, p.overlapped_ns, p.exposed_ns) for p in parts] == [(50_000, 20_000, 30_000), (0, 0, 0)]


def test_by_launch_a_step_waits_and_transfers_also_after_its_window(analyse: Analyse) -> None:
    """Launched in step 0: on rank 0 it runs from 90, on rank 1 from 120, to 140 on both; 10 µs of it are hidden."""
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(0, 0, 100).step(1, 100, 200).compute(110, 120, launched=105)
        traces.append(trace.all_gather(90 + 30 * rank, 140, launched=50).all_gather(160, 170, launched=150))
    parts = analyse(*traces, attribution=Attribution.LAUNCH).partition
    found = [(p.rank, p.step, p.exposed_ns, p.exposed_wait_ns, p.exposed_transfer_ns) for p in parts]
    assert found == [
        (0, 0, 40_000, 20_000, 20_000),
        (0, 1, 10_000, 0, 10_000),
        (1, 0, 20_000, 0, 20_000),
        (1, 1, 10_000, 0, 10_000),
    ]


def test_a_row_without_launch_belongs_to_the_step_of_its_start(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 100).compute(10, 20, launched=-1).compute(30, 40)
    analysis = analyse(trace, attribution=Attribution.LAUNCH)
    assert [part.compute_ns for part in analysis.partition] == [20_000]
    (note,) = [n for n in analysis.diagnostics if n.code == "kernels_without_launch"]
    assert note.count == 1


def test_without_communication_there_is_no_overlap_ratio(analyse: Analyse) -> None:
    analysis = analyse(TraceBuilder().step(0, 0, 100).compute(10, 20))
    assert analysis.partition[0].overlap_ratio is None
    assert analysis.ranks[0].overlap_ratio is None
    assert analysis.verdict.overlap_ratio is None
    assert "There is no communication" in analysis.verdict.headline
