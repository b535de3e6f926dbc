"""Blocking time by the waits of streams and calls, beside blocking by launches: hand-worked timelines.

The gather runs from 20 to 100 on a stream of its own, launched at 15. Unless a test says otherwise, the next compute
kernel starts at 100, and the call that launches it runs from 58 to 60.
"""

from __future__ import annotations

import pytest

from tests.builders import COMM_STREAM, COMPUTE_STREAM, TraceBuilder
from tests.conftest import Analyse
from zerotrace.model import Attribution, BlockingCheck


def gather() -> TraceBuilder:
    return TraceBuilder().step(0, 0, 200).all_gather(20, 100)


def check(analyse: Analyse, trace: TraceBuilder) -> BlockingCheck:
    found = analyse(trace).blocking_check
    assert found is not None
    return found


def queued(analyse: Analyse, trace: TraceBuilder) -> tuple[float, float]:
    (step,) = check(analyse, trace).steps
    return step.queued_ns / 1000, step.queued_confirmed_ns / 1000


def test_a_kernel_behind_a_wait_for_the_collective_is_held_by_it(analyse: Analyse) -> None:
    trace = gather().stream_wait(30).compute(100, 150, launched=58)
    assert queued(analyse, trace) == (40, 40)
    assert check(analyse, trace).confirmed_ratio == 1


def test_a_kernel_behind_no_wait_is_held_by_something_else(analyse: Analyse) -> None:
    trace = gather().stream_wait(30, stream=9).compute(100, 150, launched=58)
    assert queued(analyse, trace) == (40, 0)
    found = check(analyse, trace)
    assert found.confirmed_ratio == 0
    assert "40.0 µs in which the kernel had been launched but waited for no collective" in found.sentence


@pytest.mark.parametrize("at", [10, 70])
def test_a_wait_before_the_collective_or_after_the_kernel_holds_nothing(analyse: Analyse, at: float) -> None:
    assert queued(analyse, gather().stream_wait(at).compute(100, 150, launched=58)) == (40, 0)


def test_a_kernel_that_starts_before_the_collective_ends_did_not_wait_for_it(analyse: Analyse) -> None:
    assert queued(analyse, gather().stream_wait(30).compute(80, 150, launched=58)) == (20, 0)


def test_work_of_one_stream_needs_no_wait(analyse: Analyse) -> None:
    trace = gather().stream_wait(5, stream=9).compute(100, 150, launched=58, stream=COMM_STREAM)
    assert queued(analyse, trace) == (40, 40)


def test_a_named_wait_holds_only_behind_the_stream_that_it_names(analyse: Analyse) -> None:
    named = gather().stream_wait(30, source=COMM_STREAM, recorded=28).compute(100, 150, launched=58)
    other = gather().stream_wait(30, source=9, recorded=28).compute(100, 150, launched=58)
    early = gather().stream_wait(30, source=COMM_STREAM, recorded=12).compute(100, 150, launched=58)
    assert [queued(analyse, trace) for trace in (named, other, early)] == [(40, 40), (40, 0), (40, 0)]
    assert (check(analyse, named).num_waits, check(analyse, named).num_named_waits) == (1, 1)


def test_waits_are_followed_from_stream_to_stream(analyse: Analyse) -> None:
    trace = gather().stream_wait(30, stream=9, source=COMM_STREAM, recorded=28)
    trace.stream_wait(40, stream=COMPUTE_STREAM, source=9, recorded=35).compute(100, 150, launched=58)
    assert queued(analyse, trace) == (40, 40)
    # the event was recorded before the stream between had been told to wait
    trace = gather().stream_wait(30, stream=9, source=COMM_STREAM, recorded=28)
    trace.stream_wait(40, stream=COMPUTE_STREAM, source=9, recorded=25).compute(100, 150, launched=58)
    assert queued(analyse, trace) == (40, 0)


def sync(analyse: Analyse, trace: TraceBuilder) -> list[float]:
    (step,) = check(analyse, trace.compute(110, 150, launched=104)).steps
    times = step.sync_ns, step.sync_confirmed_ns, step.sync_unrecorded_ns, step.sync_elsewhere_ns
    return [time / 1000 for time in times]


def test_a_call_that_waits_for_the_whole_device_waits_for_the_collective(analyse: Analyse) -> None:
    assert sync(analyse, gather().sync_call("cudaDeviceSynchronize", 40, 101, "Context Sync")) == [60, 60, 0, 0]


def test_a_call_that_waits_for_a_stream_waits_for_what_that_stream_waits_for(analyse: Analyse) -> None:
    call = ("cudaStreamSynchronize", 40, 101, "Stream Sync")
    assert sync(analyse, gather().sync_call(*call, stream=COMM_STREAM)) == [60, 60, 0, 0]
    assert sync(analyse, gather().sync_call(*call, stream=COMPUTE_STREAM)) == [60, 0, 0, 60]
    assert sync(analyse, gather().stream_wait(30).sync_call(*call, stream=COMPUTE_STREAM)) == [60, 60, 0, 0]
    late = ("cudaStreamSynchronize", 40, 90, "Stream Sync")  # returns before the gather has ended
    assert sync(analyse, gather().stream_wait(30).sync_call(*late, stream=COMPUTE_STREAM)) == [50, 0, 0, 50]


def test_asking_for_an_event_is_not_waiting_and_a_copy_leaves_no_record(analyse: Analyse) -> None:
    trace = gather().sync_call("cudaEventQuery", 40, 50, "Event Sync")
    trace.host("cudaMemcpyAsync", 60, 80, cat="cuda_runtime", correlation=7)
    assert sync(analyse, trace) == [20, 0, 20, 0]


def test_an_event_without_name_may_be_the_collectives(analyse: Analyse) -> None:
    assert sync(analyse, gather().sync_call("cudaEventSynchronize", 40, 101, "Event Sync")) == [60, 60, 0, 0]
    named = {"wait_on_stream": 9, "wait_on_cuda_event_record_corr_id": -1}
    trace = gather().sync_call("cudaEventSynchronize", 40, 101, "Event Sync", **named)
    assert sync(analyse, trace) == [60, 0, 0, 60]


def test_without_synchronisation_rows_there_is_no_second_witness(analyse: Analyse) -> None:
    assert analyse(gather().compute(100, 150, launched=58)).blocking_check is None


def test_both_readings_are_by_the_hosts_windows_whatever_the_attribution(analyse: Analyse) -> None:
    trace = gather().stream_wait(30).compute(100, 150, launched=58)
    found = analyse(trace, attribution=Attribution.LAUNCH).blocking_check
    assert found is not None
    assert [step.confirmed_ns for step in found.steps] == [40_000]


def test_nothing_blocks_where_compute_hides_all(analyse: Analyse) -> None:
    trace = gather().stream_wait(30).compute(10, 110)
    found = check(analyse, trace)
    assert found.confirmed_ratio is None
    assert found.sentence.startswith("No communication holds compute back")
