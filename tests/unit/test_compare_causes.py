"""The unprofiled step by cause: what is scaled, and by what."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.page.runs import MS, host_run, training_run
from zerotrace.analysis.compare.causes import step_causes
from zerotrace.model import Analysis, Cause, StepCauses, StepPartition

PART = StepPartition(
    rank=0, device=0, step=2, start_ns=0, span_ns=100 * MS, compute_ns=30 * MS, comm_ns=40 * MS, overlapped_ns=10 * MS,
    exposed_ns=30 * MS, copy_only_ns=2 * MS, idle_ns=38 * MS, exposed_transfer_ns=18 * MS, exposed_wait_ns=12 * MS,
    host_bound_ns=30 * MS, stalled_ns=5 * MS, tail_ns=3 * MS, unlinked_ns=0,
)  # fmt: skip


def analysed(*parts: StepPartition, **changes: Any) -> Analysis:
    return replace(training_run().analysis, partition=parts, **changes)


def causes_of(step_ms: float, *parts: StepPartition, **changes: Any) -> StepCauses:
    causes, reason = step_causes(analysed(*(parts or (PART,)), **changes), step_ms * MS)
    assert causes is not None, reason
    return causes


def times(causes: StepCauses) -> dict[Cause, float]:
    return {part.cause: part.step_ns / MS for part in causes.parts}


def test_device_work_stays_and_waiting_and_idle_time_make_up_the_rest() -> None:
    # Of 70 ms, 30 + 18 + 2 are device work; the other 50 profiled ms become 20: a scale of 0.4.
    causes = causes_of(70)
    assert (causes.device_scale, causes.host_scale) == (1.0, pytest.approx(0.4))
    assert times(causes) == pytest.approx(
        {
            Cause.COMPUTE: 30, Cause.EXPOSED_TRANSFER: 18, Cause.EXPOSED_WAIT: 4.8, Cause.COPY: 2,
            Cause.HOST_BOUND: 12, Cause.STALLED: 2, Cause.TAIL: 1.2,
        }
    )  # fmt: skip
    assert [part.profiled_ns for part in causes.parts] == [30 * MS, 18 * MS, 12 * MS, 2 * MS, 30 * MS, 5 * MS, 3 * MS]
    assert (causes.span_ns, causes.overlapped_ns) == (100 * MS, 10 * MS)


@pytest.mark.parametrize("step_ms", [12.5, 50, 70, 100, 130])
def test_parts_add_up_to_the_unprofiled_step(step_ms: float) -> None:
    assert sum(times(causes_of(step_ms)).values()) == pytest.approx(step_ms, rel=1e-12)


def test_where_device_work_alone_is_longer_than_the_step_all_is_scaled_alike() -> None:
    causes = causes_of(40)
    assert causes.device_scale == causes.host_scale == pytest.approx(0.4)
    assert times(causes)[Cause.COMPUTE] == pytest.approx(12)


def test_time_of_a_host_is_scaled_alike() -> None:
    causes, _ = step_causes(host_run().analysis, 1.5 * MS)
    assert causes is not None
    assert causes.device_scale == causes.host_scale == pytest.approx(0.5)
    assert {part.cause for part in causes.parts} == {Cause.COMPUTE, Cause.EXPOSED, Cause.IDLE}


def test_parts_are_means_over_steps_then_over_ranks() -> None:
    longer = replace(PART, step=3, span_ns=120 * MS, idle_ns=58 * MS, host_bound_ns=50 * MS)
    other_rank = replace(PART, rank=1, span_ns=90 * MS, idle_ns=28 * MS, host_bound_ns=20 * MS)
    causes = causes_of(70, PART, longer, other_rank)
    # Rank 0 idles (30 + 50) / 2 ms for its host, rank 1 20 ms.
    assert {part.cause: part.profiled_ns / MS for part in causes.parts}[Cause.HOST_BOUND] == 30
    assert causes.span_ns == 100 * MS


def test_steps_that_are_left_out_count_only_where_there_are_no_others() -> None:
    late = replace(PART, step=3, span_ns=900 * MS, idle_ns=838 * MS, host_bound_ns=830 * MS)
    assert causes_of(70, PART, late, left_out_steps=(3,)).span_ns == 100 * MS
    assert causes_of(70, late, left_out_steps=(3,)).span_ns == 900 * MS


def test_what_cannot_be_told_apart_is_one_part() -> None:
    blurred = replace(PART, exposed_transfer_ns=None, exposed_wait_ns=None, host_bound_ns=None)
    found = times(causes_of(100, blurred))
    assert found[Cause.EXPOSED] == 30
    assert found[Cause.IDLE] == pytest.approx(38)
    # A rank without exposed communication waits for nobody, whether or not its peers are in the run.
    silent = replace(PART, comm_ns=0, overlapped_ns=0, exposed_ns=0, exposed_transfer_ns=None, exposed_wait_ns=None,
                     span_ns=70 * MS)  # fmt: skip
    assert Cause.EXPOSED not in times(causes_of(70, silent))


@pytest.mark.parametrize(
    ("analysis", "step_ns", "reason"),
    [
        (None, 1.0, "not analysed"),
        (analysed(PART), None, "no timed window"),
        (analysed(), 1.0, "no step of the trace is known"),
        (analysed(replace(PART, idle_ns=None)), 1.0, "analysed by launch, so that a step does not close"),
    ],
)
def test_without_parts_there_is_a_reason(analysis: Analysis | None, step_ns: float | None, reason: str) -> None:
    assert step_causes(analysis, step_ns) == (None, reason)
