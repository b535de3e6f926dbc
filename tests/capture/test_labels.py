"""Labels in real traces: every gather of stage 3 is there, held against a count by other means."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.capture.test_captures import load_manifest, load_trace
from tests.captures import NUM_PROFILED, NUM_RANKS, CpuCaptures
from zerotrace.capture.ds_config import build_ds_config
from zerotrace.capture.folder import reserve_folder
from zerotrace.capture.launch import run_capture
from zerotrace.capture.machine import find_runner
from zerotrace.capture.plan import CapturePlan
from zerotrace.labels import GatherKind, Label, LabelEvent, Phase, is_label, parse_label

pytestmark = pytest.mark.capture

PROGRAM = Path(__file__).parent / "programs" / "counting.py"


@dataclass(frozen=True)
class Span:
    name: str
    start: float
    end: float
    label: Label | None

    def holds(self, other: Span) -> bool:
        return self.start <= other.start and other.end <= self.end


def spans_of(trace: dict[str, Any]) -> list[Span]:
    """The complete events of a trace, labels parsed; each claimed label must be readable."""
    found = []
    for event in trace["traceEvents"]:
        if event["ph"] != "X":
            continue
        label = parse_label(event["name"])
        assert label is not None or not is_label(event["name"]), event["name"]
        found.append(Span(event["name"], event["ts"], event["ts"] + event["dur"], label))
    return sorted(found, key=lambda span: (span.start, -span.end))


def marked(spans: list[Span], event: LabelEvent, **fields: Any) -> list[Span]:
    return [
        span
        for span in spans
        if span.label is not None
        and span.label.event is event
        and all(getattr(span.label, name) == value for name, value in fields.items())
    ]


@pytest.fixture(scope="module")
def gathering(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """Stage 3 with two micro-steps and little room: gathers of every kind. With the counts of each rank and step."""
    base = tmp_path_factory.mktemp("gathering")
    keys = {
        "stage3_prefetch_bucket_size": 200_000,
        "stage3_max_live_parameters": 200_000,
        "stage3_max_reuse_distance": 0,
    }
    settings = [(f"zero_optimization.{key}", value) for key, value in keys.items()]
    config = build_ds_config(
        stage=3, micro_batch=2, num_ranks=NUM_RANKS, settings=[*settings, ("gradient_accumulation_steps", 2)]
    )
    plan = CapturePlan(
        stage=3, num_ranks=NUM_RANKS, device="cpu", model="nano", micro_batch=2, sequence=32, seed=1, num_warmup=2,
        num_timed=0, num_profiled=2, timeout_s=120, ds_config=config,
    )  # fmt: skip
    args = ["--model", "nano", "--ds-config", json.dumps(config), "--sequence", "32", "--steps", str(plan.num_steps)]
    result = run_capture(
        plan,
        reserve_folder(base / "run", "stage3"),
        program=PROGRAM,
        program_args=[str(base / "counts"), str(find_runner("gpt2")), *args],
    )
    counts = [json.loads((base / f"counts.{rank}").read_text())[-2:] for rank in range(NUM_RANKS)]
    assert result.folder is not None
    return result.folder, counts


def steps_of(spans: list[Span]) -> Iterator[Span]:
    return (span for span in spans if span.name.startswith("ProfilerStep#"))


@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_every_all_gather_of_stage_3_is_in_one_labelled_gather(
    gathering: tuple[Path, list[list[int]]], rank: int
) -> None:
    folder, counts = gathering
    spans = spans_of(load_trace(folder, rank))
    gathers = marked(spans, LabelEvent.GATHER)
    launches = [span for span in spans if span.name == "c10d::_allgather_base_"]
    assert all(sum(gather.holds(launch) for gather in gathers) == 1 for launch in launches)
    assert [sum(step.holds(launch) for launch in launches) for step in steps_of(spans)] == counts[rank]
    # On a CPU, each submission is one collective: a coalesced one is for parameters of one dtype.
    assert len(gathers) == sum(counts[rank])


def test_gathers_say_why_when_and_what(gathering: tuple[Path, list[list[int]]]) -> None:
    folder, _ = gathering
    labels = [span.label for span in marked(spans_of(load_trace(folder, 0)), LabelEvent.GATHER) if span.label]
    kinds = Counter((label.kind, label.phase) for label in labels)
    assert kinds.keys() >= {
        (GatherKind.PREFETCH, Phase.FORWARD),
        (GatherKind.DEMAND, Phase.BACKWARD),
        (GatherKind.REFRESH, Phase.STEP),
    }
    assert [label.submission for label in labels] == list(range(len(labels)))
    for label in labels:
        assert label.elements and label.bytes == 2 * label.elements
        assert label.params and label.num_params and label.num_params >= len(label.params)
        if label.kind is GatherKind.DEMAND:
            # The head's weight is that of the embedding, and goes by its first name.
            owner = "tokens" if label.module == "head" else label.module
            assert all(name.rpartition(".")[0] == owner for name in label.params)
        if label.kind is GatherKind.REFRESH:
            assert label.num_params == 1


def test_all_ranks_number_and_name_their_gathers_alike(gathering: tuple[Path, list[list[int]]]) -> None:
    folder, _ = gathering
    names = [[span.name for span in marked(spans_of(load_trace(folder, rank)), LabelEvent.GATHER)]
             for rank in range(NUM_RANKS)]  # fmt: skip
    assert names[0] == names[1]


def test_micro_steps_lie_in_their_step(gathering: tuple[Path, list[list[int]]]) -> None:
    spans = spans_of(load_trace(gathering[0], 0))
    for step in steps_of(spans):
        inside = [span for span in marked(spans, LabelEvent.MICRO_STEP) if step.holds(span)]
        assert [span.label.number for span in inside if span.label] == [0, 1]
        for micro_step in inside:
            phases = [span.label.phase for span in marked(spans, LabelEvent.PHASE)
                      if span.label and micro_step.holds(span)]  # fmt: skip
            assert phases == [Phase.FORWARD, Phase.BACKWARD, Phase.STEP]
            assert [s for s in marked(spans, LabelEvent.REDUCE) if micro_step.holds(s)]
        # The optimizer runs once a step, however many micro-steps there are.
        assert len([span for span in marked(spans, LabelEvent.OPTIMIZER_STEP) if step.holds(span)]) == 1


def test_labels_nest(gathering: tuple[Path, list[list[int]]]) -> None:
    open_: list[Span] = []
    for span in spans_of(load_trace(gathering[0], 0)):
        if span.label is None:
            continue
        while open_ and open_[-1].end <= span.start:
            open_.pop()
        assert not open_ or open_[-1].holds(span), (open_[-1].name, span.name)
        open_.append(span)


@pytest.mark.parametrize("stage", range(4))
def test_each_stage_marks_its_modules_and_its_collectives(cpu_captures: CpuCaptures, stage: int) -> None:
    spans = spans_of(load_trace(cpu_captures[stage], 0))
    forward = Counter(span.label.module for span in marked(spans, LabelEvent.FORWARD) if span.label)
    backward = Counter(span.label.module for span in marked(spans, LabelEvent.BACKWARD) if span.label)
    for module in ("tokens", "blocks.3.fc", "ln_f"):
        assert (forward[module], backward[module]) == (NUM_PROFILED, NUM_PROFILED)
    assert forward[""] == NUM_PROFILED

    def launches(name: str, *within: LabelEvent) -> list[bool]:
        holders = [span for event in within for span in marked(spans, event)]
        return [any(h.holds(span) for h in holders) for span in spans if span.name == name]

    gradients = "c10d::_reduce_scatter_base_" if stage == 3 else "c10d::allreduce_"
    # Beside the gradients, the optimizer step reduces a norm.
    reduced = launches(gradients, LabelEvent.REDUCE, LabelEvent.OPTIMIZER_STEP)
    assert reduced and all(reduced)
    assert any(launches(gradients, LabelEvent.REDUCE))
    gathered = launches("c10d::_allgather_base_", LabelEvent.POST_STEP_GATHER, LabelEvent.GATHER)
    assert bool(gathered) == (stage > 0) and all(gathered)


@pytest.mark.parametrize("stage", range(4))
def test_the_manifest_says_which_hooks_were_there_and_what_they_cost(cpu_captures: CpuCaptures, stage: int) -> None:
    labels = load_manifest(cpu_captures[stage])["labels"]
    assert labels["version"] == 1
    assert labels["missing"] == {}
    assert {"modules", "forward", "backward", "step", "optimizer_step", "reduce"} <= set(labels["hooks"])
    assert ("gather" in labels["hooks"]) == (stage == 3)
    assert ("post_step_gather" in labels["hooks"]) == (stage in (1, 2))
    # Two labelled steps on a busy machine tell no more than the order of magnitude.
    assert 0.2 < labels["overhead_ratio"] < 5


def test_an_engine_without_anything_to_hook_is_captured_all_the_same(
    make_plan: Callable[..., CapturePlan], write_program: Callable[[str], Path], tmp_path: Path
) -> None:
    plan = make_plan(num_ranks=1, num_timed=1, num_profiled=1)
    result = run_capture(plan, reserve_folder(tmp_path / "out", "stage3"), program=write_program("pass"))
    labels = result.manifest.labels if result.manifest else None
    assert labels is not None
    assert labels.missing["optimizer_step"] == "the engine has no optimizer"
    assert labels.missing["forward"] == "Engine has no forward"
    assert labels.hooks == ("modules",)
