"""Hostfiles, endpoints and jobs: what decides where ranks run. Nothing is launched."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from zerotrace.capture.hostfile import read_hostfile, slots_of_all
from zerotrace.capture.job import find_job
from zerotrace.capture.nodes import check_endpoint, find_interface, parse_endpoint
from zerotrace.capture.plan import Nodes
from zerotrace.cli.capture import capture
from zerotrace.cli.many_hosts import without_options
from zerotrace.errors import CaptureError

HOSTFILES = {
    "comments, blank lines and users": (
        "# comment\n\nworker-1 slots=4\nuser@worker-2   slots=2  # two\n",
        {"worker-1": 4, "user@worker-2": 2},
    ),
    "addresses": ("10.0.0.1 slots=8\nfe80::1 slots=8\n", {"10.0.0.1": 8, "fe80::1": 8}),
}

WRONG = {
    "a typing error": ("# four GPUs each\nworker-1 slots=4\nworker-2 slot=4\n", ["line 3", "worker-2 slot=4"]),
    "a host twice": ("worker-1 slots=4\nworker-1 slots=2\n", ["line 2", "worker-1", "line 1 already"]),
    "a host twice by another user": ("worker-1 slots=4\nme@worker-1 slots=2\n", ["line 2", "worker-1 stands"]),
    "no host": ("# nothing\n", ["hosts names no host"]),
    "no slots": ("worker-1 slots=0\n", ["line 1", "N above 0"]),
    "more after the slots": ("worker-1 slots=4x\n", ["line 1"]),
    "an option of ssh in the place of a host": ("-oProxyCommand=reboot slots=1\n", ["line 1"]),
}

MEETING = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


@pytest.mark.parametrize("name", HOSTFILES)
def test_a_hostfile_names_hosts_and_slots_in_its_order(tmp_path: Path, name: str) -> None:
    text, expected = HOSTFILES[name]
    (tmp_path / "hosts").write_text(text)
    assert list(read_hostfile(tmp_path / "hosts").items()) == list(expected.items())


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_line_is_named_with_file_number_and_text(tmp_path: Path, name: str) -> None:
    text, said = WRONG[name]
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(CaptureError) as caught:
        read_hostfile(tmp_path / "hosts")
    assert caught.value.code == "hostfile_invalid"
    for part in (str(tmp_path / "hosts"), *said):
        assert part in str(caught.value)


def test_a_hostfile_that_was_asked_for_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="No such file") as caught:
        read_hostfile(tmp_path / "hosts")
    assert caught.value.code == "hostfile_unreadable"


def test_every_host_runs_equally_many_ranks() -> None:
    assert slots_of_all({"a": 4, "b": 4}, None) == 4
    assert slots_of_all({"a": 4, "b": 2}, 2) == 2
    with pytest.raises(CaptureError, match="a 4, b 2") as caught:
        slots_of_all({"a": 4, "b": 2}, None)
    assert "--gpus 2" in str(caught.value.hint)
    with pytest.raises(CaptureError, match="b has 2 slots"):
        slots_of_all({"a": 4, "b": 2}, 3)


def test_commands_can_be_printed_in_place_of_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    Path("hosts").write_text("worker-1 slots=4\nuser@worker-2 slots=4\n")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("something was started"))
    words = ["--stage", "3", "--hostfile=hosts", "--launcher", "print", "--script", "train.py"]
    done = CliRunner().invoke(capture, [*words, "--", "--hostfile", "theirs", "$x"])
    assert done.exit_code == 0, done.output
    first, second = done.stdout.splitlines()
    assert first.startswith("ssh worker-1 ")
    assert second.startswith("ssh user@worker-2 ")
    assert "--gpus 4 --nnodes 2 --node-rank 1 --rdzv-endpoint worker-1:29500 --stage 3 --script train.py" in second
    assert "NCCL_P2P_DISABLE=1" in second
    # What belongs to the program is left alone, and comes through both shells as it was.
    assert shlex.split(shlex.split(second)[2])[-3:] == ["--hostfile", "theirs", "$x"]


def test_options_are_taken_out_with_their_values() -> None:
    words = ["--gpus", "2", "--stage", "3", "--hostfile=h", "--", "--gpus", "4"]
    assert without_options(words, ("--gpus", "--hostfile")) == ["--stage", "3", "--", "--gpus", "4"]


@pytest.mark.parametrize(
    ("text", "endpoint"),
    [
        ("node0:29511", ("node0", 29511)),
        ("node0", ("node0", 29500)),
        ("10.0.0.1:1", ("10.0.0.1", 1)),
        ("[fe80::1]:7", ("fe80::1", 7)),
    ],
)
def test_endpoints_are_host_and_port(text: str, endpoint: tuple[str, int]) -> None:
    assert parse_endpoint(text) == endpoint


@pytest.mark.parametrize(
    "text", ["", ":29500", "node0:", "node0:0", "node0:70000", "node0:port", "a b:1", "http://a:1"]
)
def test_other_endpoints_are_refused(text: str) -> None:
    with pytest.raises(CaptureError, match="HOST:PORT"):
        parse_endpoint(text)


def test_node_0_must_be_able_to_listen_at_the_endpoint() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(CaptureError, match="is taken") as caught:
            check_endpoint(Nodes(num_nodes=2, node_rank=0, endpoint=endpoint))
        assert caught.value.code == "port_taken"
        # For the others it is right that somebody listens there.
        check_endpoint(Nodes(num_nodes=2, node_rank=1, endpoint=endpoint))
    check_endpoint(Nodes(num_nodes=2, node_rank=0, endpoint=endpoint))


def test_the_interface_is_the_one_that_leads_to_the_endpoint() -> None:
    assert find_interface(Nodes()) == "lo"
    assert find_interface(Nodes(num_nodes=2, node_rank=0, endpoint="127.0.0.1:29500")) == "lo"


SLURM = {
    "SLURM_PROCID": "9",
    "SLURM_STEP_NUM_TASKS": "16",
    "SLURM_STEP_ID": "0",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_JOB_ID": "1234567",
    "SLURM_STEP_NODELIST": "rack1-node[03-05,09],login",
}


def test_a_task_of_slurm_is_a_rank() -> None:
    job = find_job(SLURM)
    assert job is not None
    assert (job.launcher, job.rank, job.world_size, job.local_rank, job.node) == ("Slurm", 9, 16, 1, 1)
    assert job.variables["MASTER_ADDR"] == "rack1-node03"
    assert job.variables["MASTER_PORT"] == "24567"
    assert find_job({**SLURM, "MASTER_ADDR": "mine", "MASTER_PORT": "1"}).variables["MASTER_ADDR"] == "mine"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("nodes", "first"), [("node1", "node1"), ("a1,a2", "a1"), ("n[7,9]-ib", "n7-ib"), ("n[010-012]", "n010")]
)
def test_the_first_host_of_slurm_s_list_is_where_ranks_meet(nodes: str, first: str) -> None:
    job = find_job({**SLURM, "SLURM_STEP_NODELIST": nodes})
    assert job is not None
    assert job.variables["MASTER_ADDR"] == first


def test_a_task_that_sees_one_device_alone_takes_that() -> None:
    job = find_job({**SLURM, "CUDA_VISIBLE_DEVICES": "5"})
    assert job is not None
    assert job.local_rank == 0


def test_torchrun_s_variables_make_a_rank() -> None:
    ranks = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "1"}
    job = find_job({**ranks, **MEETING})
    assert job is not None
    assert (job.launcher, job.rank, job.local_rank, job.num_local, job.node) == ("torchrun", 3, 1, 2, 1)
    assert job.variables == {}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        # A pod of Kubernetes that starts torchrun itself.
        {"RANK": "0", "WORLD_SIZE": "2"},
        # The shell of a batch job, which is no step.
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "16"},
        # One task that starts the ranks of its machine.
        {**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"},
    ],
)
def test_other_processes_are_no_ranks(environment: dict[str, str]) -> None:
    assert find_job(environment) is None


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "two", "WORLD_SIZE": "4", "LOCAL_RANK": "1"},
        {"RANK": "4", "WORLD_SIZE": "4", "LOCAL_RANK": "0"},
        {**SLURM, "SLURM_STEP_NODELIST": ""},
    ],
)
def test_variables_that_make_no_sense_are_named(environment: dict[str, str]) -> None:
    with pytest.raises(CaptureError) as caught:
        find_job(environment)
    assert caught.value.code == "job_unclear"


@pytest.mark.parametrize(
    "words",
    [
        "--nnodes 2 --gpus 1",
        "--nnodes 2 --gpus 1 --node-rank 0",
        "--nnodes 2 --gpus 1 --node-rank 2 --rdzv-endpoint a:1",
        "--gpus 1 --rdzv-endpoint a:1",
        "--hostfile hosts --nnodes 2",
        "",
    ],
)
def test_options_for_nodes_that_do_not_go_together_are_usage_errors(words: str) -> None:
    assert CliRunner().invoke(capture, ["--stage", "1", *words.split()]).exit_code == 2


def test_gpus_must_agree_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", **MEETING}
    done = CliRunner(env=job).invoke(capture, ["--stage", "1", "--gpus", "4", "--device", "cpu"])
    assert isinstance(done.exception, CaptureError)
    assert done.exception.code == "job_conflict"


CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "c74_hostfile_bad_line"


@pytest.mark.skipif(not CASES.is_dir(), reason="the case is not beside this checkout")
def test_the_hostfiles_of_the_case_read_as_its_answer_says() -> None:
    expected = json.loads((CASES / "expected.json").read_text())
    for name, hosts in expected["parsed"].items():
        assert read_hostfile(CASES / name) == hosts
    for message in expected["messages"]:
        with pytest.raises(CaptureError) as caught:
            read_hostfile(CASES / message["file"])
        assert caught.value.code == message["code"]
        assert all(part in str(caught.value) for part in message["must_mention"])
