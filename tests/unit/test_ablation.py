"""What prefetch is worth: the difference of two runs, its noise, and which runs make a pair."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.page.runs import MS, training_run
from tests.unit.test_compare import captured
from zerotrace.analysis.ablation import ablate
from zerotrace.analysis.captured import CapturedRun
from zerotrace.analysis.compare import compare
from zerotrace.cli.ablation import ablation_lines
from zerotrace.model import Analysis

OFF = {"stage3_prefetch_bucket_size": 0, "overlap_comm": False}


def stage_three(name: str, *step_ms: int, zero: dict[str, Any] | None = None, **changes: Any) -> CapturedRun:
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": 3, "overlap_comm": True, **(zero or {})}}
    return captured(name, *step_ms, stage=3, ds_config=config, **changes)


def with_exposed(run: CapturedRun, *transfer_ms: int | None) -> CapturedRun:
    """The run, analysed: two ranks, one profiled step for each figure; the second rank exposes 2 ms more."""
    analysis: Analysis = training_run().analysis
    part = next(part for part in analysis.partition if part.known)
    parts = tuple(
        replace(part, rank=rank, step=step, exposed_transfer_ns=None if ms is None else (ms + 2 * rank) * MS,
                exposed_wait_ns=0)
        for rank in (0, 1)
        for step, ms in enumerate(transfer_ms)
    )  # fmt: skip
    return replace(run, analysis=replace(analysis, partition=parts))


def test_the_gain_is_without_minus_with_and_has_the_noise_of_both() -> None:
    found = ablate(stage_three("on", 98, 100, 102, 104), stage_three("off", 148, 150, 152, 154, zero=OFF))
    assert found.step is not None
    assert (found.step.with_ns, found.step.without_ns, found.step.gain_ns) == (101 * MS, 151 * MS, 50 * MS)
    # The median absolute deviation of each run is 2 ms; 1.2533 × 1.4826 × 2 / √4 = 1.858 ms, twice.
    assert found.step.noise_ns == pytest.approx(1.2533 * 1.4826 * MS * 2**0.5)
    assert found.step.within_noise is False
    assert found.keys == {"stage3_prefetch_bucket_size": (None, 0), "overlap_comm": (True, False)}


def test_a_gain_below_two_standard_errors_is_within_noise() -> None:
    found = ablate(stage_three("on", 98, 100, 102, 104), stage_three("off", 100, 102, 104, 106, zero=OFF))
    assert found.step is not None
    assert (found.step.gain_ns, found.step.within_noise) == (2 * MS, True)
    assert (
        "wins 2.00 ms (standard error 2.63 ms, less than two of them: within noise)" in list(ablation_lines(found))[1]
    )


def test_too_few_steps_tell_no_noise() -> None:
    found = ablate(stage_three("on", 100, 102), stage_three("off", 90, 92, zero=OFF))
    assert found.step is not None
    assert (found.step.gain_ns, found.step.noise_ns, found.step.within_noise) == (-10 * MS, None, None)
    assert list(ablation_lines(found))[1].endswith("costs 10.0 ms (noise unknown: too few steps)")


def test_exposed_time_is_that_of_the_profiled_steps_over_all_ranks() -> None:
    on = with_exposed(stage_three("on", 100), 10, 12, 14, 16)
    off = with_exposed(stage_three("off", 100, zero=OFF), 31, 31, 31, 31)
    figure = ablate(on, off).exposed_transfer
    assert figure is not None
    assert (figure.with_ns, figure.without_ns, figure.gain_ns) == (14 * MS, 32 * MS, 18 * MS)
    assert figure.noise_ns == pytest.approx((20 / 3 / 4) ** 0.5 * MS)
    wait = ablate(on, off).exposed_wait
    assert wait is not None and wait.gain_ns == 0 and wait.within_noise


def test_a_figure_that_one_run_does_not_know_is_unknown() -> None:
    on, off = stage_three("on", 100), stage_three("off", zero=OFF)
    found = ablate(with_exposed(on, 10, None), with_exposed(off, 10, 10))
    assert (found.step, found.exposed_transfer) == (None, None)
    assert ablate(on, off).exposed_wait is None


@pytest.mark.parametrize(
    "other",
    [
        stage_three("off", 100),
        stage_three("off", 100, zero=OFF | {"overlap_comm": True}),
        stage_three("off", 100, zero=OFF | {"reduce_bucket_size": 1}),
        stage_three("off", 100, zero=OFF, micro_batch=8),
        stage_three("off", 100, zero=OFF, world_size=4),
        captured("off", 100, stage=2, ds_config={"zero_optimization": {"stage": 2, **OFF}}),
    ],
)  # fmt: skip
def test_runs_that_differ_in_anything_else_are_no_ablation(other: CapturedRun) -> None:
    assert compare([stage_three("on", 100), other]).ablations == ()


def test_compare_finds_the_pair_in_whatever_order() -> None:
    on, off = stage_three("on", 100), stage_three("off", 150, zero=OFF)
    for runs in ([on, off], [off, on]):
        (found,) = compare(runs).ablations
        assert (found.with_run, found.without_run) == ("on", "off")
