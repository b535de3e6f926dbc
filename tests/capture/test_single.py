"""The compute baseline: one device, no engine, and the same work as a rank at a ZeRO stage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.capture.test_captures import load_manifest, load_trace
from tests.capture.test_owners import bytes_by_owner, load_owners
from tests.captures import CpuCaptures
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.capture.models import MODELS
from zerotrace.cli.capture import capture
from zerotrace.errors import CaptureError
from zerotrace.labels import LabelEvent, parse_label

PSI = MODELS["nano"].num_params
ROOT = Path(__file__).resolve().parents[2]
FEW = ["--engine", "single", "--device", "cpu", "--warmup", "1", "--timed", "2", "--steps", "2", "--timeout", "120"]

#: Operators of the model's forward and backward and of AdamW. Not those that DeepSpeed has uses of its own for.
WORK = (
    "aten::addmm", "aten::mm", "aten::embedding", "aten::embedding_dense_backward", "aten::native_layer_norm",
    "aten::native_layer_norm_backward", "aten::gelu", "aten::gelu_backward", "aten::_log_softmax",
    "aten::_log_softmax_backward_data", "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward", "aten::sum", "torch::autograd::AccumulateGrad",
    "aten::lerp_", "aten::addcmul_", "aten::addcdiv_", "aten::sqrt",
)  # fmt: skip


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of the baseline, made by the command in an empty folder."""
    base = tmp_path_factory.mktemp("single")
    command = [sys.executable, "-m", "zerotrace", "capture", *FEW]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=base, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "traces/single\n"
    assert "Capturing nano with the engine single on 1 cpu rank (gloo) into traces/single" in done.stderr
    assert "has no labels" not in done.stderr
    return base / "traces" / "single"


def operators(folder: Path) -> Counter[str]:
    """Calls of each operator on rank 0, over two steps."""
    return Counter(e["name"] for e in load_trace(folder, 0)["traceEvents"] if e.get("cat") == "cpu_op")


@pytest.mark.capture
def test_the_manifest_says_that_there_was_no_engine(single: Path) -> None:
    manifest = load_manifest(single)
    assert (manifest["engine"], manifest["stage"], manifest["ds_config"]) == ("single", None, None)
    assert (manifest["world_size"], manifest["micro_batch"], manifest["sequence"]) == (1, 4, 64)
    assert manifest["model"]["num_params"] == PSI
    # The rank has not so much as imported it.
    assert "deepspeed" not in manifest["versions"]
    kinds = [window["kind"] for window in manifest["ranks"][0]["windows"]]
    assert kinds == ["warmup", "timed", "unlabelled", "labelled", "detailed", "memory"]
    assert sorted(path.name for path in single.iterdir()) == [
        "manifest.json", "rank_0.owners.json", "rank_0.pt.trace.json.gz",
    ]  # fmt: skip


@pytest.mark.capture
def test_the_baseline_does_the_work_of_a_rank(single: Path, cpu_captures: CpuCaptures) -> None:
    alone, rank = operators(single), operators(cpu_captures[0])
    assert {name: alone[name] for name in WORK} == {name: rank[name] for name in WORK}
    assert min(alone[name] for name in WORK) > 0
    # And none of what DeepSpeed adds.
    assert not [name for name in alone if name.startswith("c10d") or name in ("aten::isfinite", "aten::abs")]
    losses = [load_manifest(folder)["losses"] for folder in (single, cpu_captures[0])]
    assert losses[0][0] == losses[1][0]
    # bf16 resolves 1/32 at 7.
    assert losses[0] == pytest.approx(losses[1][: len(losses[0])], abs=1 / 16)


@pytest.mark.capture
def test_the_owners_are_mixed_precision_s(single: Path) -> None:
    found = bytes_by_owner(load_owners(single, 0))
    # AdamW's step counters.
    assert found.pop("other") < 1000
    assert found == {"params": 2 * PSI, "master": 4 * PSI, "exp_avg": 4 * PSI, "exp_avg_sq": 4 * PSI}


@pytest.mark.capture
def test_modules_and_the_optimizer_step_are_labelled(single: Path) -> None:
    assert load_manifest(single)["labels"]["missing"] == {}
    names = [e["name"] for e in load_trace(single, 0)["traceEvents"] if e.get("cat") == "user_annotation"]
    labels = [label for name in names if (label := parse_label(name))]
    assert Counter(label.event for label in labels if label.event is not LabelEvent.FORWARD) == {
        LabelEvent.MICRO_STEP: 2,
        LabelEvent.PHASE: 6,
        LabelEvent.OPTIMIZER_STEP: 2,
        LabelEvent.BACKWARD: sum(label.event is LabelEvent.BACKWARD for label in labels),
    }
    forward, backward = (
        {label.module for label in labels if label.event is event}
        for event in (LabelEvent.FORWARD, LabelEvent.BACKWARD)
    )
    assert {"", "blocks.0.attention.qkv", "tokens"} <= forward
    assert {"blocks.0.attention.qkv", "tokens"} <= backward


@pytest.mark.capture
def test_the_baseline_is_analysed_like_any_run(single: Path, tmp_path: Path) -> None:
    analysis, _, _ = analyze([single], tmp_path / "out", AnalyzeOptions(hta=False))
    assert [(part.rank, part.comm_ns) for part in analysis.partition] == [(0, 0), (0, 0)]
    assert analysis.verdict.headline.endswith("There is no communication.")
    assert analysis.verdict.overlap_ratio is None


def refused(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(capture, words, env=variables)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--stage 2", "--stage belongs to DeepSpeed"),
        ("--gpus 2", "leave out --gpus, or pass --gpus 1"),
        ("--nnodes 2 --node-rank 0 --rdzv-endpoint a:1", "trains on one device"),
        ("--hostfile hosts", "leave out --hostfile"),
        ("--ds-config x.json --set a=1", "--ds-config and --set belong to DeepSpeed"),
        ("--script train.py", "for a program of yours pass --engine auto"),
        ("--keep-running", "--keep-running needs --script"),
    ],
)
def test_what_only_deepspeed_has_is_a_usage_error(words: str, said: str) -> None:
    done = refused("--engine", "single", *words.split())
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_several_ranks_of_a_job_are_refused() -> None:
    job = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}
    done = refused("--engine", "single", "--device", "cpu", **job)
    assert isinstance(done.exception, CaptureError)
    assert done.exception.code == "job_conflict"


def test_a_baseline_needs_no_deepspeed(monkeypatch: pytest.MonkeyPatch, make_plan: Any) -> None:
    from importlib.util import find_spec

    from zerotrace.cli.request import Request, make_nodes
    from zerotrace.cli.request import make_plan as plan_of

    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "deepspeed" else find_spec(name))
    given = dict.fromkeys(
        ("stage", "num_ranks", "model", "num_profiled", "num_warmup", "num_timed", "micro_batch", "sequence", "seed",
         "ds_config", "script")
    )  # fmt: skip
    request = Request(
        engine="single", device="cpu", windows=("timed",), timeout_s=1.0, settings=(), args=(), keep_running=False,
        command=("zerotrace",), **given,
    )  # fmt: skip
    plan = plan_of(request, make_nodes(1, None, None))
    assert (plan.num_ranks, plan.stage, plan.ds_config, plan.default_name) == (1, None, None, "single")
    with pytest.raises(ValueError, match="stage and ds_config are for DeepSpeed"):
        make_plan(engine="single", num_ranks=1)
    with pytest.raises(ValueError, match="the engine 'single' has 1"):
        make_plan(engine="single", num_ranks=2, stage=None, ds_config=None)


@pytest.mark.capture
def test_the_baseline_can_be_the_one_rank_of_a_job(tmp_path: Path) -> None:
    program = "import sys; from zerotrace.cli import main; sys.argv[0] = 'zerotrace'; main()"
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    (tmp_path / "start.py").write_text(program)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
               "--nproc-per-node", "1", "start.py", "capture", *FEW, "--windows", "timed"]  # fmt: skip
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "traces" / "single" / "manifest.json").read_text())
    assert (manifest["engine"], manifest["stage"], manifest["sequence"], manifest["seed"]) == ("single", None, 64, 1337)
