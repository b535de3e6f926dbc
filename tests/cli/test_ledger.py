"""``zerotrace ledger`` as a person and as a script meet it."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.allocator import MIB, TinyAllocator
from zerotrace.cli import main

TRACES = Path(__file__).resolve().parents[2] / "traces"


def ledger(*words: str | Path) -> Result:
    return CliRunner().invoke(main, ["ledger", *map(str, words)], prog_name="zerotrace")


def content(*words: str | Path) -> dict[str, Any]:
    done = ledger(*words, "--json")
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_all_stages_of_a_number_of_parameters() -> None:
    done = ledger("--params", "774M", "--world", "8")
    assert done.exit_code == 0, done.output
    assert "Ψ = 774,000,000, N = 8" in done.stdout
    for words in ("16Ψ/N", "the reduce bucket (954 MiB, reduce_bucket_size)", "has none", "--stage N shows the lines"):
        assert words in done.stdout


def test_one_stage_shows_lines_with_formulas_and_sources() -> None:
    done = ledger("--model", "gpt2-large", "--world", "2", "--stage", "3")
    for words in (
        "2 B × 387,045,120",
        "2 B × 601,600 in 290 tensors",
        "_create_fp32_partitions",
        "loss: kept for backward",
    ):
        assert words in done.stdout
    assert "unknown" not in done.stdout


def test_json_holds_what_the_tables_show() -> None:
    stages = content("--params", "1013", "--world", "4")["stages"]
    assert [stage["paper"]["bytes"] for stage in stages] == [16208, 7091, 5571.5, 4052]
    assert [stage["deepspeed"]["estimate_bytes"] for stage in stages] == [None, None, 6584, None]
    line = stages[1]["deepspeed"]["lines"][0]
    assert {"owner", "what", "formula", "bytes", "source", "offloaded_bytes"} <= set(line)


def test_configuration_and_single_keys_change_the_ledger(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text(json.dumps({"bf16": {"enabled": True}, "zero_optimization": {"reduce_bucket_size": 1000}}))
    words = ("--model", "gpt2", "--world", "2", "--stage", "3")

    def bucket(*more: str | Path) -> int:
        lines = content(*words, *more)["stages"][0]["deepspeed"]["lines"]
        return next(line["bytes"] for line in lines if line["owner"] == "reduce_bucket")

    assert bucket("--ds-config", config) == 2048
    assert bucket("--ds-config", config, "--set", "zero_optimization.reduce_bucket_size=1e9") > 2e9
    assert bucket() > 1e9


def test_shapes_of_any_model(tmp_path: Path) -> None:
    shapes = tmp_path / "shapes.json"
    shapes.write_text(json.dumps({"a.weight": [1000, 1000], "a.bias": [1000]}))
    stage = content("--shapes", shapes, "--world", "2", "--stage", "3")["stages"][0]["deepspeed"]
    assert stage["num_params"] == 1_001_000
    assert [line["bytes"] for line in stage["lines"] if line["owner"] == "gathered_params"] == [2048]
    shapes.write_text("[1, ")
    assert ledger("--shapes", shapes, "--world", "2").exit_code == 1
    assert ledger("--shapes", tmp_path / "absent.json", "--world", "2").exit_code == 1


def test_what_it_would_take() -> None:
    done = ledger("--model", "gpt2-xl", "--world", "8", "--fit", "16GiB")
    assert done.exit_code == 0, done.output
    said = " ".join(done.stdout.split())
    assert said.startswith("Stage 3 with reduce_bucket_size=50000000")
    assert "fits 16.0 GiB" in said
    options = content("--params", "70B", "--world", "8", "--fit", "80GB")
    assert options["capacity_bytes"] == 80 * 10**9
    assert not options["activations_known"]
    assert options["options"][0]["fits"]
    assert options["options"][0]["host_bytes"] > 0
    assert "Nothing here fits" in ledger("--params", "70B", "--world", "1", "--fit", "1GiB").stdout


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "--world"),
        (("--world", "8"), "--params, --model or --shapes"),
        (("--params", "many", "--world", "8"), "no count"),
        (("--params", "7B", "--world", "0"), "--world"),
        (("--params", "7B", "--world", "8", "--stage", "4"), "--stage"),
        (("--params", "7B", "--model", "gpt2", "--world", "8"), "--model"),
        (("--params", "7B", "--world", "8", "--micro-batch", "4"), "--activations"),
        (("--params", "7B", "--world", "8", "--fit", "a lot"), "no size"),
        (("--snapshot", "x.pickle", "--world", "8"), "--snapshot"),
        (("--snapshot", "x.pickle", "--set", "bf16.enabled=true"), "--snapshot"),
        (("--snapshot", "x.pickle", "--gpu", "A100"), "--snapshot"),
        (("--params", "7B", "--world", "8", "--owners", "x.json"), "--owners names the blocks of a --snapshot"),
        (("--params", "7B", "--world", "8", "--gpu", "Potato"), "'Potato' is no GPU that is known here"),
        (("--model", "gpt3", "--world", "8"), "no model named 'gpt3'"),
        (("--params", "7B", "--world", "8", "--set", "a"), "not of the form KEY=VALUE"),
        (("--params", "7B", "--world", "8", "--set", "zero_optimization=3"), "expected a section"),
        (("--params", "7B", "--world", "8", "--set", "zero_optimization.stage=1"), "is set by --stage"),
        (("--params", "7B", "--world", "8", "--set", "zero_optimization.reduce_bucket_size=x"), "a whole number"),
        (("--params", "7B", "--world", "8", "--set", "train_batch_size=-1"), "train_batch_size is -1"),
        (("--params", "7B", "--world", "8", "--set", "gradient_accumulation_steps=0"), "above 0"),
        (("--params", "7B", "--world", "8", "--set", "train_micro_batch_size_per_gpu=2"), "is set by --micro-batch"),
        (("--model", "gpt2", "--world", "8", "--micro-batch", "4", "--set", "train_batch_size=33"), "do not make"),
        (
            ("--params", "7B", "--world", "8", "--set", "bf16.enabled=true", "--set", "fp16.enabled=true"),
            "bf16.enabled and fp16.enabled are both true",
        ),
        (
            ("--model", "gpt2", "--world", "8", "--micro-batch", "4", "--activations", "1GiB"),
            "--activations says what --micro-batch and --sequence would estimate",
        ),
    ],
)
def test_options_that_mean_nothing_are_usage_errors(words: tuple[str, ...], complaint: str) -> None:
    done = ledger(*words)
    assert done.exit_code == 2
    assert complaint in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--params", "7B", "--world", "8", "--ds-config", "absent.json"),
        ("--snapshot", "absent.pickle"),
    ],
)
def test_what_cannot_be_is_one_message(words: tuple[str, ...]) -> None:
    done = ledger(*words)
    assert done.exit_code == 1
    assert done.stderr.startswith("zerotrace: ")
    assert "Traceback" not in done.output


def write_config(tmp_path: Path, **config: Any) -> Path:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps({"bf16": {"enabled": True}, **config}))
    return path


def test_a_file_and_an_option_that_contradict_each_other_are_a_usage_error(tmp_path: Path) -> None:
    path = write_config(tmp_path, zero_optimization={"stage": 2}, train_micro_batch_size_per_gpu=8)
    words = ("--model", "gpt2", "--world", "8", "--ds-config", path)
    stage, micro = ledger(*words, "--stage", "3"), ledger(*words, "--micro-batch", "4")
    assert (stage.exit_code, micro.exit_code) == (2, 2)
    assert "--stage is 3, but --ds-config sets zero_optimization.stage to 2" in stage.stderr
    assert "--micro-batch is 4, but the DeepSpeed configuration sets" in micro.stderr


def test_stage_micro_batch_and_micro_steps_are_the_file_s(tmp_path: Path) -> None:
    batch = {"train_micro_batch_size_per_gpu": 8, "train_batch_size": 128}
    path = write_config(tmp_path, zero_optimization={"stage": 2}, **batch)
    words = ("--model", "gpt2", "--world", "8")
    (found,) = content(*words, "--ds-config", path)["stages"]
    assert found["deepspeed"]["stage"] == 2
    (told,) = content(*words, "--stage", "2", "--micro-batch", "8")["stages"]
    assert found["deepspeed"]["activations_bytes"] == told["deepspeed"]["activations_bytes"]
    options = content(*words, "--ds-config", path, "--fit", "80GB", "--stage", "2")["options"]
    assert {option["stage"] for option in options} == {2}
    # two micro-steps, each of which reduces its gradients whole, and one all-gather: 2 · 2 + 1
    assert [option["wire_ratio"] for option in options if not option["changes"]] == [5]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"fp16": {"enabled": True}}, "bf16.enabled and fp16.enabled are both true"),
        ({"train_batch_size": -1}, "train_batch_size is -1"),
        (
            {"train_batch_size": 32, "gradient_accumulation_steps": 3, "train_micro_batch_size_per_gpu": 1},
            "do not make",
        ),
        ({"zero_optimization": {"stage": 9}}, "stages are 0 to 3"),
    ],
)
def test_a_file_that_contradicts_itself_is_one_message(config: dict[str, Any], said: str, tmp_path: Path) -> None:
    done = ledger("--params", "7B", "--world", "8", "--ds-config", write_config(tmp_path, **config))
    assert done.exit_code == 1
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 2, "what to do is said too"


def test_the_half_precision_that_was_asked_for_takes_the_place_of_the_default(tmp_path: Path) -> None:
    words = ("--params", "1000", "--world", "2", "--stage", "1")
    assert content(*words, "--set", "fp16.enabled=true") == content(*words)
    assert any(
        "4 bytes each" in note
        for note in content(*words, "--set", "bf16.enabled=false")["stages"][0]["deepspeed"]["notes"]
    )
    assert "4 bytes each" in ledger(*words, "--ds-config", write_config(tmp_path, bf16={})).stdout
    assert "4 bytes each" not in ledger(*words).stdout


def test_keys_that_deepspeed_does_not_have_are_warnings(tmp_path: Path) -> None:
    path = write_config(tmp_path, foo=1, zero_optimization={"offload_param": {"device": "none", "colour": 1}})
    words = ("--params", "7B", "--world", "8", "--stage", "2", "--ds-config", path)
    done = ledger(*words, "--set", "zero_optimization.reduce_bucket_sise=5", "--json")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [f"warning: {warning}" for warning in json.loads(done.stdout)["warnings"]]
    top, nested, misspelt = sorted(done.stderr.splitlines())
    assert top.startswith("warning: foo is no key of DeepSpeed 0.19.8, which ignores it")
    assert nested.startswith("warning: zero_optimization.offload_param.colour is no key")
    assert misspelt.endswith("refuses to start with it; it changes nothing here; did you mean "
                             "zero_optimization.reduce_bucket_size?")  # fmt: skip
    assert ledger("--params", "7B", "--world", "8").stderr == ""


EIGHTY = (
    ("--params", "774M", "--world", "8"),
    ("--model", "gpt2-xl", "--world", "8", "--fit", "16GiB"),
    ("--params", "70B", "--world", "8", "--fit", "80GB"),
    *(("--model", "gpt2-large", "--world", "2", "--stage", str(stage)) for stage in range(4)),
    ("--snapshot", str(TRACES / "stage3" / "rank_0.snapshot.pickle.gz")),
)


@pytest.mark.parametrize("words", EIGHTY)
def test_tables_fit_80_columns_and_lose_nothing(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    wide = ledger(*words).stdout
    monkeypatch.setenv("COLUMNS", "80")
    narrow = ledger(*words).stdout
    assert max(map(len, narrow.splitlines())) <= 80
    assert "…" not in narrow
    assert sorted("".join(narrow.split())) == sorted("".join(wide.split()))


def test_a_snapshot_by_itself(tmp_path: Path) -> None:
    memory = TinyAllocator()
    kept = memory.allocate(3 * MIB)
    memory.record()
    memory.free(memory.allocate(5 * MIB, (("torch/nn/functional.py", "layer_norm", 1), ("t.py", "forward", 2))))
    path = memory.write(tmp_path / "rank_0.snapshot.pickle.gz")
    found = content("--snapshot", path)
    assert (found["resident_bytes"], found["peak_bytes"]) == (3 * MIB, 8 * MIB)
    assert found["owners"] == {"other": 3 * MIB}
    assert found["peak_owners"] == {"activations": 5 * MIB, "other": 3 * MIB}
    held = {"address": kept, "bytes": 3 * MIB, "device": "cuda:0", "owner": "master", "holder": "x", "num_tensors": 1}
    owners = {"version": 1, "rank": 0, "device": "cuda:0", "storages": [held]}
    (tmp_path / "rank_0.owners.json").write_text(json.dumps(owners))
    assert content("--snapshot", path)["owners"] == {"master": 3 * MIB}
    done = ledger("--snapshot", path)
    assert "master" in done.stdout
    assert "reserved 20.0 MiB, of it 17.0 MiB not allocated; the peak is in forward" in done.stdout


def test_owners_of_another_rank_name_nothing_and_that_is_said(tmp_path: Path) -> None:
    memory = TinyAllocator()
    memory.allocate(3 * MIB)
    path = memory.write(tmp_path / "rank_0.snapshot.pickle.gz")
    elsewhere = {"address": 1 << 20, "bytes": 3 * MIB, "device": "cuda:0", "owner": "master", "holder": "x"}
    owners = {"version": 1, "rank": 0, "device": "cuda:0", "storages": [elsewhere]}
    (tmp_path / "rank_0.owners.json").write_text(json.dumps(owners))
    found = ledger("--snapshot", path, "--json")
    assert json.loads(found.stdout)["owners"] == {"other": 3 * MIB}
    assert json.loads(found.stdout)["owners_file"] is None
    assert "0 B of the 3.00 MiB that have owners lie in live blocks" in found.stderr
    assert "give --owners" in found.stderr


def test_of_a_snapshot_without_history_the_peak_is_unknown(tmp_path: Path) -> None:
    memory = TinyAllocator()
    memory.allocate(3 * MIB)
    path = memory.write(tmp_path / "s.pickle.gz")
    assert content("--snapshot", path)["peak_bytes"] is None
    assert "no history" in ledger("--snapshot", path).stdout


def test_a_hostile_snapshot_is_refused_without_effect(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path / 'mark'}",)

    path = tmp_path / "\x1b[31mevil.pickle"
    path.write_bytes(pickle.dumps({"segments": [Evil()]}))
    done = ledger("--snapshot", path)
    assert done.exit_code == 1
    assert "evil.pickle: refused" in done.stderr
    assert "\x1b[31mevil" not in done.stderr
    assert not (tmp_path / "mark").exists()


def test_the_shipped_snapshot_has_its_gauge_and_its_owners() -> None:
    found = content("--snapshot", TRACES / "stage3" / "rank_0.snapshot.pickle.gz")
    owners = json.loads((TRACES / "stage3" / "rank_0.owners.json").read_text())
    assert found["owners_file"] == "rank_0.owners.json"
    assert found["peak_bytes"] == owners["peak_bytes"] == sum(found["peak_owners"].values())
    assert found["resident_bytes"] == owners["allocated_bytes"] == sum(found["owners"].values())
