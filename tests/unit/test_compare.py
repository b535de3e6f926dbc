"""Runs side by side: the study's table, the baseline, and what does not compare."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.page.runs import MS, manifest, training_run
from zerotrace.analysis.captured import CapturedRun
from zerotrace.analysis.compare import compare
from zerotrace.analysis.work import differences, tokens_a_step, work_of
from zerotrace.model import Diagnostic, Level, RankRecord, RunManifest, Spread, WindowKind, WindowRecord


def captured(name: str, *step_ms: int, **changes: Any) -> CapturedRun:
    """A run whose timed steps took so long on rank 0; on the others each is 1 ms shorter."""
    world = changes.get("world_size", 2)
    steps = [tuple((ms - bool(rank)) * MS for ms in step_ms) for rank in range(world)]
    ranks = tuple(
        RankRecord(
            rank=rank,
            host=0,
            device="NVIDIA H200",
            windows=(WindowRecord(kind=WindowKind.TIMED, first_step=5, step_ns=steps[rank]),),
            resident_bytes=(10 - rank) << 30,
            peak_bytes=(12 + rank) << 30,
        )
        for rank in range(world)
    )
    fields = {"ranks": ranks, "world_size": world, "ds_config": {"bf16": {"enabled": True}}, **changes}
    return CapturedRun(name=name, manifest=replace(manifest(), **fields))


def single(*step_ms: int, **changes: Any) -> CapturedRun:
    return captured("traces/single", *step_ms, world_size=1, engine="single", stage=None, ds_config=None, **changes)


def test_the_figures_are_those_of_the_slowest_and_fullest_rank() -> None:
    (run,) = compare([captured("a", 100, 300, 200)]).runs
    assert run.step_ns == 200 * MS
    assert (run.resident_bytes, run.peak_bytes) == (10 << 30, 13 << 30)
    assert run.tokens == 2 * 4 * 1024
    assert run.tokens_per_s == pytest.approx(8192 / 0.2)
    assert (run.study_exposed_ns, run.exposed_ns) == (None, None)


def test_the_ladder_of_stages_says_what_each_saves_in_theory_and_as_measured() -> None:
    def at(stage: int, gib: int, **changes: Any) -> CapturedRun:
        run = captured(f"stage{stage}", 100, stage=stage, ds_config={"zero_optimization": {"stage": stage}}, **changes)
        ranks = tuple(replace(rank, resident_bytes=gib << 30) for rank in run.manifest.ranks)
        return CapturedRun(name=run.name, manifest=replace(run.manifest, ranks=ranks))

    other_world = at(2, 3, world_size=4)
    (step,) = compare([at(1, 6), single(50), at(0, 10), other_world]).ladder
    assert (step.from_stage, step.to_stage, step.measured_bytes) == (0, 1, 4 << 30)
    # 16Ψ − (4Ψ + 12Ψ/2) = 6Ψ.
    assert step.paper_bytes == 6 * 774_090_000
    assert step.error_ratio == pytest.approx((step.measured_bytes - step.deepspeed_bytes) / (10 << 30))
    assert compare([at(1, 6)]).ladder == ()


def test_a_single_device_is_the_baseline_of_all_others() -> None:
    one_rank = captured("zero", 120, world_size=1)
    found = compare([one_rank, captured("three", 250), single(100)])
    assert found.baseline == "traces/single"
    assert [run.study_exposed_ns for run in found.runs] == [20 * MS, 150 * MS, None]
    assert all(note.startswith("No loss tells") for note in found.notes), "nothing else is in doubt"
    # One rank of DeepSpeed does where there is nothing better.
    assert compare([captured("three", 250), one_rank]).baseline == "zero"
    assert compare([captured("three", 250)]).baseline is None


def test_a_step_below_the_baseline_is_not_made_zero() -> None:
    assert compare([single(100), captured("zero", 90)]).runs[1].study_exposed_ns == -10 * MS


def test_other_work_is_said_and_has_no_baseline() -> None:
    found = compare([single(100), captured("three", 250, micro_batch=8)])
    assert found.runs[1].study_exposed_ns is None
    assert found.runs[1].differences == ("micro-batch 8, not 4",)
    assert found.notes == ("three does other work than traces/single, and does not compare: micro-batch 8, not 4.",)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seed": 7, "losses": (2.0, 1.9)}, "its seed is 7, that of a 1337"),
        ({"seed": 1337, "losses": ()}, "seeds or losses are not known"),
        ({"seed": None, "losses": (2.0, 1.9)}, "seeds or losses are not known"),
    ],
)
def test_work_that_no_loss_tells_to_be_equal_is_said(changes: dict[str, Any], why: str) -> None:
    runs = [captured("a", 100, seed=1337, losses=(2.0, 1.9)), captured("b", 90, **changes)]
    assert compare(runs).notes == (f"No loss tells whether b does the same work as a: {why}.",)
    assert compare([runs[0], captured("b", 90, seed=1337, losses=(2.0, 1.9))]).notes == ()


def test_what_a_trace_contradicts_is_said_beside_the_comparison() -> None:
    run = captured("a", 100)
    doubt = Diagnostic(code="stage_contradicts", level=Level.WARNING, message="manifest.json says stage 3, the trace 0")
    analysis = replace(training_run().analysis, diagnostics=(doubt,))
    assert "In a manifest.json says stage 3, the trace 0." in compare([replace(run, analysis=analysis)]).notes


def test_a_run_without_timed_steps_is_said_to_have_none() -> None:
    found = compare([captured("three")])
    assert (found.runs[0].step_ns, found.runs[0].tokens_per_s) == (None, None)
    assert found.notes == ("three has no timed window, so that its step time is unknown.",)


def test_the_trace_s_figure_comes_from_the_analysis() -> None:
    analysis = training_run(manifest=manifest()).analysis
    run = replace(captured("three", 250), analysis=analysis)
    assert compare([run]).runs[0].exposed_ns == analysis.verdict.exposed_ns
    assert isinstance(analysis.verdict.exposed_ns, Spread)


def run_with(**config: Any) -> RunManifest:
    return manifest(ds_config=config)


@pytest.mark.parametrize(
    ("config", "precision", "micro_steps"),
    [
        ({"bf16": {"enabled": True}, "gradient_accumulation_steps": 3}, "bf16", 3),
        ({"bfloat16": {"enabled": True}}, "bf16", 1),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": False}}, "fp16", 1),
        ({}, "fp32", 1),
        ({"torch_autocast": {"enabled": True}}, "autocast", 1),
        ({"bf16": {"enabled": "auto"}}, None, 1),
        # micro-batch 4 on 2 ranks
        ({"train_batch_size": 32}, "fp32", 4),
    ],
)
def test_work_is_read_from_the_configuration(config: dict[str, Any], precision: str | None, micro_steps: int) -> None:
    work = work_of(run_with(**config))
    assert (work.precision, work.num_micro_steps) == (precision, micro_steps)
    assert tokens_a_step(run_with(**config)) == 2 * 4 * micro_steps * 1024


def test_every_part_of_the_work_counts() -> None:
    work = work_of(manifest())
    changes = {
        "model": "gpt2", "num_params": 1, "micro_batch": 1, "num_micro_steps": 2, "sequence": None, "precision": "fp16",
        "device": "cpu",
    }  # fmt: skip
    assert [*changes] == [*work.__struct_fields__]
    for name, value in changes.items():
        assert len(differences(replace(work, **{name: value}), work)) == 1
    assert differences(work, work) == ()
    assert differences(replace(work, sequence=None), work) == ("tokens a sequence unknown, not 1024",)
