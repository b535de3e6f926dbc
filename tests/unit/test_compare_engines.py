"""All engines in one comparison: labels, what is held against what, and whether losses say that the work is equal."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.unit.test_compare_deltas import labels, single, stage
from zerotrace.analysis.captured import CapturedRun
from zerotrace.analysis.compare import compare
from zerotrace.analysis.compare.losses import TOLERANCE
from zerotrace.analysis.compare.settings import is_same_setup
from zerotrace.model import BucketRecord

LOSSES = (8.0, 7.9375, 7.875)


def engine(name: str, step_ms: int = 100, losses: tuple[float | None, ...] = (), **settings: Any) -> CapturedRun:
    run = stage(0, step_ms, name=f"traces/{name}-{len(settings)}")
    told = replace(run.manifest, engine=name, stage=None, ds_config=None, engine_settings=settings, losses=losses)
    return replace(run, manifest=told)


def with_losses(run: CapturedRun, *losses: float | None, **changes: Any) -> CapturedRun:
    return replace(run, manifest=replace(run.manifest, losses=losses, **changes))


def test_each_engine_is_held_against_the_stage_that_does_the_same() -> None:
    kept = engine("fsdp2", reshard_after_forward=False)
    runs = [stage(0, 100), stage(1, 100), stage(3, 100), engine("ddp"), engine("zero1"), engine("fsdp2"), kept]
    found = compare(runs)
    assert [run.label for run in found.runs][3:] == ["DDP", "ZeRO-1 (torch)", "FSDP2", "FSDP2, kept"]
    assert [labels(found, delta) for delta in found.deltas] == [
        ("stage 0", "stage 1"), ("stage 1", "stage 3"), ("stage 0", "DDP"), ("stage 1", "ZeRO-1 (torch)"),
        ("stage 3", "FSDP2"), ("FSDP2", "FSDP2, kept"),
    ]  # fmt: skip
    assert [delta.is_rung for delta in found.deltas] == [True, True, False, False, False, False]


def test_without_its_twin_an_engine_is_held_against_what_is_next_to_it() -> None:
    kept = engine("fsdp2", reshard_after_forward=False)
    found = compare([stage(0, 100), stage(3, 100), kept])
    assert labels(found, found.deltas[-1]) == ("stage 3", "FSDP2, kept")
    found = compare([engine("ddp"), engine("zero1"), engine("fsdp2"), kept])
    assert [labels(found, delta) for delta in found.deltas] == [
        ("DDP", "ZeRO-1 (torch)"), ("DDP", "FSDP2"), ("FSDP2", "FSDP2, kept"),
    ]  # fmt: skip


def test_settings_of_an_engine_make_another_configuration_and_those_of_others_do_not() -> None:
    small, large = engine("ddp", bucket_cap_mb=1), engine("ddp", bucket_cap_mb=25)
    assert not is_same_setup(small.manifest, large.manifest)
    found = compare([small, large, engine("fsdp2", reshard_after_forward=True)])
    told = [(one.key, one.values) for one in found.settings if one.section == "engine settings"]
    assert told == [("bucket_cap_mb", ("1", "25", None))]


def test_losses_that_agree_to_what_bf16_resolves_are_equal_work() -> None:
    found = compare([with_losses(stage(0, 100), *LOSSES), engine("ddp", losses=(8.0, 7.9375, 7.90625))])
    check = found.runs[1].loss_check
    assert check is not None
    # 1/32 at 7.9 in the last of three
    assert check.rms_ratio == pytest.approx((7.90625 - 7.875) / 7.90625 / 3**0.5)
    assert (check.first_ratio, check.num_steps, check.equal, check.tolerance_ratio) == (0.0, 3, True, TOLERANCE)
    assert found.runs[1].differences == ()


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ((8.125, 7.9375, 7.875), "first loss 1.54 % apart, where bf16 resolves 0.78 %"),
        ((8.0, 7.75, 7.5), "losses 3.07 % apart over 3 steps, where bf16 resolves 0.78 %"),
    ],
)
def test_losses_that_do_not_agree_make_runs_that_do_not_compare(losses: tuple[float, ...], words: str) -> None:
    found = compare([with_losses(stage(0, 100), *LOSSES), engine("ddp", losses=losses), stage(1, 90)])
    assert found.runs[1].differences == (words,)
    assert any("does not compare" in note and words in note for note in found.notes)
    assert [labels(found, delta) for delta in found.deltas] == [("stage 0", "stage 1")]
    assert "Left out: DDP, of other work." in found.headline


def test_on_other_ranks_the_first_loss_alone_has_to_agree() -> None:
    runs = [with_losses(single(50), *LOSSES), engine("ddp", losses=(8.0, 7.0, 6.0))]
    check = compare(runs).runs[1].loss_check
    assert check is not None
    assert (check.rms_ratio, check.equal) == (None, True)


@pytest.mark.parametrize("changes", [{"seed": 7}, {"seed": None}, {"losses": ()}, {"losses": (None, 7.0)}])
def test_other_seeds_and_unknown_losses_are_not_compared(changes: dict[str, Any]) -> None:
    run = engine("ddp", losses=(9.0, 9.0, 9.0))
    found = compare([with_losses(stage(0, 100), *LOSSES), replace(run, manifest=replace(run.manifest, **changes))])
    assert (found.runs[1].loss_check, found.runs[1].differences) == (None, ())


def test_an_engine_that_reduces_fp32_gradients_does_other_work() -> None:
    run = engine("ddp")
    wide = BucketRecord(elements=1, bytes=4, dtype="float32", params=())
    found = compare([stage(0, 100), replace(run, manifest=replace(run.manifest, buckets=(wide,)))])
    assert found.runs[1].differences == ("precision fp32, not bf16",)
