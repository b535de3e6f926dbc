"""Work that is interrupted, or done twice at once: an old result or none, never half of one."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from tests.unit.test_ingest import assert_is_one_step, codes, one_step
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.errors import StoreError
from zerotrace.placing import new_file, new_folder
from zerotrace.store import read_analysis

PLAIN = AnalyzeOptions(hta=False, jobs=1)

#: How often an analysis is killed; 200 is a quarter of an hour on two busy cores.
KILLS = int(os.environ.get("ZEROTRACE_KILLS", "20"))

_HOLD = """
import sys
from pathlib import Path
from zerotrace.placing import new_folder
with new_folder(Path(sys.argv[1]), replace=True, is_ours="analysis.json") as folder:
    (folder / "analysis.json").write_text("half")
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextmanager
def someone_at_work(target: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that fills ``target``, until it is killed or its input ends."""
    command = [sys.executable, "-c", _HOLD, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        try:
            yield process
        finally:
            process.kill()


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


# ------------------------------------------------------------------ two at once


@pytest.mark.parametrize("out", [None, "elsewhere"])
def test_the_second_of_two_says_at_once_that_another_is_at_work(tmp_path: Path, out: str | None) -> None:
    run = tmp_path / "run"
    one_step().write(run)
    target = run / "analysis" if out is None else tmp_path / out
    command = [sys.executable, "-m", "zerotrace", "analyze", str(run), "--no-hta", "--no-report"]
    with someone_at_work(target) as other:
        done = subprocess.run(
            [*command, *([] if out is None else ["--out", str(target)])], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout) == (1, "")
        said, hint = done.stderr.splitlines()
        assert said == f"zerotrace: {target}: process {other.pid} is writing it at this moment"
        assert hint == "  wait until it has ended, or give --out for another folder"
        # Beside it there is room.
        analyze([run], tmp_path / "third", PLAIN)


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    one_step().write(tmp_path)
    with someone_at_work(tmp_path / "analysis") as other:
        with pytest.raises(StoreError) as caught:
            analyze([tmp_path], options=PLAIN)
        assert caught.value.code == "busy"
        other.kill()
        other.wait()
        assert sorted(name.split("-")[0] for name in hidden(tmp_path)) == [".analysis.lock", ".analysis.partial"]
        assert_is_one_step(analyze([tmp_path], options=PLAIN)[0])
    assert hidden(tmp_path) == []


def test_whoever_waits_for_nobody_finds_the_result_of_the_first(tmp_path: Path) -> None:
    one_step().write(tmp_path)
    first, _, _ = analyze([tmp_path], options=PLAIN)
    with someone_at_work(tmp_path / "analysis"):
        assert analyze([tmp_path], options=PLAIN)[0] == first, "what is there needs no lock"


def test_many_that_begin_together_leave_one_whole_result(tmp_path: Path) -> None:
    for rank in range(2):
        one_step(rank, 2).write(tmp_path)
    command = [sys.executable, "-m", "zerotrace", "analyze", str(tmp_path), "--no-hta", "--no-report", "--jobs", "1"]
    together = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    ends = [(*process.communicate(timeout=120), process.returncode) for process in together]
    assert 0 in [code for _, _, code in ends]
    for _, said, code in ends:
        # One that finished looking just before the first ended is told that there is a result now.
        assert code == 0 or "is writing it at this moment" in said or "exists already" in said, said
        assert "Traceback" not in said
    assert_is_whole(tmp_path / "analysis")
    assert hidden(tmp_path) == []


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    one_step().write(tmp_path / "run")
    (tmp_path / "precious").write_text("x")
    (tmp_path / "run" / ".analysis.lock").symlink_to(tmp_path / "precious")
    with pytest.raises(StoreError, match="cannot be written"):
        analyze([tmp_path / "run"], options=PLAIN)
    assert (tmp_path / "precious").read_text() == "x"


def test_without_locks_the_last_to_end_stays_and_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No file system without locks can be mounted here: what such a one answers is played."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    run = tmp_path / "run"
    one_step().write(run)
    (run / ".analysis.partial-old").mkdir()
    with new_folder(run / "analysis", replace=True, is_ours="analysis.json") as slow:
        (slow / "analysis.json").write_text("{}")
        analysis, _, _ = analyze([run], options=PLAIN)
        assert "no_file_locks" in codes(analysis)
        assert_is_whole(run / "analysis")
        assert slow.is_dir(), "whose it is cannot be told, so it is left alone"
    assert (run / "analysis" / "analysis.json").read_text() == "{}"
    with new_file(tmp_path / "page.html", replace=False) as stream:
        stream.write(b"x")
    assert hidden(tmp_path) == []


# ------------------------------------------------------------------ killed


def assert_is_whole(folder: Path) -> str:
    """Reads all of a result; how it attributes rows to steps tells which one it is."""
    analysis = read_analysis(folder)
    json.loads((folder / "analysis.json").read_bytes())
    there = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert there == {*analysis.outputs, "analysis.json"}
    for name in there:
        if name.endswith(".parquet"):
            pq.read_table(folder / name, partitioning=None)
    if "report.html" in there:
        assert (folder / "report.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
    return analysis.attribution.value


@pytest.mark.timeout(60 + 10 * KILLS)
def test_killed_at_any_moment_it_leaves_the_old_result_or_none(tmp_path: Path) -> None:
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(2, 0, 3_000)
        for at in range(0, 3_000, 10):
            trace.compute(at, at + 6).host("aten::mm", at, at + 5)
        trace.all_gather(2_000, 2_400).write(tmp_path)
    command = [sys.executable, "-m", "zerotrace", "analyze", str(tmp_path), "--no-hta", "--jobs", "2", "--force"]
    whole_s = {}
    for page in ("--no-report", "--report"):
        started = time.monotonic()
        subprocess.run([*command, page], stdout=subprocess.DEVNULL, check=True)
        whole_s[page] = time.monotonic() - started
    chance, before, ends = random.Random(KILLS), "clip", {"old": 0, "new": 0}
    for number in range(KILLS):
        wanted, page = "clip" if number % 2 else "launch", "--no-report" if number % 4 else "--report"
        process = subprocess.Popen(
            [*command, page, "--attribute", wanted], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        time.sleep(whole_s[page] * chance.uniform(0.2, 1.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        # In the middle of the exchange there may be none for a moment; the next run puts the old one back.
        if (tmp_path / "analysis").exists():
            found = assert_is_whole(tmp_path / "analysis")
            assert found in (before, wanted)
            ends["new" if found == wanted != before else "old"] += 1
            before = found
    sys.stdout.write(f"{KILLS} kills, whole runs take {whole_s}: {ends}\n")
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    assert_is_whole(tmp_path / "analysis")
    assert hidden(tmp_path) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["analysis", "rank_0.json", "rank_1.json"]


def test_an_old_result_that_a_kill_left_aside_is_put_back(tmp_path: Path) -> None:
    """The moment between two renames, which no test meets by chance."""
    one_step().write(tmp_path)
    first, folder, _ = analyze([tmp_path], options=PLAIN)
    (tmp_path / ".analysis.old-x").mkdir()
    folder.rename(tmp_path / ".analysis.old-x" / "was")
    with pytest.raises(StoreError, match="exists already"):
        analyze([tmp_path], options=AnalyzeOptions(hta=False, jobs=1, stage=1))
    assert read_analysis(tmp_path) == first
    assert hidden(tmp_path) == []


# ------------------------------------------------------------------ no room


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for a trace and not for the result."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    mounted = subprocess.run(mount, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small tmpfs here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.parametrize("room", [0, 9_000, 40_000])
def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path: Path, small_disk: Path, room: int) -> None:
    one_step().write(tmp_path / "run")
    disk = os.statvfs(small_disk)
    (small_disk / "full").write_bytes(b"x" * (disk.f_bavail * disk.f_bsize - room))
    command = [sys.executable, "-m", "zerotrace", "analyze", str(tmp_path / "run"), "--out", str(small_disk / "out")]
    done = subprocess.run([*command, "--no-hta"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    said, hint = done.stderr.splitlines()
    assert "cannot be written" in said
    assert "No space left on device" in said
    assert "give --out for another folder" in hint
    assert sorted(path.name for path in small_disk.iterdir()) == ["full"]


def test_a_worker_whose_parent_was_dead_before_it_began_ends_itself() -> None:
    """It is the kernel that ends workers with their parent; of one that is dead already the kernel says nothing."""
    code = (
        "import os, signal, sys, time\n"
        "from zerotrace.lifetime import die_with_parent\n"
        "parent = os.getpid()\n"
        "read, write = os.pipe()\n"
        "if os.fork(): os.close(write); os._exit(0)\n"
        "while os.getppid() == parent: time.sleep(0.01)\n"
        "print(os.getpid(), flush=True)\n"
        "die_with_parent(signal.SIGKILL, parent)\n"
        "print('alive', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "alive" not in done.stdout
    assert done.stdout.strip().isdigit()


_SIGNAL_WHILE_IMPORTING = """
import os, sys

class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), int(sys.argv[2]))

sys.meta_path.insert(0, Sender())
from zerotrace.cli import main
main(sys.argv[3:])
"""


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["numpy", "multiprocessing.reduction", "concurrent.futures.process"])
def test_a_signal_in_the_middle_of_an_import_ends_the_command(module: str, sig: int, tmp_path: Path) -> None:
    """Python may swallow an exception that comes up there, and the command would run on."""
    one_step().write(tmp_path / "run")
    command = [sys.executable, "-c", _SIGNAL_WHILE_IMPORTING, module, str(int(sig)), "analyze", str(tmp_path / "run")]
    done = subprocess.run([*command, "--no-report", "--no-hta"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-sig, "")
    assert not (tmp_path / "run" / "analysis").exists()
