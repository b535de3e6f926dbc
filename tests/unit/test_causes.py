"""Why exposed and idle time is lost: hand-worked timelines."""

from __future__ import annotations

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from zerotrace.model import StepPartition


def only(analyse: Analyse, trace: TraceBuilder) -> StepPartition:
    (part,) = analyse(trace).partition
    return part


def microseconds(part: StepPartition, *names: str) -> list[float]:
    return [getattr(part, f"{name}_ns") / 1000 for name in names]


def test_exposed_is_queued_once_the_next_kernel_has_been_launched(analyse: Analyse) -> None:
    # The call that launches the kernel at 100 runs from 58 to 60; the gather is exposed from 20 to 100.
    trace = TraceBuilder().step(0, 0, 200).all_gather(20, 100).compute(100, 150, launched=58)
    part = only(analyse, trace)
    assert microseconds(part, "blocking_queued", "blocking_sync", "shadow") == [40, 0, 40]


def test_exposed_is_sync_while_the_launching_thread_waits_for_the_device(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 200).all_gather(20, 100).compute(100, 150, launched=90)
    trace.host("cudaStreamSynchronize", 30, 70, cat="cuda_runtime")
    part = only(analyse, trace)
    # 20-30 shadow, 30-70 sync, 70-92 shadow (the host works towards the launch), 92-100 queued
    assert microseconds(part, "blocking_queued", "blocking_sync", "shadow") == [8, 40, 32]
    assert part.blocking_ns == 48_000


def test_another_threads_synchronisation_holds_nothing_back(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 200).all_gather(20, 100).compute(100, 150, launched=90)
    trace.host("cudaDeviceSynchronize", 20, 90, tid=77, cat="cuda_runtime")
    assert microseconds(only(analyse, trace), "blocking_sync", "shadow") == [0, 72]


def test_exposed_after_the_last_kernel_is_shadow(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 200).compute(10, 20).all_gather(50, 100)
    assert microseconds(only(analyse, trace), "blocking_queued", "blocking_sync", "shadow") == [0, 0, 50]


def test_idle_is_host_bound_until_the_launch_and_stalled_after_it(analyse: Analyse) -> None:
    # gap 30-100, launch returns at 62; then a gap 120-140 whose launch had returned long before
    trace = TraceBuilder().step(0, 0, 200).compute(0, 30, launched=-1)
    trace.compute(100, 120, launched=60).compute(140, 150, launched=70)
    part = only(analyse, trace)
    assert microseconds(part, "host_bound", "stalled", "tail", "unlinked", "idle") == [32, 58, 50, 0, 140]


def test_idle_before_a_row_without_launch_is_unlinked(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 100).compute(40, 100, launched=-1)
    assert microseconds(only(analyse, trace), "host_bound", "stalled", "tail", "unlinked") == [0, 0, 0, 40]


def test_the_earliest_launch_counts_where_rows_start_together(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 100).compute(50, 60, launched=10).compute(50, 60, stream=8, launched=40)
    assert microseconds(only(analyse, trace), "host_bound", "stalled") == [12, 38]


def test_the_hosts_own_time_has_no_launches_to_tell_by(analyse: Analyse) -> None:
    trace = TraceBuilder(backend="gloo").step(0, 0, 100).host("aten::mm", 10, 20)
    trace.host("gloo:all_reduce", 30, 40, tid=9, cat="user_annotation")
    part = only(analyse, trace)
    assert part.idle_ns is not None
    assert part.host_bound_ns is part.blocking_queued_ns is part.blocking_ns is None
