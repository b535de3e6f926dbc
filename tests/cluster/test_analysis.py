"""The whole of an analysis on a cluster: the same result, and errors that say what to do."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.cluster.conftest import ROOT
from tests.jobs import Job
from tests.unit.test_ingest import one_step
from zerotrace.analysis.engines import EngineKind, open_engine
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.errors import EngineError, TraceError
from zerotrace.model import Level
from zerotrace.schema import EVENTS

Cluster = tuple[str, str]


def options(cluster: Cluster | None = None) -> AnalyzeOptions:
    kind, address = cluster or ("processes", None)
    return AnalyzeOptions(hta=False, engine=EngineKind(kind), address=address)


def assert_equal(folder: Path, other: Path) -> None:
    """Two results are of the same files, and the same but for the seconds that they took."""
    names = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(other) for path in other.rglob("*") if path.is_file())
    for name in names:
        if name.name == "analysis.json":
            mine, theirs = (json.loads((place / name).read_text()) for place in (folder, other))
            assert mine.pop("elapsed_s") and theirs.pop("elapsed_s")
            assert mine == theirs
        else:
            assert (folder / name).read_bytes() == (other / name).read_bytes(), name


def refused(kind: str, address: str) -> EngineError:
    """Why a cluster cannot be used."""
    with pytest.raises(EngineError) as caught, open_engine(EngineKind(kind), address):
        pass
    return caught.value


def test_a_worker_that_is_killed_in_the_middle_costs_nothing(tmp_path: Path, cluster: Cluster) -> None:
    Job(num_ranks=8, num_collectives=300).write(tmp_path / "run")
    analyze([tmp_path / "run"], tmp_path / "here", options())
    killed: list[int] = []

    def kill_one() -> None:
        while not list(tmp_path.glob(".there.partial-*/events/.incoming/*")):
            time.sleep(0.01)
        name = "PoolActor" if cluster[0] == "ray" else "multiprocessing.spawn"
        mine = psutil.Process().children(recursive=True)
        killed.append(max(process.pid for process in mine if name in " ".join(process.cmdline())))
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    analyze([tmp_path / "run"], tmp_path / "there", options(cluster))
    killer.join()
    assert killed
    assert_equal(tmp_path / "here", tmp_path / "there")


def test_a_damaged_trace_costs_its_rank_alone_there_too(
    tmp_path: Path, dask_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Job(num_ranks=3, num_collectives=4).write(tmp_path / "run")
    (run / "rank_1.json").write_bytes((run / "rank_1.json").read_bytes()[:-300])
    analyze([run], tmp_path / "here", options())
    # A relative path means the same to workers, wherever they began.
    monkeypatch.chdir(tmp_path)
    analysis, folder, _ = analyze([Path("run")], Path("there"), options(("dask", dask_address)))
    assert [source.rank for source in analysis.sources] == [0, 2]
    assert sorted(path.name for path in (folder / EVENTS.name).iterdir()) == ["rank=0", "rank=2"]
    (note,) = [note for note in analysis.diagnostics if note.level is Level.ERROR]
    assert (note.code, note.file) == ("rank_failed", "rank_1.json")
    assert_equal(tmp_path / "here", tmp_path / "there")


def test_the_first_error_is_raised_if_no_rank_is_left(tmp_path: Path, dask_address: str) -> None:
    one_step().write(tmp_path / "run")
    (tmp_path / "run" / "rank_0.json").write_text("{")
    with pytest.raises(TraceError, match="truncated"):
        analyze([tmp_path / "run"], options=options(("dask", dask_address)))
    assert not (tmp_path / "run" / "analysis").exists()


def test_other_versions_on_the_workers_are_named(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zerotrace.version.VERSION", "9.9.9")
    found = refused(*cluster)
    assert found.code == "engine_differs"
    assert "workers differ from this process, which has zerotrace 9.9.9: " in str(found)


# ------------------------------------------------------------------ as a user meets it


def zerotrace(*words: object, before: str = "") -> tuple[int, str, str]:
    """What the command ends with, and what it says on stdout and stderr."""
    command = [sys.executable, "-c", f"{before}\nfrom zerotrace.__main__ import run; run()", *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    return done.returncode, done.stdout, done.stderr


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A real run with snapshots of memory, and its result by processes of this machine."""
    folder = tmp_path_factory.mktemp("shipped")
    shutil.copytree(ROOT / "traces" / "stage3", folder / "run", ignore=shutil.ignore_patterns("analysis"))
    analyze([folder / "run"], folder / "here", options())
    return folder / "run", folder / "here"


def test_a_cluster_finds_what_processes_find_and_stdout_is_the_result_alone(
    tmp_path: Path, cluster: Cluster, shipped: tuple[Path, Path]
) -> None:
    run, here = shipped
    there = ["--out", tmp_path / "there", "--engine", cluster[0], "--address", cluster[1]]
    code, out, said = zerotrace("analyze", run, "--no-hta", "--no-report", "--json", *there)
    assert (code, len(json.loads(out)["sources"])) == (0, 2), said
    assert [line.partition(":")[0] for line in said.splitlines()] == ["Tables"], said
    assert_equal(here, tmp_path / "there")


@pytest.fixture
def hidden(tmp_path: Path) -> list[str]:
    """The beginning of a command that sees a disk that nobody else sees."""
    run = tmp_path / "run"
    Job(num_ranks=2, num_collectives=4).write(tmp_path / "traces")
    run.mkdir()
    script = f'mount -t tmpfs tmpfs "{run}" && cp "{tmp_path}"/traces/* "{run}" && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    return command


def test_a_folder_that_workers_do_not_see_is_refused(tmp_path: Path, dask_address: str, hidden: list[str]) -> None:
    words = ["analyze", str(tmp_path / "run"), "--no-hta", "--engine", "dask", "--address", dask_address]
    done = subprocess.run(
        [*hidden, sys.executable, "-m", "zerotrace", *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert (done.returncode, done.stdout) == (1, "")
    said, hint = done.stderr.splitlines()
    assert "does not see" in said
    assert "share" in hint


@pytest.mark.parametrize("kind", ["dask", "ray"])
@pytest.mark.parametrize("what", ["closed", "silent", "another service"])
def test_an_address_that_no_cluster_answers_is_an_error_soon(
    tmp_path: Path, kind: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("joblib")
    monkeypatch.setattr("zerotrace.analysis.engines.cluster.PATIENCE_S", 0.5)
    with socket.socket() as service:
        service.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{service.getsockname()[1]}"
        if what != "closed":
            service.listen()
        if what == "another service":
            command = [sys.executable, "-c", _GREETER, str(service.fileno())]
            greeter = subprocess.Popen(command, pass_fds=[service.fileno()])
        started = time.monotonic()
        found = refused(kind, address)
        assert time.monotonic() - started < 10
        assert found.code == "engine_unreachable"
        assert f"{address}: no {kind.title()} " in str(found)
        if what == "another service":
            greeter.wait()


_GREETER = """
import socket, sys
connection, _ = socket.socket(fileno=int(sys.argv[1])).accept()
connection.sendall(b"SSH-2.0-OpenSSH_9.2p1")
"""


@pytest.mark.parametrize(
    ("kind", "address"),
    [
        ("dask", "nonsense"),
        ("dask", "tcp://a:b"),
        ("dask", "tls://127.0.0.1:1"),
        ("dask", "http://127.0.0.1:80"),
        ("ray", "ray://a:10001"),
    ],
)
def test_what_cannot_be_an_address_is_said_to_be_none(kind: str, address: str) -> None:
    pytest.importorskip("joblib")
    assert refused(kind, address).code == "engine_address"


def test_a_dask_cluster_without_workers_is_an_error_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr("zerotrace.analysis.engines.dask.WORKERS_S", 1.0)
    with distributed.LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0") as empty:
        assert "has no worker that took a task within 1 s" in str(refused("dask", empty.scheduler_address))


@pytest.mark.parametrize(("kind", "missing"), [("dask", "distributed"), ("ray", "ray")])
def test_what_is_not_installed_is_named_with_its_extra(tmp_path: Path, kind: str, missing: str) -> None:
    run = one_step().write(tmp_path / "run").parent
    words = ["analyze", run, "--no-hta", "--no-report", "--engine", kind, "--address", "127.0.0.1:1"]
    code, out, said = zerotrace(*words, before=f"import sys; sys.modules[{missing!r}] = None")
    assert (code, out) == (1, "")
    assert said == (
        f"zerotrace: --engine {kind} needs {missing}, which is not installed\n  pip install 'zerotrace[{kind}]'\n"
    )


def test_on_one_machine_neither_joblib_nor_a_cluster_is_imported(tmp_path: Path) -> None:
    run = Job(num_ranks=2, num_collectives=4).write(tmp_path / "run")
    report = (
        "import atexit, sys; "
        "atexit.register(lambda: print({'joblib', 'dask', 'distributed', 'ray'} & {*sys.modules}, file=sys.stderr))"
    )
    code, _, said = zerotrace("analyze", run, "--no-hta", "--no-report", before=report)
    assert (code, said) == (0, "set()\n")


@pytest.mark.parametrize("words", [["--engine", "dask"], ["--address", "127.0.0.1:1"]])
def test_engine_and_address_belong_together(tmp_path: Path, words: list[str]) -> None:
    code, _, said = zerotrace("analyze", tmp_path, *words)
    assert code == 2
    assert "--address" in said
