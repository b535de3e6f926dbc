"""Inputs made to do harm: bombs, links, claims of size. Each is met by a limit or a word, at little cost."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import random
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.builders import TraceBuilder
from tests.unit.test_ingest import assert_is_one_step, codes, one_step
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.cli import main
from zerotrace.errors import StoreError, TraceError
from zerotrace.ingest import unpack
from zerotrace.ingest.logs import log_notes
from zerotrace.ingest.unpack import TooLargeError, UnpackLimits, gunzip
from zerotrace.store import read_analysis, read_manifest
from zerotrace.texts import shortened

PLAIN = AnalyzeOptions(hta=False, jobs=1)
MIB = 1 << 20


# ------------------------------------------------------------------ gzip


def bomb(unpacked_bytes: int) -> bytes:
    """Blanks in gzip, hundreds of times smaller than what they unpack to."""
    packer = zlib.compressobj(1, wbits=31)
    blanks = b" " * MIB
    return b"".join([*(packer.compress(blanks) for _ in range(unpacked_bytes // MIB)), packer.flush()])


def test_a_bomb_is_refused_before_it_has_cost_much(tmp_path: Path) -> None:
    (tmp_path / "rank_0.json.gz").write_bytes(bomb(1 << 30))
    code = (
        "import resource, sys\n"
        "from pathlib import Path\n"
        "from zerotrace.errors import TraceError\n"
        "from zerotrace.ingest.blocks import TraceText\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try: TraceText(Path(sys.argv[1])).whole()\n"
        "except TraceError as error: print(error.code, error.hint)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "rank_0.json.gz")]
    said, cost_kib = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert said.startswith("trace_too_large ")
    assert "--max-trace-size" in said
    assert int(cost_kib) < 400 * 1024


def test_a_bomb_of_many_members_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "rank_0.json.gz").write_bytes(bomb(32 * MIB) * 40)
    with pytest.raises(TraceError, match=r"rank_0\.json\.gz: too large for a trace: .* more than 200 times"):
        analyze([tmp_path], options=PLAIN)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_trace_above_the_limit_is_refused_and_one_below_read(tmp_path: Path, zipped: bool) -> None:
    one_step().write(tmp_path, zipped=zipped)
    size = len(one_step().text())
    with pytest.raises(TraceError, match="too large for a trace"):
        analyze([tmp_path], options=AnalyzeOptions(hta=False, jobs=1, limits=UnpackLimits(unpacked_bytes=size - 1)))
    limits = UnpackLimits(unpacked_bytes=size)
    assert_is_one_step(analyze([tmp_path], options=AnalyzeOptions(hta=False, jobs=1, limits=limits))[0])


def test_a_limit_by_name_allows_any_ratio(tmp_path: Path) -> None:
    text = one_step().text()
    data = gzip.compress(text.encode()) + bomb(80 * MIB)
    with pytest.raises(TooLargeError):
        gunzip(data, UnpackLimits())
    assert gunzip(data, UnpackLimits(ratio=None)).rstrip() == text.encode()


def test_pieces_and_members_make_up_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(7)
    for _ in range(400):
        monkeypatch.setattr(unpack, "_UNSEEN_BYTES", chance.choice([1, 7, 100, 5000]))
        monkeypatch.setattr(unpack, "_BLOCK", chance.choice([1, 64, 5000]))
        monkeypatch.setattr(unpack, "_LARGEST_INPUT", chance.choice([1, 16, 300]))
        monkeypatch.setattr(unpack, "_SMALLEST_INPUT", chance.choice([1, 10]))
        parts = [
            chance.choice([chance.randbytes(chance.randrange(90)), b"a" * chance.randrange(9000)])
            for _ in range(chance.randrange(1, 4))
        ]
        data = b"".join(map(gzip.compress, parts))
        whole = b"".join(parts)
        limits = UnpackLimits(unpacked_bytes=max(len(whole), 1), ratio=None)
        assert gunzip(data + chance.choice([b"", b"\0\0"]), limits) == whole
        with pytest.raises(EOFError):
            gunzip(data[:-1], limits)
        if len(whole) > 1:
            with pytest.raises(TooLargeError):
                gunzip(data, UnpackLimits(unpacked_bytes=len(whole) - 1, ratio=None))


def test_a_hundred_thousand_members_are_no_quadratic_matter() -> None:
    data = gzip.compress(b"") * 100_000
    started = time.process_time()
    assert gunzip(data, UnpackLimits()) == b""
    assert time.process_time() - started < 5


# ------------------------------------------------------------------ links


def test_a_link_that_leads_out_of_the_folder_is_not_followed_and_said(tmp_path: Path) -> None:
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    one_step(0, 2).write(run)
    (run / "rank_1.json").symlink_to(one_step(1, 2).write(elsewhere))
    (elsewhere / "train.log").write_text("Invalidate trace cache @ step 1")
    (run / "train.log").symlink_to(elsewhere / "train.log")
    analysis, _, _ = analyze([run], options=PLAIN)
    assert_is_one_step(analysis)
    assert [note.file for note in analysis.diagnostics if note.code == "link_refused"] == ["rank_1.json", "train.log"]
    assert {"missing_ranks", "prefetch_cache_invalidated"} & codes(analysis) == {"missing_ranks"}


def test_a_folder_of_links_alone_says_so(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "rank_0.json").symlink_to(one_step().write(tmp_path / "elsewhere"))
    with pytest.raises(TraceError, match=r"rank_0\.json: a link that leads out") as caught:
        analyze([tmp_path / "run"], options=PLAIN)
    assert caught.value.code == "link_refused"


def test_a_link_within_the_folder_and_one_by_name_are_followed(tmp_path: Path) -> None:
    run = tmp_path / "run"
    one_step().write(run, "first.bin")
    (run / "rank_0.json").symlink_to("first.bin")
    analysis, _, _ = analyze([run / "rank_0.json"], tmp_path / "within", PLAIN)
    assert_is_one_step(analysis)
    (tmp_path / "named.json").symlink_to(one_step().write(tmp_path / "elsewhere"))
    assert_is_one_step(analyze([tmp_path / "named.json"], tmp_path / "by_name", PLAIN)[0])
    (tmp_path / "run_link").symlink_to(run)
    (run / "rank_0.json").unlink()
    (run / "first.bin").rename(run / "rank_0.json")
    assert_is_one_step(analyze([tmp_path / "run_link"], tmp_path / "by_folder", PLAIN)[0])


@pytest.mark.parametrize("target", ["loop.json", "../nowhere/else.json", "/dev/zero"])
def test_links_to_nothing_good_cost_nothing(tmp_path: Path, target: str) -> None:
    one_step().write(tmp_path / "run")
    (tmp_path / "run" / "loop.json").symlink_to(target)
    assert_is_one_step(analyze([tmp_path / "run"], options=PLAIN)[0])


def test_a_manifest_from_elsewhere_is_not_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    one_step().write(run)
    (tmp_path / "private.json").write_text('{"secret": 1}')
    (run / "manifest.json").symlink_to("../private.json")
    for attempt in (lambda: analyze([run], options=PLAIN), lambda: read_manifest(run)):
        with pytest.raises(StoreError, match="a link that leads out of the folder") as caught:
            attempt()
        assert caught.value.code == "link_refused"


# ------------------------------------------------------------------ logs


def test_a_log_without_line_ends_is_read_in_pieces(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with log.open("wb") as stream:
        stream.truncate(400 * MIB)  # a hole: no room on disk
        stream.seek(0, os.SEEK_END)
        stream.write(b"Invalidate trace cache @ step 1")
    tracemalloc.start()
    (note,) = log_notes(log)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert note.count == 1
    assert peak < 20 * MIB


# ------------------------------------------------------------------ claims of size


def _many_ranks_in_groups(trace: TraceBuilder) -> None:
    members = str([*range(1_000_000)])
    for i in range(3):
        trace.all_gather(150 + 10 * i, 155 + 10 * i, **{"Process Group Ranks": members, "Group size": 1_000_000})


def _million_ranks_in_all(trace: TraceBuilder) -> None:
    trace.with_metadata(distributedInfo={"backend": "nccl", "rank": 0, "world_size": 10**18})


def _endless_number_of_ranks(trace: TraceBuilder) -> None:
    trace.all_gather(150, 250, **{"Process Group Ranks": f"[0, {'9' * 5000}]", "Group size": 10**30})


def _ranks_without_commas(trace: TraceBuilder) -> None:
    trace.all_gather(150, 250, **{"Process Group Ranks": "[0 1, 1]"})


@pytest.mark.parametrize(
    "claim", [_many_ranks_in_groups, _million_ranks_in_all, _endless_number_of_ranks, _ranks_without_commas]
)
def test_ranks_that_are_only_claimed_cost_nothing(tmp_path: Path, claim: Callable[[TraceBuilder], None]) -> None:
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(2, 0, 500).compute(100, 200)
        claim(trace)
        trace.write(tmp_path / "run", f"rank_{rank}.json")
        if claim is _million_ranks_in_all:
            break
    started = time.process_time()
    analysis, _, _ = analyze([tmp_path / "run"], options=PLAIN)
    assert analysis.partition[0].compute_ns == 100_000
    assert time.process_time() - started < 20


@pytest.mark.parametrize("name", ["Ψ" * 400, "a/" * 3000 + "b", "nul\0byte"])
def test_a_file_name_that_no_file_can_have_is_one_that_is_not_there(name: str, tmp_path: Path) -> None:
    source = json.loads((Path(__file__).resolve().parents[2] / "traces" / "single" / "manifest.json").read_text())
    source["ranks"][0] |= {"snapshot_file": name, "owners_file": name}
    (tmp_path / "manifest.json").write_text(json.dumps(source))
    one_step().write(tmp_path)
    analysis, _, _ = analyze([tmp_path], options=PLAIN)
    assert_is_one_step(analysis)


def test_a_manifest_of_a_billion_ranks_is_refused_at_once(tmp_path: Path) -> None:
    source = json.loads((Path(__file__).resolve().parents[2] / "traces" / "stage3" / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**source, "world_size": 10**9}))
    started = time.process_time()
    with pytest.raises(StoreError, match="world_size is 1000000000, and 999999998 of its ranks have no record"):
        read_manifest(tmp_path)
    assert time.process_time() - started < 2


def test_nothing_that_metadata_names_is_opened(tmp_path: Path) -> None:
    """Paths in a trace (its own name, the host, devices, kernels) are texts."""
    fifo = tmp_path / "pipe.json"
    os.mkfifo(fifo)  # whoever opens it waits for ever
    trace = one_step().with_metadata(traceName=str(fifo), host_name=str(fifo), deviceProperties=[{"name": str(fifo)}])
    trace.host(str(fifo), 10, 20, **{"Call stack": str(fifo)}).write(tmp_path / "run")
    assert_is_one_step(analyze([tmp_path / "run"], options=PLAIN)[0])


# ------------------------------------------------------------------ names


def hostile(name: str, size: int) -> str:
    """A name that would set colours, run script, be a formula, reorder what stands beside it, and fill the disk."""
    return f"=\x1b[31m</script><img src=x onerror=hacked()>{name}\u202e\x9b31m" + "y" * size + name


def hostile_run(folder: Path, size: int) -> Path:
    """A run in which all that may be any text is :func:`hostile`."""
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(2, 0, 500)
        trace.compute(10, 100, name=hostile("one", size)).compute(100, 150, name=hostile("two", size))
        trace.copy(300, 310, name=hostile("copy", size)).host(hostile("op", size), 1, 50)
        trace.all_gather(150, 250, **{"Process Group Name": hostile("group", size), "dtype": hostile("dtype", size)})
        trace.collective(hostile("collective", size), 260, 280, elements=100).label(hostile("label", size), 2, 20)
        trace.with_metadata(
            host_name=hostile("host", size),
            deviceProperties=[{"id": 0, "name": hostile("gpu", size)}],
            distributedInfo={"backend": hostile("backend", size), "rank": rank, "world_size": 2},
        ).write(folder)
    (folder / "train.log").write_text("Invalidate trace cache" + hostile("log", size))
    return folder


def zerotrace(*words: str) -> Result:
    return CliRunner().invoke(main, [*words], prog_name="zerotrace")


def test_names_of_a_megabyte_are_cut_where_they_are_shown_and_nowhere_else(tmp_path: Path) -> None:
    small, large = hostile_run(tmp_path / "0" / "run", 10), hostile_run(tmp_path / "1" / "run", 1_000_000)
    said = [zerotrace("analyze", str(run), "--jobs", "1", "--no-hta") for run in (small, large)]
    assert [done.exit_code for done in said] == [0, 0], said[1].output
    assert not set("\x1b\x9b\u202e") & set("".join(done.output for done in said))
    assert len(said[1].output) < 40_000
    few, many = (read_analysis(run) for run in (small, large))
    assert few.partition == many.partition
    assert [kernel.total_ns for kernel in few.top_kernels] == [kernel.total_ns for kernel in many.top_kernels]
    assert max(len(kernel.name) for kernel in many.top_kernels) > 1_000_000
    pages = [(run / "analysis" / "report.html").stat().st_size for run in (small, large)]
    assert pages[1] < pages[0] + 1_000_000


@pytest.mark.parametrize("engine", ["=1+1", "+1", "-1+1", "@x", "\t=1", "\r=1", "\n=1", "=a\r=1"])
def test_no_cell_of_csv_is_a_formula(tmp_path: Path, engine: str) -> None:
    source = json.loads((Path(__file__).resolve().parents[2] / "traces" / "single" / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**source, "engine": engine, "stage": None}))
    done = zerotrace("compare", str(tmp_path), "--csv")
    assert done.exit_code == 0, done.output
    (row,) = list(csv.reader(io.StringIO(done.stdout)))[1:]
    assert row[0] == "'" + engine.encode("unicode_escape").decode()
    assert all(float(cell) > 0 for cell in row[1:] if cell)


def test_shortened_texts_keep_both_ends_and_stay_apart() -> None:
    one, two = ("a" * 5000 + char + "a" * 5000 for char in "xy")
    assert shortened("a" * 4000) == "a" * 4000
    assert shortened(one) != shortened(two)
    assert len(shortened(one)) < 4100
    assert shortened("begin" + one + "end").startswith("begina")
    assert shortened("begin" + one + "end").endswith("aend")
    assert "\ud800" not in shortened("a" * 4000 + "\ud800" * 10 + "a" * 4000)
