"""What must not go with a capture that is passed on: paths, hosts, secrets."""

from __future__ import annotations

import shlex

import pytest

from zerotrace.capture.ds_settings import plain_config
from zerotrace.capture.machine import recorded_environment
from zerotrace.capture.scrub import scrub_command


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--out /data/me/x --script ~/t.py --ds-config=/etc/x.json", "--out {p} --script {p} --ds-config={p}"),
        ("'/a b/c' --data=/x,/y file:///home/me", "{p} --data={p} {p}"),
        ("""'{"a": "/home/me", "api_key": "zz", "n": 5}'""", """'{{"a": "{p}", "api_key": "{s}", "n": 5}}'"""),
        ("--rdzv-endpoint node7:29500 --master_addr=n3", "--rdzv-endpoint {h} --master_addr={h}"),
        ("me@n3:22 10.0.0.7:5", "{h} {h}"),
        ("--hub https://me:pw@host/x s3://bucket/key", "--hub https://{h} s3://{h}"),
        ("--token=abc --hf-token abc HF_TOKEN=abc", "--token={s} --hf-token {s} HF_TOKEN={s}"),
        ("--apiKey x --wandb_api_key x", "--apiKey {s} --wandb_api_key {s}"),
        ("--x hf_abcdefghijk --y=sk-abcdefghijk --z eyJhbGciOiJI.eyJzdWIi.x", "--x {s} --y={s} --z {s}"),
        ("--set comet.api_key=zz --set offload.nvme_path=/x", "--set comet.api_key={s} --set offload.nvme_path={p}"),
    ],
)
def test_a_command_line_goes_without_paths_hosts_and_secrets(given: str, kept: str) -> None:
    words = [word.format(p="(a path)", h="(a host)", s="(hidden)") for word in shlex.split(kept)]
    assert list(scrub_command(shlex.split(given))) == words


@pytest.mark.parametrize(
    "words",
    [
        "zerotrace capture --stage 3 --gpus 8 --device cpu --out traces/trial --timeout 90 --seed 1337",
        "zerotrace capture --stage 2 --set zero_optimization.reduce_bucket_size=5e7 --set optimizer.type=Adam",
        "--tokenizer gpt2 --max-tokens 512 --num_tokens=100 --lr 1e-4 --ratio 1/2 --num-nodes 2 --node-rank 1",
        "--model meta-llama/Llama-2-7b-chat-hf --local_rank {local_rank} -o out/here a~b x=y train.py --",
    ],
)
def test_what_tells_nothing_of_the_machine_is_kept(words: str) -> None:
    assert shlex.join(scrub_command(words.split())) == shlex.join(words.split())


def test_variables_and_configurations_go_through_the_same_mill() -> None:
    assert recorded_environment({"NCCL_DEBUG_FILE": "a:/var/x", "NCCL_HOSTID": "n7", "NCCL_SOCKET_IFNAME": "eth0"}) == {
        "NCCL_DEBUG_FILE": "a:(a path)",
        "NCCL_SOCKET_IFNAME": "eth0",
    }
    config = {"comet": {"api_key": "zz", "project": "p"}, "paths": ["/a", "b"], "bf16": {"enabled": True}, "n": 5}
    assert plain_config(config) == {
        "comet": {"api_key": "(hidden)", "project": "p"},
        "paths": ["(a path)", "b"],
        "bf16": {"enabled": True},
        "n": 5,
    }


def test_bytes_that_are_no_text_are_spelled_out() -> None:
    assert scrub_command(["--out", "a\udcff", "--\udcfe=1"]) == ("--out", "a\\udcff", "--\\udcfe=1")
    assert plain_config({"name": "a\udcff"}) == {"name": "a\\udcff"}
