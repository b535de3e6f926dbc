"""Runs and results in a store: read and written as if they lay here, and never half of one."""

from __future__ import annotations

import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.builders import TraceBuilder
from tests.stores import KEY, SECRET, Bucket
from zerotrace.address import Url, parse_place
from zerotrace.cli import main
from zerotrace.errors import StoreError
from zerotrace.mirror import HEAD_BYTES, UPLOAD_FILE, Mirror

ROOT = Path(__file__).resolve().parents[2]
STAGE3 = ROOT / "traces" / "stage3"
PLAIN = ("--no-hta", "--no-report")


def zerotrace(*words: str) -> Result:
    return CliRunner().invoke(main, [*words], prog_name="zerotrace")


def program(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, as a person starts it."""
    command = [sys.executable, "-m", "zerotrace", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )  # fmt: skip


def long_trace(rank: int, num_ranks: int = 2, kernels: int = 400) -> TraceBuilder:
    """Longer than what is brought of a file at once."""
    trace = TraceBuilder(rank, num_ranks).step(2, 0, 10_000).all_gather(150, 250)
    for number in range(kernels):
        trace.compute(300 + 20 * number, 310 + 20 * number)
    return trace


@pytest.fixture
def run_url(bucket: Bucket, tmp_path: Path) -> str:
    for rank in range(2):
        assert long_trace(rank).write(tmp_path / "run").stat().st_size > 2 * HEAD_BYTES
    url = bucket.upload(tmp_path / "run", "team/run")
    bucket.server.asked.clear()
    return url


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files, which must be empty at the end of each command."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    return folder


def figures(text: bytes) -> dict[str, object]:
    found = json.loads(text)
    return {key: value for key, value in found.items() if key not in ("elapsed_s", "store_marks")}


# ------------------------------------------------------------------ there and back


def test_a_run_in_a_store_has_the_result_of_the_same_run_here(bucket: Bucket, tmp_path: Path, temporary: Path) -> None:
    here = tmp_path / "team" / "stage3"
    shutil.copytree(STAGE3, here, ignore=shutil.ignore_patterns("analysis"))
    url = bucket.upload(here, "team/stage3")
    local = zerotrace("analyze", str(here), "--no-hta")
    remote = zerotrace("analyze", url, "--no-hta")
    assert (local.exit_code, remote.exit_code) == (0, 0), remote.output
    assert remote.stdout.splitlines()[-1] == f"Report: {url}/analysis/report.html"
    names = [path.relative_to(here / "analysis").as_posix() for path in (here / "analysis").rglob("*.*")]
    assert bucket.names("team/stage3/analysis") == sorted(name for name in names if "=" not in Path(name).name)
    for name in bucket.names("team/stage3/analysis"):
        there, written = bucket.read(f"team/stage3/analysis/{name}"), (here / "analysis" / name).read_bytes()
        if name == "analysis.json":
            assert figures(there) | {"run_name": ""} == figures(written) | {"run_name": ""}
        elif name != "report.html":
            assert there == written, name
    assert not list(temporary.iterdir())


def test_a_trace_is_fetched_by_whoever_reads_it_and_is_gone_afterwards(
    bucket: Bucket, run_url: str, tmp_path: Path
) -> None:
    mirror = Mirror((tmp_path / "mirror").resolve())
    mirror.root.mkdir()
    (folder,) = mirror.bring_run([Url(run_url)])
    stubs = sorted(folder.iterdir())
    assert [path.stat().st_size for path in stubs] == [HEAD_BYTES, HEAD_BYTES]
    with mirror.file(stubs[0]).whole() as path:
        assert path.read_bytes() == bucket.read("team/run/rank_0.json")
        assert path.name == "rank_0.json"
        assert path.is_relative_to(mirror.root)
    assert not path.exists()
    assert sorted(folder.iterdir()) == stubs


def test_what_stands_behind_the_beginning_of_a_log_is_read(bucket: Bucket, run_url: str) -> None:
    bucket.write("team/run/run.log", b"step\n" * HEAD_BYTES + b"Invalidate trace cache @ step 3\n")
    done = zerotrace("analyze", run_url, *PLAIN, "--json")
    assert "prefetch_cache_invalidated" in {note["code"] for note in json.loads(done.stdout)["diagnostics"]}


def test_single_traces_of_a_store_are_a_run(bucket: Bucket, run_url: str) -> None:
    done = zerotrace("analyze", f"{run_url}/rank_1.json", *PLAIN)
    assert done.exit_code == 0, done.output
    assert [source["rank"] for source in json.loads(bucket.read("team/run/analysis/analysis.json"))["sources"]] == [1]


def test_result_here_of_a_run_there_and_there_of_a_run_here(bucket: Bucket, run_url: str, tmp_path: Path) -> None:
    assert zerotrace("analyze", run_url, "--out", str(tmp_path / "here"), *PLAIN).exit_code == 0
    assert bucket.names("team/run") == ["rank_0.json", "rank_1.json"]
    done = zerotrace("analyze", str(tmp_path / "run"), "--out", f"{bucket.url}/there", *PLAIN)
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, f"Tables: {bucket.url}/there")
    for name in bucket.names("there"):
        if name != "analysis.json":
            assert bucket.read(f"there/{name}") == (tmp_path / "here" / name).read_bytes()


def test_stored_results_are_read_by_the_other_commands(bucket: Bucket, tmp_path: Path, temporary: Path) -> None:
    here = tmp_path / "team" / "stage3"
    shutil.copytree(STAGE3, here, ignore=shutil.ignore_patterns("analysis"))
    url = bucket.upload(here, "team/stage3")
    assert zerotrace("analyze", url, "--no-hta").exit_code == 0
    page = bucket.read("team/stage3/analysis/report.html")
    bucket.fs.rm_file(f"{bucket.name}/team/stage3/analysis/report.html")
    drawn = zerotrace("report", url)
    assert (drawn.exit_code, drawn.stdout) == (0, f"Report: {url}/analysis/report.html\n")
    assert bucket.read("team/stage3/analysis/report.html") == page
    for folder in (url, f"{url}/analysis"):
        checked = zerotrace("check", folder, "--fail-if", "span_ns > 1ms", "--baseline", url)
        assert checked.exit_code == 3, checked.output
        assert f"worse than {url}." in " ".join(checked.stdout.split())
    compared = zerotrace("compare", url, str(STAGE3), "--json")
    assert json.loads(compared.stdout)["runs"][0]["exposed_ns"] is not None
    exported = zerotrace("export", url, "--perfetto", str(tmp_path / "all.pftrace"))
    assert exported.exit_code == 0, exported.output
    assert (tmp_path / "all.pftrace").stat().st_size > 100_000
    assert not list(temporary.iterdir())


# ------------------------------------------------------------------ what is there already


def test_an_unchanged_run_is_neither_analysed_nor_fetched_again(bucket: Bucket, run_url: str) -> None:
    assert zerotrace("analyze", run_url, *PLAIN).exit_code == 0
    whole = bucket.server.requests("GET", "rank_0.json")
    assert len(whole) == 2  # its beginning, and all of it
    bucket.server.asked.clear()
    again = zerotrace("analyze", run_url, *PLAIN)
    assert "The traces are unchanged" in again.stderr
    assert len(bucket.server.requests("GET", "rank_0.json")) == 1
    assert bucket.server.requests("PUT") == []


def test_a_mark_of_the_store_that_changed_lets_the_content_decide(bucket: Bucket, run_url: str) -> None:
    assert zerotrace("analyze", run_url, *PLAIN).exit_code == 0
    result = json.loads(bucket.read("team/run/analysis/analysis.json"))
    result["store_marks"]["rank_0.json"] = "another"
    bucket.write("team/run/analysis/analysis.json", json.dumps(result).encode())
    assert "The traces are unchanged" in zerotrace("analyze", run_url, *PLAIN).stderr


def test_the_result_of_other_traces_is_replaced_only_by_force(bucket: Bucket, run_url: str) -> None:
    assert zerotrace("analyze", run_url, *PLAIN).exit_code == 0
    old = bucket.read("team/run/analysis/analysis.json")
    bucket.fs.rm_file(f"{bucket.name}/team/run/rank_1.json")
    bucket.write("team/run/rank_0.json", long_trace(0, 1, kernels=500).text().encode())
    refused = zerotrace("analyze", run_url, *PLAIN)
    assert refused.exit_code == 1
    assert refused.stderr.splitlines() == [
        f"zerotrace: {run_url}/analysis exists already, and it was made from other files (rank_0.json, rank_1.json)",
        "  give --force to replace it, or --out for another folder",
    ]
    assert bucket.read("team/run/analysis/analysis.json") == old
    assert zerotrace("analyze", run_url, *PLAIN, "--force").exit_code == 0
    events = [name for name in bucket.names("team/run/analysis") if name.startswith("events")]
    assert events == ["events/rank=0/part-0.parquet"]  # those of rank 1 are gone
    assert UPLOAD_FILE not in bucket.names("team/run/analysis")


def test_a_folder_that_is_no_result_is_never_written_to(bucket: Bucket, run_url: str) -> None:
    bucket.write("mine/thesis.txt", b"words")
    done = zerotrace("analyze", run_url, "--out", f"{bucket.url}/mine", *PLAIN, "--force")
    assert done.exit_code == 1
    assert done.stderr.splitlines()[0] == f"zerotrace: {bucket.url}/mine exists already, and is no result of zerotrace"
    assert bucket.names("mine") == ["thesis.txt"]


# ------------------------------------------------------------------ interrupted, or two at once


def test_figures_are_written_last(bucket: Bucket, run_url: str) -> None:
    assert zerotrace("analyze", run_url, *PLAIN).exit_code == 0
    written = [path.rpartition("/")[2] for path in bucket.server.requests("PUT")]
    assert written[0] == UPLOAD_FILE
    assert written[-1] == "analysis.json"
    assert written.count("analysis.json") == 1


@pytest.mark.parametrize("has_old", [False, True])
def test_a_run_killed_while_it_writes_leaves_nothing_that_looks_whole(
    bucket: Bucket, run_url: str, has_old: bool
) -> None:
    if has_old:
        assert zerotrace("analyze", run_url, *PLAIN).exit_code == 0
        bucket.server.asked.clear()
    command = [sys.executable, "-m", "zerotrace", "analyze", run_url, *PLAIN, "--force", "--jobs", "1"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL) as child:
        deadline = time.monotonic() + 60
        while not bucket.server.requests("PUT", ".parquet") and time.monotonic() < deadline:
            time.sleep(0.001)
        child.send_signal(signal.SIGKILL)
    names = bucket.names("team/run/analysis")
    assert "analysis.json" not in names
    assert UPLOAD_FILE in names
    assert zerotrace("check", run_url, "--list").exit_code == 1
    # The next run needs no --force.
    assert zerotrace("analyze", run_url, *PLAIN).exit_code == 0
    assert UPLOAD_FILE not in bucket.names("team/run/analysis")


def test_the_first_of_two_that_write_one_result_gives_way(bucket: Bucket, tmp_path: Path) -> None:
    result = tmp_path / "result"
    result.mkdir()
    (result / "analysis.json").write_text("{}")
    (result / "steps.parquet").write_text("rows")
    mirrors = []
    for name in ("first", "second"):
        mirror = Mirror((tmp_path / name).resolve())
        mirror.bring_result(Url(f"{bucket.url}/out"))
        mirror.claim()
        mirrors.append(mirror)
    with pytest.raises(StoreError, match="another run has begun to write it") as caught:
        mirrors[0].send_result(result)
    assert caught.value.code == "busy"
    assert bucket.names("out") == [UPLOAD_FILE]
    mirrors[1].send_result(result)
    assert bucket.names("out") == ["analysis.json", "steps.parquet"]


def test_an_analysis_that_fails_takes_its_mark_away(bucket: Bucket, run_url: str) -> None:
    bucket.write("team/run/rank_1.json", long_trace(0).text().encode())
    done = zerotrace("analyze", run_url, *PLAIN)
    assert done.exit_code == 1
    assert bucket.names("team/run") == ["rank_0.json", "rank_1.json"]


# ------------------------------------------------------------------ what goes wrong


def assert_is_one_message(done: subprocess.CompletedProcess[str], first: str, hint: str) -> None:
    assert (done.returncode, done.stdout) == (1, "")
    said = done.stderr.splitlines()
    assert re.fullmatch(first, said[0]), said
    assert hint in said[1]
    assert len(said) == 2, said
    assert SECRET not in done.stderr and KEY not in done.stderr


def test_no_such_bucket_folder_or_trace(bucket: Bucket) -> None:
    for url in ("s3://no-such-bucket/run", f"{bucket.url}/none", f"{bucket.url}/none/rank_0.json"):
        done = program("analyze", url)
        assert_is_one_message(done, f"zerotrace: {url}: there is no such bucket, folder or file", "AWS_ENDPOINT_URL")
    for words in (["check", "--list"], ["report"], ["compare"], ["export", "--perfetto", "x"]):
        done = program(words[0], f"{bucket.url}/none", *words[1:])
        assert_is_one_message(done, f"zerotrace: {bucket.url}/none: there is no such .*", "check the name")


def test_a_result_that_cannot_be_written_is_said_before_the_work(bucket: Bucket, run_url: str) -> None:
    done = program("analyze", run_url, "--out", "s3://no-such-bucket/out", *PLAIN)
    assert_is_one_message(done, "zerotrace: s3://no-such-bucket/out.*: there is no such bucket.*", "check the name")
    assert len(bucket.server.requests("GET", "rank_0.json")) == 1


def test_a_store_that_cannot_be_reached(bucket: Bucket) -> None:
    done = program("analyze", f"{bucket.url}/run", AWS_ENDPOINT_URL="http://127.0.0.1:1")
    assert_is_one_message(done, r"zerotrace: s3://\S+/run: the store cannot be reached \(.*\)", "AWS_ENDPOINT_URL")


def test_no_credentials(bucket: Bucket) -> None:
    done = program("analyze", f"{bucket.url}/run", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert_is_one_message(done, r"zerotrace: s3://\S+/run: the store refuses access \(.*\); expected .*", "AWS_PROFILE")


def test_wrong_credentials(bucket: Bucket, run_url: str) -> None:
    def authenticate_after(count: str) -> None:
        address = f"{bucket.server.endpoint}/moto-api/reset-auth"
        wanted = urllib.request.Request(address, count.encode(), {"Content-Type": "text/plain"})
        urllib.request.urlopen(wanted).close()

    authenticate_after("0")
    try:
        for words in (["analyze"], ["-vv", "analyze"]):
            done = program(*words, run_url)
            assert (done.returncode, done.stdout) == (1, "")
            assert re.search(r"the store refuses access \(ClientError \w+\); expected credentials", done.stderr)
            assert SECRET not in done.stderr and KEY not in done.stderr
    finally:
        authenticate_after("1000000")


def test_s3fs_that_is_missing(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "s3fs.py").write_text("raise ImportError('No module named s3fs')")
    done = program("analyze", f"{bucket.url}/run", PYTHONPATH=f"{tmp_path / 'lacking'}{os.pathsep}{ROOT}")
    first = r"zerotrace: s3://\S+/run: to reach it, fsspec needs s3fs that is not installed"
    assert_is_one_message(done, first, "pip install 'zerotrace[s3]'")


def test_protocols_that_nobody_knows() -> None:
    assert_is_one_message(
        program("analyze", "s4://bucket/run"),
        "zerotrace: s4://bucket/run: fsspec knows no s4://; expected .*", "check how it is written",
    )  # fmt: skip


def test_traces_of_several_places_are_no_run(bucket: Bucket, run_url: str, tmp_path: Path) -> None:
    bucket.write("other/rank_1.json", b"{}")
    for words in ([f"{run_url}/rank_0.json", f"{bucket.url}/other/rank_1.json"], [run_url, str(tmp_path / "run")]):
        done = zerotrace("analyze", *words)
        assert done.exit_code == 1
        assert "expected one run" in done.stderr


def test_names_that_lead_out_of_a_result_are_not_fetched(bucket: Bucket, run_url: str, tmp_path: Path) -> None:
    assert zerotrace("analyze", run_url, *PLAIN).exit_code == 0
    result = json.loads(bucket.read("team/run/analysis/analysis.json"))
    result["outputs"].append("../../../../../../evil")
    bucket.write("team/run/analysis/analysis.json", json.dumps(result).encode())
    bucket.server.asked.clear()
    mirror = Mirror((tmp_path / "mirror").resolve())
    mirror.bring_analysis(Url(run_url), tables=True)
    assert not [line for line in bucket.server.asked if "evil" in line]


# ------------------------------------------------------------------ addresses


def test_a_signed_address_is_read_and_never_shown(bucket: Bucket, run_url: str, tmp_path: Path) -> None:
    signed = bucket.fs.sign(f"{bucket.name}/team/run/rank_0.json")
    signature = re.findall(r"Signature=([^&]+)", signed)[0]
    out = tmp_path / "out"
    done = program("analyze", signed, "--out", str(out), "--no-hta")
    assert done.returncode == 0, done.stderr
    written = [path for path in out.rglob("*") if path.is_file()]
    texts = [done.stdout, done.stderr, *(path.read_bytes().decode("latin-1") for path in written)]
    gone = signed.replace("rank_0.json", "rank_7.json")
    for words in (["analyze", gone], ["-vv", "analyze", gone]):
        failed = program(*words)
        assert failed.returncode == 1
        assert "there is no such file" in failed.stderr
        texts += [failed.stdout, failed.stderr]
    refused = program("analyze", signed)
    assert "a web server takes no files" in refused.stderr
    for text in (*texts, refused.stderr):
        assert signature not in text
        assert "Signature" not in text


class _Answers(http.server.BaseHTTPRequestHandler):
    """Answers with the status that stands in the path; a manifest it refuses."""

    def do_GET(self) -> None:
        wanted = int(self.path.split("/")[1])
        self.send_response(403 if "manifest" in self.path else wanted)
        body = long_trace(0, 1).text().encode() if wanted == 200 else b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body if self.command == "GET" else b"")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def web_server() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (403, r"the store refuses access \(ClientResponseError 403\); expected credentials that may do this"),
        (404, "there is no such file"),
        (500, r"the store failed \(ClientResponseError 500\)"),
        (None, r"the store cannot be reached \(ClientConnectorError\)"),
    ],
)
def test_what_a_web_server_answers_is_told_without_the_address(web_server: str, status: int | None, said: str) -> None:
    server = web_server if status else "http://127.0.0.1:1"
    url = f"{server}/{status}/rank_0.json"
    done = program("-vv", "analyze", f"{url}?X-Amz-Signature=0123456789abcdef")
    assert done.returncode == 1
    assert re.search(rf"^zerotrace: {re.escape(url)}: {said}$", done.stderr, re.M), done.stderr
    assert "Traceback" in done.stderr
    assert "Signature" not in done.stderr


def test_a_trace_of_a_web_server_needs_no_manifest(web_server: str, tmp_path: Path) -> None:
    done = program("analyze", f"{web_server}/200/rank_0.json", "--out", str(tmp_path / "out"), *PLAIN)
    assert done.returncode == 0, done.stderr
    assert (
        done.stderr == f"Note: {web_server}/200/manifest.json was refused: the traces are taken to have no manifest.\n"
    )


@pytest.mark.parametrize(
    ("address", "shown", "name"),
    [
        ("s3://bucket/run", "s3://bucket/run", "run"),
        ("s3://bucket/run/", "s3://bucket/run", "run"),
        ("https://me:pass@host/dir/a%20b.json?X-Amz-Signature=1#x", "https://host/dir/a%20b.json", "a b.json"),
        ("sftp://me:pass@host/run", "sftp://host/run", "run"),
        ("s3://bucket/a?b#c", "s3://bucket/a?b#c", "a?b#c"),
    ],
)
def test_what_is_shown_of_an_address(address: str, shown: str, name: str) -> None:
    url = parse_place(address)
    assert isinstance(url, Url)
    assert (str(url), url.name) == (shown, name)
    assert "pass" not in repr(url)


def test_paths_are_no_addresses() -> None:
    for text in ("traces/stage3", "/a/b", "C:/x", "a:b//c", "file:///a/b"):
        assert isinstance(parse_place(text), Path)
    assert parse_place("file:///a/b") == Path("/a/b")


def test_fsspec_is_not_imported_for_paths(tmp_path: Path) -> None:
    long_trace(0, 1).write(tmp_path / "run")
    code = (
        "import sys; from zerotrace.cli import main; main(sys.argv[1:], standalone_mode=False);"
        "sys.exit(sorted({'fsspec', 's3fs', 'aiohttp'} & set(sys.modules)) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "analyze", str(tmp_path / "run"), *PLAIN],
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
