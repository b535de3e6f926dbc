"""Repeats and their spread, the ladder's price, variants, and what differs in how runs were made."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.page.runs import MS, training_run
from tests.unit.test_compare import captured, single
from zerotrace.analysis.captured import CapturedRun
from zerotrace.analysis.compare import compare
from zerotrace.analysis.compare.settings import differing_settings, is_same_setup
from zerotrace.model import Change, Comparison, Delta, Quantity

GIB = 1 << 30


def stage(number: int, *step_ms: int, gib: float = 10, name: str | None = None, **changes: Any) -> CapturedRun:
    zero = {"stage": number, **changes.pop("zero", {})}
    config = {"bf16": {"enabled": True}, "zero_optimization": zero}
    run = captured(name or f"traces/stage{number}", *step_ms, stage=number, ds_config=config, **changes)
    ranks = tuple(replace(rank, resident_bytes=int(gib * GIB), peak_bytes=20 * GIB) for rank in run.manifest.ranks)
    return replace(run, manifest=replace(run.manifest, ranks=ranks))


def again(run: CapturedRun, name: str, *step_ms: int) -> CapturedRun:
    """The same run once more, with other step times."""
    repeat = captured(name, *step_ms).manifest.ranks
    ranks = tuple(replace(rank, windows=new.windows) for rank, new in zip(run.manifest.ranks, repeat, strict=True))
    return CapturedRun(name=name, manifest=replace(run.manifest, created="2026-01-03", seed=7, ranks=ranks))


def change_of(delta: Delta, quantity: Quantity) -> Change:
    return next(change for change in delta.changes if change.quantity is quantity)


def labels(found: Comparison, delta: Delta) -> tuple[str, str]:
    return found.repeats[delta.before].label, found.repeats[delta.after].label


def test_each_rung_has_its_price_from_the_lowest_stage_up() -> None:
    found = compare([stage(3, 300, gib=7), single(50), stage(0, 100), stage(1, 120, gib=6)])
    assert [labels(found, delta) for delta in found.deltas] == [("stage 0", "stage 1"), ("stage 1", "stage 3")]
    assert all(delta.is_rung for delta in found.deltas)
    step = change_of(found.deltas[1], Quantity.STEP)
    assert (step.before, step.after, step.difference, step.equal) == (120 * MS, 300 * MS, 180 * MS, False)
    assert [delta.words for delta in found.deltas] == [
        "Stage 1 costs 20.0 ms more a step than stage 0, saves 4.00 GiB between steps, and holds as much at the peak.",
        "Stage 3 costs 180 ms more a step than stage 1, holds 1.00 GiB more between steps, and holds as much at the "
        "peak.",
    ]


def test_a_difference_within_the_spread_of_repeats_is_called_equal() -> None:
    zero = stage(0, 100)
    found = compare([zero, again(zero, "traces/again", 140), stage(1, 130), stage(2, 200)])
    assert [group.runs for group in found.repeats] == [(0, 1), (2,), (3,)]
    spread = found.repeats[0].figures[Quantity.STEP]
    assert (spread.min, spread.median, spread.max) == (100 * MS, 120 * MS, 140 * MS)
    first, second = (change_of(delta, Quantity.STEP) for delta in found.deltas)
    # Repeats are 40 ms apart, so that 130 − 120 ms is nothing; the next two have no repeats to be held against.
    assert (first.difference, first.noise, first.equal) == (10 * MS, 40 * MS, True)
    assert (second.noise, second.equal) == (None, False)
    assert found.deltas[0].words.startswith("Stage 1 takes as long a step as stage 0 (within noise: 10.0 ms apart), ")
    assert found.repeats[0].words == (
        "stage0 and again repeat one configuration, so that differences as small as theirs are noise: a step takes "
        "100 ms to 140 ms, a rank holds 10.0 GiB between steps, 20.0 GiB at the peak."
    )
    assert found.repeats[1].words is None


def test_the_step_s_own_noise_counts_too() -> None:
    # Median absolute deviations of 2 ms on four steps: standard errors of 1.858 ms, twice their hypotenuse is 5.26 ms.
    found = compare([stage(0, 98, 100, 102, 104), stage(1, 102, 104, 106, 108)])
    step = change_of(found.deltas[0], Quantity.STEP)
    assert step.noise == pytest.approx(2 * 2**0.5 * 1.2533 * 1.4826 * MS)
    assert (step.difference, step.equal) == (4 * MS, True)
    assert not change_of(compare([stage(0, 98, 100, 102, 104), stage(1, 108, 110, 112, 114)]).deltas[0],
                         Quantity.STEP).equal  # fmt: skip


def test_memory_without_repeats_is_equal_to_the_byte_alone() -> None:
    found = compare([stage(1, 100, gib=6), stage(2, 100, gib=6)])
    resident = change_of(found.deltas[0], Quantity.RESIDENT)
    assert (resident.difference, resident.noise, resident.equal) == (0, None, True)
    assert found.deltas[0].words == (
        "Stage 2 takes as long a step as stage 1, and holds as much between steps and at the peak."
    )


def test_a_variant_is_held_against_its_own_stage() -> None:
    small = stage(2, 110, name="traces/small", zero={"reduce_bucket_size": 50_000_000})
    found = compare([stage(1, 100), stage(2, 105), small])
    assert [(labels(found, delta), delta.is_rung) for delta in found.deltas] == [
        (("stage 1", "stage2"), True),
        (("stage2", "small"), False),
    ]
    assert found.deltas[1].words.startswith("small costs 5.00 ms more a step than stage2, ")


def test_without_a_ladder_each_is_held_against_the_first() -> None:
    found = compare([single(50), stage(3, 300)])
    assert [(labels(found, delta), delta.is_rung) for delta in found.deltas] == [(("single device", "stage 3"), False)]


def test_other_work_and_other_worlds_are_no_rungs() -> None:
    other = stage(1, 90, micro_batch=8)
    wide = stage(2, 95, world_size=4)
    found = compare([stage(0, 100), other, wide, stage(3, 300)])
    assert [labels(found, delta) for delta in found.deltas] == [("stage 0", "stage 3")]


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        (
            [stage(0, 100), stage(1, 90, gib=6), stage(2, 90, gib=6)],
            "Stage 1 and stage 2 are fastest: 90.0 ms a step. Stage 1 and stage 2 hold least between steps: 6.00 GiB.",
        ),
        (
            [single(50), stage(0, 100), stage(3, 300)],
            "Stage 0 is fastest: 100 ms a step. Both hold the same between steps: 10.0 GiB. "
            "Left out: single device, on 1 rank.",
        ),
        (
            [stage(0, 100), stage(1, 90), single(50), stage(2, 80, micro_batch=8), stage(3, 70, world_size=4)],
            "Stage 1 is fastest: 90.0 ms a step. Both hold the same between steps: 10.0 GiB. "
            "Left out: single device, on 1 rank; stage 2, of other work; stage 3, on 4 ranks.",
        ),
        ([stage(0), stage(1, gib=6)], "Stage 1 holds least between steps: 6.00 GiB."),
        (
            [single(50), stage(0, 100)],
            "Single device is fastest: 50.0 ms a step. Both hold the same between steps: 10.0 GiB.",
        ),
        ([stage(0, 100), stage(1, 90, micro_batch=8)], "There are no two configurations here that do the same work."),
    ],
)
def test_the_headline_names_the_fastest_and_the_least(runs: list[CapturedRun], words: str) -> None:
    assert compare(runs).headline == words


def test_equals_within_noise_share_the_headline() -> None:
    zero = stage(0, 100)
    found = compare([zero, again(zero, "traces/again", 140), stage(1, 130, gib=6)])
    assert found.headline == (
        "Both take the same time within noise: 120 ms a step. Stage 1 holds least between steps: 6.00 GiB."
    )


def test_a_capture_that_is_given_twice_is_no_repeat() -> None:
    zero = stage(0, 100)
    found = compare([zero, zero])
    assert [group.runs for group in found.repeats] == [(0,)]
    assert [run.label for run in found.runs] == ["traces/stage0 (1)", "traces/stage0 (2)"]


def test_a_configuration_is_not_called_as_another_one_is() -> None:
    three = stage(3, 300, name="traces/a")
    namesake = replace(single(60, micro_batch=8), name="traces/stage 3")
    found = compare([three, again(three, "traces/b", 310), single(50), namesake])
    assert [run.label for run in found.runs] == ["a", "b", "single", "stage 3"]
    assert [group.label for group in found.repeats] == ["a", "single", "stage 3"]


def test_labels_are_short_and_unlike() -> None:
    runs = [stage(3, 1, name="a/x"), stage(3, 2, name="b/x"), stage(3, 3, name="b/y"), stage(0, 4), single(5)]
    assert [run.label for run in compare(runs).runs] == ["a/x", "b/x", "y", "stage 0", "single device"]


def test_settings_list_what_differs_and_nothing_else() -> None:
    runs = [
        single(5, environment={}),
        stage(0, 5, environment={"NCCL_ALGO": "Ring", "NCCL_VERSION": "1"}),
        stage(3, 5, zero={"overlap_comm": True}, versions={"torch": "2.12.0", "deepspeed": "0.19.8"}, environment={}),
    ]
    found = {(one.section, one.key): one.values for one in differing_settings([run.manifest for run in runs])}
    assert found == {
        ("run", "engine"): ('"single"', '"deepspeed"', '"deepspeed"'),
        ("run", "stage"): (None, "0", "3"),
        ("run", "ranks"): ("1", "2", "2"),
        ("run", "devices"): ('"1 × NVIDIA H200"', '"2 × NVIDIA H200"', '"2 × NVIDIA H200"'),
        ("DeepSpeed configuration", "zero_optimization.stage"): (None, "0", "3"),
        ("DeepSpeed configuration", "zero_optimization.overlap_comm"): (None, None, "true"),
        ("versions", "torch"): ('"2.11.0"', '"2.11.0"', '"2.12.0"'),
        ("environment", "NCCL_ALGO"): (None, '"Ring"', None),
    }
    assert differing_settings([runs[1].manifest] * 2) == ()


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"seed": 1, "created": "2027"}, True),
        ({"micro_batch": 8}, False),
        ({"environment": {}}, False),
        ({"ds_config": {"zero_optimization": {"stage": 3, "overlap_comm": False}}}, False),
    ],
)
def test_only_seed_and_date_may_differ_between_repeats(changes: dict[str, Any], same: bool) -> None:
    manifest = stage(3, 5).manifest
    assert is_same_setup(manifest, replace(manifest, **changes)) is same


def test_without_an_analysis_the_ledgers_stand_alone() -> None:
    run = compare([stage(3, 100)]).runs[0]
    assert (run.causes, run.no_causes, run.sent) == (None, "not analysed", None)
    assert run.resident.owners == ()
    assert run.resident.owners_bytes is None
    # 16Ψ/N on two ranks.
    assert run.resident.paper_bytes == 8 * 774_090_000
    assert run.resident.deepspeed_bytes is not None and run.peak.deepspeed_bytes is not None
    assert run.resident.deepspeed_bytes < run.peak.deepspeed_bytes
    assert run.peak.paper_bytes is None


def test_hidden_ratios_come_from_the_analysis() -> None:
    analysis = training_run().analysis
    run = compare([replace(stage(3, 4), analysis=analysis)]).runs[0]
    comm = sum(rank.comm_ns for rank in analysis.ranks)
    assert run.overlap_ratio == pytest.approx(sum(rank.overlapped_ns for rank in analysis.ranks) / comm)
    assert run.hidden_ratio is None
