"""What is sent, and what no compute is left to hide: each rule fires where it should, and keeps silent where not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.page.runs import manifest
from zerotrace.analysis.findings import traffic
from zerotrace.labels import GatherKind, Label, LabelEvent, Phase
from zerotrace.model import Analysis, Finding, ModelShape

PSI = 800_000_000
MS = 1_000_000

Collective = tuple[str, int, float, float]

Run = Callable[..., Analysis]


@pytest.fixture
def run(analyse: Analyse, tmp_path: Path) -> Run:
    """Two ranks, one step of 300 ms with 100 ms of compute before collectives of (name, elements, start, end in ms)."""

    def build(*collectives: Collective, labels: tuple[Label | None, ...] = (), told: Any = None) -> Analysis:
        traces = []
        for rank in range(2):
            trace = TraceBuilder(rank, 2).step(2, 0, 300_000).compute(1000, 101_000)
            for place, (name, elements, start, end) in enumerate(collectives):
                trace.collective(name, 1000 * start, 1000 * end, elements=elements)
                if place < len(labels) and (label := labels[place]) is not None:
                    trace.label(label, 1000 * start - 8, 1000 * start - 1)
            # what comes after is launched at once: the device is held back
            trace.compute(250_000, 251_000, launched=1000)
            traces.append(trace)
        if told is not None:
            (tmp_path / "run").mkdir(exist_ok=True)
            (tmp_path / "run" / "manifest.json").write_bytes(msgspec.json.encode(told))
        return analyse(*traces)

    return build


def run_manifest(stage: int, **zero: Any) -> Any:
    shape = ModelShape(name="toy", num_params=PSI)
    return manifest(2, stage=stage, model=shape, ds_config={"zero_optimization": {"stage": stage, **zero}})


def one(found: Iterator[Finding]) -> Finding:
    (finding,) = found
    return finding


TWO_BUCKETS = (("allreduce", 500_000_000, 110.0, 150.0), ("allreduce", 300_000_000, 150.0, 174.0))
UPDATE = ("_allgather_base", PSI, 180.0, 200.0)


def test_gradients_by_all_reduce_are_found_with_bytes_time_and_knob(run: Run) -> None:
    found = one(traffic.all_reduce(run(*TWO_BUCKETS, UPDATE)))
    assert "1.60 GB a step for them, 800 MB more" in found.claim
    assert (found.numbers["extra_bytes"], found.numbers["wire_ratio"]) == (800e6, 3.0)
    assert found.cost_ns == 64 * MS
    assert found.knob == "zero_optimization.use_multi_rank_bucket_allreduce: false"
    assert found.gain is not None
    assert (found.gain.step_ns, found.gain.at_most) == (32 * MS, True)
    assert found.place is not None
    assert (found.place.rank, found.place.step, found.place.end_ns - found.place.start_ns) == (0, 2, 40 * MS)


def test_a_reduce_to_each_owner_is_no_finding(run: Run) -> None:
    by_reduce = tuple(("reduce", elements, start, end) for _, elements, start, end in TWO_BUCKETS)
    assert [*traffic.all_reduce(run(*by_reduce, UPDATE))] == []


def test_at_stage_0_an_all_reduce_is_what_theory_says(run: Run) -> None:
    assert [*traffic.all_reduce(run(*TWO_BUCKETS))] == []


def test_another_key_behind_the_all_reduce_is_not_named_this_one(run: Run) -> None:
    told = run_manifest(2, reduce_scatter=False)
    assert [*traffic.all_reduce(run(*TWO_BUCKETS, UPDATE, told=told))] == []


def test_what_is_won_is_no_more_than_what_holds_compute_back(run: Run) -> None:
    analysis = run(*TWO_BUCKETS, UPDATE)
    assert analysis.verdict.blocking_ns is not None
    little = replace(analysis.verdict.blocking_ns, max=5.0 * MS)
    found = one(traffic.all_reduce(replace(analysis, verdict=replace(analysis.verdict, blocking_ns=little))))
    assert found.gain is not None
    assert found.gain.step_ns == 5 * MS


def test_two_buckets_cannot_overlap(run: Run) -> None:
    told = run_manifest(2, overlap_comm=True)
    found = one(traffic.few_buckets(run(*TWO_BUCKETS, UPDATE, told=told)))
    assert "in 2 buckets" in found.claim
    assert "The largest holds 62.5 % of them (1.00 GB)" in found.evidence
    assert found.knob == "zero_optimization.reduce_bucket_size: 50000000 (now 500,000,000, the default)"
    assert found.cost_ns == 64 * MS
    assert found.gain is not None
    # 50 M of 800 M elements still lie open: 4 of 64 ms
    assert found.gain.step_ns == 60 * MS


def test_without_overlap_comm_that_is_the_first_knob(run: Run) -> None:
    found = one(traffic.few_buckets(run(*TWO_BUCKETS, UPDATE, told=run_manifest(2))))
    assert (found.knob or "").startswith(
        "zero_optimization.overlap_comm: true, and zero_optimization.reduce_bucket_size"
    )
    scattered = [("_reduce_scatter_base", *rest) for _, *rest in TWO_BUCKETS]
    staged = one(traffic.few_buckets(run(*scattered, told=run_manifest(3))))
    assert (staged.knob or "").startswith("zero_optimization.reduce_bucket_size"), "on by default at stage 3"


def test_many_buckets_are_no_finding(run: Run) -> None:
    many = tuple(("allreduce", PSI // 16, 110.0 + 4 * i, 114.0 + 4 * i) for i in range(16))
    assert [*traffic.few_buckets(run(*many, UPDATE))] == []


def test_two_buckets_under_compute_are_no_finding(run: Run) -> None:
    hidden = (("allreduce", 500_000_000, 10.0, 50.0), ("allreduce", 300_000_000, 60.0, 84.0))
    assert [*traffic.few_buckets(run(*hidden, UPDATE))] == []


def test_two_buckets_of_a_small_model_are_no_finding(run: Run) -> None:
    small = tuple((name, 1_000_000, start, end) for name, _, start, end in (*TWO_BUCKETS, UPDATE))
    assert [*traffic.few_buckets(run(*small))] == []


def test_one_bucket_a_micro_step_is_few_however_many_micro_steps(run: Run) -> None:
    told = replace(run_manifest(2), ds_config={"zero_optimization": {"stage": 2}, "gradient_accumulation_steps": 3})
    rounds = tuple(("allreduce", PSI, 110.0 + 20 * i, 128.0 + 20 * i) for i in range(3))
    assert "in 1 bucket," in one(traffic.few_buckets(run(*rounds, UPDATE, told=told))).claim


def gather(phase: Phase) -> Label:
    return Label(event=LabelEvent.GATHER, kind=GatherKind.DEMAND, phase=phase, elements=PSI, num_params=1)


STAGE_3 = (
    ("_allgather_base", PSI, 110.0, 120.0),
    ("_allgather_base", PSI, 130.0, 145.0),
    ("_reduce_scatter_base", PSI, 150.0, 170.0),
)
GATHERED_TWICE = (gather(Phase.FORWARD), gather(Phase.BACKWARD))


def test_parameters_gathered_again_for_backward_are_found_with_both_keys(run: Run) -> None:
    found = one(traffic.gathered_for_backward(run(*STAGE_3, labels=GATHERED_TWICE, told=run_manifest(3))))
    assert found.claim.startswith("100 % of the parameters are gathered again")
    assert found.cost_ns == 15 * MS
    assert found.knob is not None
    assert "stage3_max_live_parameters and stage3_max_reuse_distance: above 2Ψ = 1,600,000,000" in found.knob
    assert "stage3_max_live_parameters is 1000000000" in found.evidence
    assert found.gain is not None
    assert found.gain.step_ns == 15 * MS


def test_parameters_that_are_kept_are_no_finding(run: Run) -> None:
    once = (STAGE_3[0], STAGE_3[2])
    assert [*traffic.gathered_for_backward(run(*once, labels=GATHERED_TWICE[:1], told=run_manifest(3)))] == []


def test_without_labels_nobody_can_say_what_backward_gathers(run: Run) -> None:
    assert [*traffic.gathered_for_backward(run(*STAGE_3))] == []


@pytest.mark.parametrize("rule", traffic.RULES)
def test_no_traffic_is_no_finding(rule: Any, analyse: Analyse) -> None:
    assert [*rule(analyse(TraceBuilder().step(2, 0, 1000).compute(10, 20)))] == []
    alone = TraceBuilder(0, 2).step(2, 0, 1000).compute(10, 20).collective("allreduce", 100, 200, elements=PSI)
    assert [*rule(analyse(alone))] == [], "one rank alone does not tell transfer from waiting"
