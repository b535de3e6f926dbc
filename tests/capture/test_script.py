"""Programs that know nothing of zerotrace, captured with `--script`; and one that captures itself in two lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.cli.capture import capture
from zerotrace.errors import CaptureError

pytestmark = [pytest.mark.capture, pytest.mark.usefixtures("no_orphans")]

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]
FEW = ["--warmup", "1", "--timed", "2", "--steps", "1", "--device", "cpu", "--timeout", "240"]


@pytest.fixture(autouse=True)
def in_a_folder_with_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "bf16": {"enabled": True},
        "zero_allow_untested_optimizer": True,
        "zero_optimization": {"stage": 1},
    }
    Path("ds.json").write_text(json.dumps(config))


def run(*options: str, program: Path = PROGRAMS / "plain.py", args: tuple[str, ...] = ()) -> Result:
    words = [*options, *FEW, "--script", str(program), "--", *args]
    return CliRunner().invoke(capture, words)


def refused(result: Result) -> CaptureError:
    assert isinstance(result.exception, CaptureError), result.output
    return result.exception


def manifest_of(folder: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(folder) / "manifest.json").read_text())
    return content


def test_an_unchanged_program_is_captured_at_the_stage_asked_for_and_ended() -> None:
    args = ("--deepspeed_config", "ds.json", "--local_rank", "{local_rank}")
    done = run("--stage", "3", "--gpus", "2", "--set", "zero_optimization.reduce_bucket_size=5e6", args=args)
    assert done.exception is None, done.output
    assert done.stdout == "traces/stage3\n"
    assert "has stage 1; --stage 3 replaced it" in done.stderr
    manifest = manifest_of("traces/stage3")
    assert (manifest["stage"], manifest["world_size"], manifest["micro_batch"]) == (3, 2, 2)
    assert manifest["ds_config"]["zero_optimization"] == {"stage": 3, "reduce_bucket_size": 5_000_000}
    assert manifest["model"]["name"] == "plain.py"
    assert manifest["model"]["num_params"] == 3 * (128 * 128 + 128)
    assert manifest["model"]["num_layers"] is None
    # A step is an optimizer step, of two micro-steps.
    analysis, _, _ = analyze([Path("traces/stage3")], options=AnalyzeOptions(hta=False))
    assert {part.rank for part in analysis.partition} == {0, 1}
    assert len(manifest["losses"]) >= 4


def test_a_program_that_goes_on_keeps_its_own_end_and_its_capture() -> None:
    program = Path("broken.py")
    program.write_text((PROGRAMS / "plain.py").read_text() + "\nraise SystemExit(5)\n")
    args = ("--deepspeed_config", "ds.json", "--steps", "60", "--local_rank", "{local_rank}")
    failed = refused(run("--stage", "1", "--gpus", "1", "--keep-running", program=program, args=args))
    assert failed.exit_code == 5
    assert "the capture is complete, in traces/stage1" in str(failed.hint)
    manifest = manifest_of("traces/stage1")
    assert (manifest["stage"], manifest["notes"]) == (1, [])


@pytest.mark.parametrize(
    ("program", "args", "code", "said"),
    [
        (
            "plain.py",
            ("--deepspeed_config", "ds.json", "--steps", "4"),
            "too_few_steps",
            "ended after 2 optimizer step",
        ),
        ("other.py", (), "no_engine", "without a call of deepspeed.initialize"),
    ],
)
def test_a_program_that_gives_nothing_to_measure_is_one_error(
    program: str, args: tuple[str, ...], code: str, said: str
) -> None:
    Path("other.py").write_text("print('no training here')")
    path = PROGRAMS / program if (PROGRAMS / program).exists() else Path(program)
    error = refused(run("--stage", "1", "--gpus", "1", program=path, args=(*args, "--local_rank", "{local_rank}")))
    assert (error.code, error.exit_code) == (code, 1)
    assert said in str(error)
    assert "traces/stage1.failed" in str(error.hint)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--stage 1 --gpus 1 --script gone.py", "script_missing"),
        ("--stage 1 --gpus 1 --script ds.json --set zero_optimization.stage=2", "ds_config_protected"),
        ("--stage 1 --gpus 1 --script ds.json --set zero_optimization.reduce_bucket_siz=2", "ds_config_key_unknown"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(words: str, code: str) -> None:
    assert refused(CliRunner().invoke(capture, [*words.split(), "--device", "cpu"])).code == code
    assert not Path("traces").exists()


@pytest.mark.parametrize(
    "words",
    [
        "--stage 1 --gpus 1 --script x.py --model nano",
        "--stage 1 --gpus 1 --script x.py --micro-batch 2",
        "--stage 1 --gpus 1 --script x.py --warmup 0",
        "--stage 1 --gpus 1 --keep-running",
        "--stage 1 --gpus 1 stray",
        "--stage 1 --gpus 1 -- stray",
    ],
)
def test_options_that_do_not_go_with_a_script_are_usage_errors(words: str) -> None:
    assert CliRunner().invoke(capture, words.split()).exit_code == 2


def test_huggingface_s_trainer_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    auto = dict.fromkeys(
        ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size", "gradient_clipping"),
        "auto",
    )
    config = {**auto, "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2}}
    Path("hf.json").write_text(json.dumps(config))
    done = run("--stage", "3", "--gpus", "2", program=PROGRAMS / "trainer.py", args=("hf.json", "unused"))
    assert done.exception is None, done.output
    manifest = manifest_of("traces/stage3")
    assert manifest["ds_config"]["gradient_accumulation_steps"] == 2
    assert manifest["ds_config"]["zero_optimization"]["stage"] == 3
    assert [record["rank"] for record in manifest["ranks"]] == [0, 1]
    assert all(loss > 0 for loss in manifest["losses"])


OWN = """
import sys
import deepspeed, torch
from zerotrace.capture import init_process_group, session

init_process_group()
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
config = {"train_micro_batch_size_per_gpu": 2, "zero_allow_untested_optimizer": True, "zero_optimization": {"stage": 2},
          "bf16": {"enabled": True}}
engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)
with session(engine, out="mine", warmup=1, timed=1, steps=1) as capture:
    for _ in range(int(sys.argv[1])):
        loss = engine(torch.randn(2, 8, dtype=torch.bfloat16)).float().pow(2).mean()
        engine.backward(loss)
        engine.step()
        capture.step(loss)
"""


def torchrun(*words: str, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
               "--nproc-per-node", str(ranks), *words]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


def test_two_lines_capture_a_program_under_its_own_torchrun() -> None:
    Path("own.py").write_text(OWN)
    done = torchrun("own.py", "12")
    assert done.returncode == 0, done.stderr
    manifest = manifest_of("mine")
    assert (manifest["stage"], manifest["world_size"], manifest["backend"]) == (2, 2, "gloo")
    assert manifest["command"] == ["own.py", "12"]
    assert [record["trace_file"] for record in manifest["ranks"]] == [
        "rank_0.pt.trace.json.gz",
        "rank_1.pt.trace.json.gz",
    ]
    assert all((Path("mine") / record["trace_file"]).is_file() for record in manifest["ranks"])
    assert [path.name for path in Path().glob("*mine*")] == ["mine"]


def test_two_lines_in_a_loop_that_is_too_short_leave_a_folder_that_says_so() -> None:
    Path("own.py").write_text(OWN)
    done = torchrun("own.py", "2", ranks=1)
    assert done.returncode != 0
    assert "the training loop ended after 2 steps" in done.stderr
    assert not Path("mine").exists()
    assert Path("mine.failed").is_dir()


def test_a_task_of_a_slurm_job_is_a_rank() -> None:
    words = [sys.executable, "-m", "zerotrace", "capture", "--stage", "3", "--out", "job", *FEW,
             "--script", str(PROGRAMS / "plain.py"), "--", "--deepspeed_config", "ds.json",
             "--local_rank", "{local_rank}", "--width=128"]  # fmt: skip
    step = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NODEID": "0",
            "SLURM_JOB_ID": str(os.getpid()), "PYTHONPATH": str(ROOT)}  # fmt: skip
    tasks = [
        subprocess.Popen(
            words,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **step, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(task)},
        )
        for task in range(2)
    ]
    said = [task.communicate(timeout=300)[1] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], said
    assert "zerotrace: the capture is in job" in said[0]
    manifest = manifest_of("job")
    assert (manifest["stage"], manifest["world_size"], manifest["model"]["name"]) == (3, 2, "plain.py")
    assert manifest["command"][:4] == ["zerotrace", "capture", "--stage", "3"]
    assert manifest["command"][-8:-5] == ["--script", "(a path)", "--"]
    analysis, _, _ = analyze([Path("job")], options=AnalyzeOptions(hta=False))
    assert {source.host for source in analysis.sources} == {"host-0"}
    assert not list(Path("job").glob("ranks"))
