"""More than one machine: two network namespaces stand for two hosts, over gloo."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.capture.conftest import processes_of
from tests.capture.test_failures import wait_until

pytestmark = [pytest.mark.capture, pytest.mark.usefixtures("no_orphans")]

ROOT = Path(__file__).resolve().parents[2]
WINDOWS = ["--warmup", "1", "--timed", "1", "--steps", "1", "--windows", "timed,detailed"]
OPTIONS = ["--stage", "3", "--device", "cpu", "--out", "run", "--timeout", "90", *WINDOWS]


@dataclass(frozen=True)
class Hosts:
    """Two namespaces with a link between them."""

    names: tuple[str, str]
    endpoint: str


def ip(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *words], capture_output=True, text=True, check=False)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    """Made for one test, and gone after it: deleting a namespace deletes its end of the link, and so the link."""
    if shutil.which("ip") is None:
        pytest.skip("needs `ip` of iproute2")
    names = (f"zt-{os.getpid()}-a", f"zt-{os.getpid()}-b")
    try:
        if (made := ip("netns", "add", names[0])).returncode:
            pytest.skip(f"cannot make a network namespace here: {made.stderr.strip()}")
        ip("netns", "add", names[1])
        link = ip("-n", names[0], "link", "add", "zt0", "type", "veth", "peer", "name", "zt0", "netns", names[1])
        assert link.returncode == 0, link.stderr
        for number, name in enumerate(names, 1):
            ip("-n", name, "address", "add", f"10.213.77.{number}/24", "dev", "zt0")
            ip("-n", name, "link", "set", "zt0", "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield Hosts(names, "10.213.77.1:29511")
    finally:
        for name in names:
            ip("netns", "delete", name)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)


@pytest.fixture
def ssh_into_namespaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An `ssh` that takes a host's name for that of a namespace."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "ssh").write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nexec ip netns exec "$2" sh -c "$3"\n')
    (folder / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def zerotrace(*words: str) -> list[str]:
    return [sys.executable, "-m", "zerotrace", "capture", *OPTIONS, *words]


def manifest_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
    return content


@pytest.mark.usefixtures("ssh_into_namespaces")
def test_a_hostfile_captures_on_every_host_into_one_shared_folder(hosts: Hosts) -> None:
    Path("hosts").write_text("".join(f"{name} slots=1\n" for name in hosts.names))
    command = zerotrace("--hostfile", "hosts", "--rdzv-endpoint", hosts.endpoint)
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "run\n"
    assert f"[{hosts.names[1]}] This node is done; its traces are in the folder of node 0" in done.stderr
    manifest = manifest_of(Path("run"))
    assert (manifest["world_size"], manifest["backend"]) == (2, "gloo")
    assert [(record["rank"], record["host"]) for record in manifest["ranks"]] == [(0, 0), (1, 1)]
    assert manifest["environment"]["GLOO_SOCKET_IFNAME"] == "zt0"
    names = {path.name for path in Path("run").iterdir()}
    assert names == {"manifest.json", "rank_0.pt.trace.json.gz", "rank_1.pt.trace.json.gz"}
    assert not list(Path().glob(".run*"))


@pytest.mark.usefixtures("ssh_into_namespaces")
def test_a_host_that_fails_ends_the_capture_on_all(hosts: Hosts, tmp_path: Path) -> None:
    Path("hosts").write_text("".join(f"{name} slots=1\n" for name in hosts.names))
    # Nobody listens there: node 1 would wait for node 0, which refuses an address that it does not have.
    command = zerotrace("--hostfile", "hosts", "--rdzv-endpoint", "10.213.77.99:29511")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert f"[{hosts.names[0]}] zerotrace: Node 0 cannot listen at --rdzv-endpoint" in done.stderr
    assert f"The capture failed on {hosts.names[0]}" in done.stderr
    assert not processes_of(tmp_path)
    assert not Path("run").exists()


@pytest.mark.usefixtures("ssh_into_namespaces")
def test_ctrl_c_ends_the_capture_on_all_hosts(hosts: Hosts, tmp_path: Path) -> None:
    Path("hosts").write_text("".join(f"{name} slots=1\n" for name in hosts.names))
    Path("train.py").write_text("import time\ntime.sleep(300)\n")
    command = zerotrace("--hostfile", "hosts", "--rdzv-endpoint", hosts.endpoint, "--script", "train.py")
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        progress = [tmp_path / name / "ranks" / f"rank_{rank}.progress"
                    for rank, name in enumerate((".run.partial", ".run.node1.partial"))]  # fmt: skip
        wait_until(lambda: all(path.is_file() for path in progress), 40)
        running.send_signal(signal.SIGINT)
        said = running.communicate(timeout=30)[1]
    finally:
        running.kill()
    assert running.returncode == 130
    assert "The capture was interrupted (SIGINT); it has been ended on all hosts." in said
    assert not processes_of(tmp_path)
    assert {path.name for path in Path().glob("*run*")} == {"run.failed", "run.failed-2"}


def test_hosts_that_share_no_folder_each_keep_their_own_traces(hosts: Hosts, tmp_path: Path) -> None:
    work, copy = tmp_path / "work", tmp_path / "copy"
    work.mkdir()
    nodes = ["--gpus", "1", "--nnodes", "2", "--rdzv-endpoint", hosts.endpoint]
    first = ["ip", "netns", "exec", hosts.names[0], *zerotrace(*nodes, "--node-rank", "0")]
    second = ["ip", "netns", "exec", hosts.names[1], "sh", "-c",
              'mount -t tmpfs tmpfs . && cd "$PWD" && "$@" && cp -r run "$COPY"', "sh",
              *zerotrace(*nodes, "--node-rank", "1")]  # fmt: skip
    environment = {**os.environ, "COPY": str(copy)}
    with closing_process(first, work, environment) as a, closing_process(second, work, environment) as b:
        said = [process.communicate(timeout=100)[1] for process in (a, b)]
        assert (a.returncode, b.returncode) == (0, 0), said
    manifest = manifest_of(work / "run")
    assert [record["host"] for record in manifest["ranks"]] == [0, 1]
    kept = [path.name for path in copy.iterdir()]
    assert kept == [manifest["ranks"][1]["trace_file"]]
    assert kept[0].startswith("rank_1_host1_pid")
    assert {path.name for path in (work / "run").iterdir()} == {"manifest.json", manifest["ranks"][0]["trace_file"]}
    assert "Copy the traces in run into the folder of node 0" in said[1]


def closing_process(command: list[str], folder: Path, environment: dict[str, str]) -> Any:
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_port_that_is_taken_is_refused_before_anything_starts(tmp_path: Path) -> None:
    import socket

    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        endpoint = f"127.0.0.1:{taken.getsockname()[1]}"
        command = zerotrace("--gpus", "1", "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", endpoint)
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "is taken on this machine" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_node_that_never_comes_ends_the_other_in_time() -> None:
    command = zerotrace("--gpus", "1", "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "127.0.0.1:29519")
    command[command.index("--timeout") + 1] = "4"
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 124
    assert "The 2 nodes did not all meet at 127.0.0.1:29519" in done.stderr
    assert Path("run.failed").is_dir()


def test_a_launcher_that_is_killed_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    command = zerotrace("--gpus", "1", "--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "127.0.0.1:29520")
    launcher = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    log = tmp_path / ".run.partial" / "ranks" / "torchrun.log"
    try:
        # Two processes: the launcher does not count, torchrun has found its way to Python.
        wait_until(lambda: log.is_file() and bool(processes_of(tmp_path)), 40)
        [local] = temporary.glob("zerotrace-*")
        (local / "rank_0").mkdir()
        (local / "rank_0" / "rank_0.owners.json").write_text("{}")
        time.sleep(8)
        launcher.kill()
        launcher.wait()
        wait_until(lambda: not processes_of(tmp_path), 60)
    finally:
        launcher.kill()
    assert not list(temporary.glob("zerotrace-*"))
    assert (tmp_path / ".run.partial" / "rank_0.owners.json").read_text() == "{}"
