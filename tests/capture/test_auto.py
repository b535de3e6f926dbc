"""Programs of torch's own engines, unchanged, with `--script` and `--engine auto`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.capture.test_captures import load_trace
from tests.capture.test_labels import marked, spans_of
from tests.capture.test_owners import bytes_by_owner, load_owners
from zerotrace.cli.capture import capture
from zerotrace.errors import CaptureError
from zerotrace.labels import LabelEvent, Phase
from zerotrace.store import read_manifest

pytestmark = [pytest.mark.capture, pytest.mark.usefixtures("no_orphans")]

PROGRAM = Path(__file__).parent / "programs" / "torch_train.py"
FEW = ["--warmup", "2", "--timed", "1", "--steps", "1", "--device", "cpu", "--timeout", "240"]
PSI = 3 * (64 * 64 + 64) + 64 * 8 + 8


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*args: str, gpus: int = 2, program: Path = PROGRAM) -> Result:
    return CliRunner().invoke(
        capture, ["--engine", "auto", "--gpus", str(gpus), *FEW, "--script", str(program), "--", *args]
    )


#: Labels of traffic in a step of two micro-steps: two buckets of DDP, in the second one alone; four groups of FSDP in
#: each, of which FSDP1 keeps the root's from the forward to the backward.
TRAFFIC = {
    "ddp": {LabelEvent.REDUCE: 2},
    "zero1": {LabelEvent.REDUCE: 2, LabelEvent.POST_STEP_GATHER: 1},
    "fsdp1": {LabelEvent.REDUCE: 8, LabelEvent.GATHER: 14},
    "fsdp2": {LabelEvent.REDUCE: 8, LabelEvent.GATHER: 16},
}


@pytest.mark.parametrize("kind", TRAFFIC)
def test_an_unchanged_program_is_captured_with_the_engine_it_has(kind: str) -> None:
    done = run(kind)
    assert done.exception is None, done.output
    assert done.stdout == "traces/auto\n"
    folder = Path("traces/auto")
    manifest = read_manifest(folder)
    assert manifest is not None
    assert (manifest.engine, manifest.stage, manifest.micro_batch, manifest.world_size) == (kind, None, None, 2)
    assert (manifest.model.name, manifest.model.num_params) == ("torch_train.py", PSI)
    assert manifest.engine_settings and manifest.labels is not None and manifest.labels.missing == {}
    assert len(manifest.losses) == 8 and all(loss is not None and loss > 0 for loss in manifest.losses)
    found = spans_of(load_trace(folder, 0))
    counts = Counter(span.label.event for span in found if span.label)
    assert {event: counts[event] for event in TRAFFIC[kind]} == TRAFFIC[kind]
    holders = [span for event in TRAFFIC[kind] for span in marked(found, event)]
    launches = [span for span in found if span.name.startswith("c10d::")]
    assert all(sum(holder.holds(launch) for holder in holders) == 1 for launch in launches)
    assert len(launches) == sum(TRAFFIC[kind].values()) + (7 if kind == "zero1" else 0)
    # A step is an optimizer step, of two micro-steps.
    assert [span.label.number for span in marked(found, LabelEvent.MICRO_STEP)] == [0, 1]
    phases = [span.label.phase for span in marked(found, LabelEvent.PHASE)]
    assert phases == 2 * [Phase.FORWARD, Phase.BACKWARD] + [Phase.STEP]
    assert counts[LabelEvent.OPTIMIZER_STEP] == 1
    modules = {span.label.module for span in marked(found, LabelEvent.FORWARD)}
    assert modules == {"", "3", *(name for n in range(3) for name in (f"{n}", f"{n}.0", f"{n}.1"))}
    step = next(span for span in found if span.name.startswith("ProfilerStep#"))
    assert all(step.holds(span) for span in found if span.label)
    # The profiler starts and stops outside of what torch marks.
    assert all(step.holds(span) for span in found if span.name.startswith("Optimizer.step#"))
    held = bytes_by_owner(load_owners(folder, 0))
    assert held["other"] < 1000
    assert held["exp_avg"] == held["exp_avg_sq"] > 0


def refused(result: Result) -> CaptureError:
    assert isinstance(result.exception, CaptureError), result.output
    return result.exception


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("none",), "no_engine", "6 optimizer steps, none of an optimizer that holds parameters of a model in DDP"),
        (("ddp",), "too_few_steps", "ended after 5 optimizer steps"),
    ],
)
def test_a_program_that_gives_nothing_to_measure_is_one_error(args: tuple[str, ...], code: str, said: str) -> None:
    error = refused(run(*args, "--steps", "6", gpus=1))
    assert (error.code, error.exit_code) == (code, 1)
    assert said in str(error)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--engine auto --gpus 2", "--engine auto needs --script"),
        ("--engine auto --gpus 2 --script x.py --stage 3", "--stage belongs to DeepSpeed"),
        ("--engine auto --gpus 2 --script x.py --set a=1", "--set belongs to DeepSpeed"),
        ("--engine ddp --gpus 2 --script x.py", "for a program of yours pass --engine auto"),
        ("--gpus 2 --script x.py", "or --engine auto for the program as it is"),
    ],
)
def test_options_that_do_not_go_with_the_engine_are_usage_errors(words: str, said: str) -> None:
    done = CliRunner().invoke(capture, words.split())
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
