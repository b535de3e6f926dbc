"""Inputs made from bytes, and targets for them: for the tests with hypothesis, the corpus, and tools/fuzz.py.

A *target* takes any bytes. It ends with a :class:`ZerotraceError`, which it swallows, or with a result whose identities
it checks; every other end is a finding. The target ``mutated`` reads its bytes as a program: which run to start from,
and what to change in it, so that deep code is reached too.
"""

from __future__ import annotations

import atexit
import copy
import gzip
import json
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from msgspec.structs import replace

from tests.allocator import MIB, TinyAllocator
from tests.builders import TraceBuilder
from tests.identities import check_result
from zerotrace.analysis.memory.measure import measure
from zerotrace.analysis.run import AnalyzeOptions, Renderer, analyze
from zerotrace.cli import main
from zerotrace.errors import ZerotraceError
from zerotrace.ingest.owners import read_owners
from zerotrace.ingest.snapshot import read_snapshot
from zerotrace.labels import (
    LABEL_VERSION,
    GatherKind,
    Label,
    LabelEvent,
    Phase,
    format_label,
    is_label,
    label_event,
    parse_label,
)
from zerotrace.model import Analysis, Attribution
from zerotrace.report.build import render
from zerotrace.report.rows import EVENT_COLUMNS
from zerotrace.store import read_manifest

ROOT = Path(__file__).resolve().parents[1]
CORPUS = ROOT / "tests" / "corpus"

PAGE = Renderer(render, EVENT_COLUMNS)


# ------------------------------------------------------------------ runs to start from


def zero3_rank(rank: int) -> TraceBuilder:
    """Two steps of something like stage 3: labelled gathers, reductions, copies, waits, nested host calls."""
    trace = TraceBuilder(rank, 2).step(2, 0, 500).step(3, 500, 1000)
    for at in (0, 500):
        trace.fetch("layer.0", at + 5, at + 20).fetch("layer.1", at + 200, at + 215)
        trace.gather(GatherKind.DEMAND, at + 6, at + 20, at + 60 + rank, params="a,b", module="layer.0")
        trace.gather(GatherKind.PREFETCH, at + 12, at + 70, at + 120, params="c", module="layer.0", Seq=7 + at)
        trace.label(Label(event=LabelEvent.FORWARD, phase=Phase.FORWARD, module="layer.0"), at + 21, at + 100)
        trace.compute(at + 80, at + 180 + rank, grid=[2, 1, 1], block=[64, 1, 1]).compute(at + 220, at + 300)
        trace.collective("_reduce_scatter_base", at + 310, at + 380 + rank, elements=4096, Seq=at, stream=21)
        trace.copy(at + 390, at + 400).copy(at + 300, at + 330, stream=25)
        trace.host("aten::mm", at + 30, at + 60).host("aten::addmm", at + 31, at + 50).host(
            "c10d::op", at + 61, at + 63
        )
        trace.stream_wait(at + 150, source=20, recorded=at + 149)
        trace.sync_call("cudaStreamSynchronize", at + 410, at + 430, "Stream Synchronize")
    memory = {"Total Allocated": 1 << 20, "Total Reserved": 2 << 20, "Bytes": 512, "Device Type": 1, "Device Id": 0}
    trace.event(ph="i", name="[memory]", ts=30, s="t", args=memory)
    return trace.event(ph="s", id=1, pid=1, tid=2, ts=3, cat="ac2g", name="flow")


def gloo_rank(rank: int) -> TraceBuilder:
    """A CPU run: the host's time is taken apart."""
    trace = TraceBuilder(rank, 2, backend="gloo").step(1, 0, 300)
    trace.host("aten::mm", 10, 100, tid=1).host("record_param_comms", 20, 60, tid=1, **{"Collective name": "allreduce"})
    return trace.host("gloo:all_reduce", 50 + rank, 150, tid=2, cat="user_annotation").host(
        "aten::add", 160, 200, tid=1
    )


def old_rank(rank: int) -> TraceBuilder:
    """A trace as torch 1.8 wrote it: categories in capitals, streams in texts, no metadata of collectives, no steps."""
    trace = TraceBuilder(rank, 2).with_metadata(baseTimeNanoseconds=None)
    for at in (0, 100):
        trace.event(ph="X", cat="Kernel", name="ncclKernel_AllReduce_RING_LL_Sum_float", pid=0, tid="stream 9",
                    ts=1_600_000_000_000_000.25 + at, dur=30, args={"stream": 9, "external id": 5})  # fmt: skip
        trace.event(ph="X", cat="Kernel", name="sgemm", pid="0", tid="stream 7", ts=1_600_000_000_000_010 + at, dur=40,
                    args={"external id": "6"})  # fmt: skip
    return trace


RUNS: tuple[Callable[[int], TraceBuilder], ...] = (zero3_rank, gloo_rank, old_rank)


# ------------------------------------------------------------------ what is changed in them

#: What stands in the place of something else. Texts and numbers that mean something to some reader are among them.
ODD: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 100, 4001, 2**31 - 1, 2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 10**30,
    -(2**63), 0.5, -0.5, 1e-320, 1e16, 1e300, -1e300, float("nan"), float("inf"), float("-inf"), 1790000000000000.25,
    "", " ", "0", "-1", "1e3", "7", "0x10", "nan", "9" * 30, "9" * 5000, "\0", "\ud800", "\u202e", "Ψ" * 300,
    "x" * 70000, "ProfilerStep#2", "ProfilerStep#-1", "ProfilerStep#99999999999999999999", "kernel", "gpu_memcpy",
    "cuda_sync", "user_annotation", "cpu_op", "python_function", "cuda_runtime", "gloo:all_reduce",
    "record_param_comms", "wait", "allreduce", "_allgather_base", "broadcast", "send", "recv", "all_to_all",
    "ncclDevKernel_SendRecv", "BFloat16", "Int8", "[0, 1]", "[0,1,2]", "[]", "[1 2]", "[0, 99999999999999999999]",
    "[0, 1, ..., 7]", "stream 7", "stream " + "7" * 5000, "[memory]", "zt1:gather",
    "zt1:gather kind=prefetch n=99999999999999999999999 params=a,b", "zt1:forward phase=forward module=%",
    "zt" + "1" * 5000 + ":gather", "zt:gather kind=demand fwd for=a n=" + "9" * 20 + " numel=1 first=b",
    "PreBackward", "cudaStreamSynchronize", "cudaLaunchKernel", "nccl", "gloo", "mpi", "\x1b[31m</script>", [], [1],
    [[]], [None], [0, 1], ["a"], {}, {"a": 1}, {"rank": 1}, {"name": None}, {"name": {}}, [1, 2, 3, 4, 5], [{}],
)  # fmt: skip

EVENT_KEYS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "args")
ARGS_KEYS = (
    "External id", "external id", "correlation", "device", "stream", "grid", "block", "Collective name",
    "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name", "Process Group Ranks", "Seq",
    "bytes", "wait_on_stream", "wait_on_cuda_event_record_corr_id", "Src Rank", "Dst Rank", "cuda_sync_kind",
    "Total Allocated", "Total Reserved", "Bytes", "Device Type", "Device Id",
)  # fmt: skip
TOP_KEYS = ("schemaVersion", "traceEvents", "baseTimeNanoseconds", "distributedInfo", "deviceProperties", "host_name")
INFO_KEYS = ("rank", "world_size", "backend", "pg_config")


class Choices:
    """Choices that bytes make, one or two of them each; zeros when they are used up."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    def below(self, count: int) -> int:
        """A number from 0 on."""
        width = 1 if count <= 256 else 2
        piece = self._data[self._place : self._place + width]
        self._place += width
        return int.from_bytes(piece, "little") % count

    def of(self, items: Any) -> Any:
        """One of several."""
        return items[self.below(len(items))]

    def odd(self) -> Any:
        """A copy of one of :data:`ODD`."""
        return copy.deepcopy(self.of(ODD))

    @property
    def done(self) -> bool:
        """Whether the bytes are used up."""
        return self._place >= len(self._data)


def mutated(program: bytes) -> tuple[list[bytes], AnalyzeOptions]:
    """The files of a run, changed as the bytes say, and the options to analyse it with."""
    choices = Choices(program)
    make = choices.of(RUNS)
    options = AnalyzeOptions(hta=False, jobs=1, force=True, attribution=choices.of(list(Attribution)))
    if choices.below(8) == 7:
        options = replace(options, stage=choices.below(4), num_params=1 + choices.below(9) ** 9)
    documents: list[dict[str, Any]] = []
    for rank in range(1 + choices.below(2)):
        trace = make(rank)
        documents.append({**trace.metadata, "traceEvents": trace.events})
    documents = json.loads(json.dumps(documents))
    cuts: list[Callable[[bytes], bytes]] = []
    while not choices.done:
        cut = _change(choices, choices.of(documents))
        if cut is not None:
            cuts.append(cut)
    texts = [json.dumps(document).encode() for document in documents]
    for cut in cuts:
        texts[0] = cut(texts[0])
    return texts, options


def _change(choices: Choices, document: dict[str, Any]) -> Callable[[bytes], bytes] | None:
    events = document.get("traceEvents")
    if not isinstance(events, list) or not events:
        events = document["traceEvents"] = [{"ph": "X"}]
    kind = choices.below(17)
    event = choices.of(events)
    if not isinstance(event, dict):
        return None
    args = event.get("args")
    if kind < 5 and isinstance(args, dict):
        args[choices.of(ARGS_KEYS)] = choices.odd()
    elif kind < 8:
        event[choices.of(EVENT_KEYS)] = choices.odd()
    elif kind == 16:
        in_args, odd = choices.below(2), choices.odd()
        key = choices.of(ARGS_KEYS if in_args else EVENT_KEYS)
        for alike in events:
            if isinstance(alike, dict) and alike.get("cat") == event.get("cat"):
                place = alike.get("args") if in_args else alike
                if isinstance(place, dict):
                    place[key] = odd
    elif kind == 8:
        event.pop(choices.of(EVENT_KEYS), None)
    elif kind == 9 and isinstance(args, dict):
        args.pop(choices.of(ARGS_KEYS), None)
    elif kind == 10:
        document[choices.of(TOP_KEYS)] = choices.odd()
    elif kind == 11 and isinstance(document.get("distributedInfo"), dict):
        document["distributedInfo"][choices.of(INFO_KEYS)] = choices.odd()
    elif kind == 12:
        events.insert(choices.below(len(events) + 1), json.loads(json.dumps(event)))
    elif kind == 13:
        cut, shift = choices.below(len(events)), choices.below(5)
        events[:] = [events[::-1], events[cut:] + events[:cut], events[:cut], events[cut:], []][shift]
    elif kind == 14 and isinstance(event.get("ts"), (int, float)) and isinstance(event.get("dur"), (int, float)):
        event["ts"] += (choices.below(2001) - 1000) / 2
        event["dur"] *= choices.of((0, 0.001, 0.5, -1, 2, 1e9))
    elif kind == 15:
        where, how = choices.below(65536), choices.below(7)
        return lambda text: _damaged(text, where, how)
    return None


def _damaged(text: bytes, where: int, how: int) -> bytes:
    place = where % (len(text) or 1)
    if how == 0:
        return text[:place]
    if how == 1:
        return text[:place] + bytes([text[place] ^ (1 << where % 8)]) + text[place + 1 :] if text else text
    if how == 2:
        return text[:place] + text[place + 40 :]
    if how == 3:
        return text + text
    if how == 4:
        return text[:place] + b"\xff\x00\n" + text[place:]
    packed = gzip.compress(text, 1, mtime=0)
    if how == 5:
        return packed
    place = where % len(packed)
    return packed[:place] + bytes([packed[place] ^ (1 << where % 8)]) + packed[place + 1 :]


def fields_changed(program: bytes, record: Any) -> Any:
    """A copy of a record of JSON in which fields at any depth are replaced or left out, as the bytes say."""
    choices, record = Choices(program), json.loads(json.dumps(record))
    while not choices.done:
        node = record
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                break
            key, deeper = choices.of(keys), choices.below(8)
            if deeper and isinstance(node[key], (dict, list)) and node[key]:
                node = node[key]
                continue
            if deeper == 1:
                del node[key]
            else:
                node[key] = choices.odd()
            break
        if choices.below(4) == 0:
            break
    return record


# ------------------------------------------------------------------ targets


@contextmanager
def _folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="zerotrace-fuzz-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def analyse_files(files: Mapping[str, bytes], options: AnalyzeOptions, page: bool = False) -> Analysis | None:
    """Analyses files as one run and checks the result; ``None`` where they are refused."""
    with _folder() as folder:
        for name, data in files.items():
            (folder / name).write_bytes(data)
        try:
            analysis, where, _ = analyze([folder], options=options, render=PAGE if page else None)
        except ZerotraceError:
            return None
        check_result(analysis, where)
        return analysis


def _one(data: bytes) -> None:
    analyse_files({"rank_0.json": data}, AnalyzeOptions(hta=False, jobs=1))


def _zipped(data: bytes) -> None:
    analyse_files({"rank_0.json.gz": b"\x1f\x8b" + data}, AnalyzeOptions(hta=False, jobs=1))


def _mutated(data: bytes) -> None:
    texts, options = mutated(data)
    files = {f"rank_{rank}.json": text for rank, text in enumerate(texts)}
    analyse_files(files, options, page=len(data) % 16 == 0)


def _snapshot(data: bytes) -> None:
    with _folder() as folder:
        path = folder / "rank_0.snapshot.pickle.gz"
        path.write_bytes(data)
        try:
            snapshots, _ = read_snapshot(path)
            for snapshot in snapshots[:2]:
                measured = measure(snapshot, (), 0).memory
                assert measured.resident_bytes == snapshot.allocated_bytes
        except ZerotraceError:
            return


def _owners(data: bytes) -> None:
    with _folder() as folder:
        path = folder / "rank_0.owners.json"
        path.write_bytes(data)
        try:
            read_owners(path)
        except ZerotraceError:
            return


def _label(data: bytes) -> None:
    name = data.decode("utf-8", "surrogateescape")
    label = parse_label(name)
    assert label is None or is_label(name)
    label_event(name)
    if label is not None:
        assert parse_label(format_label(label)) == replace(label, version=LABEL_VERSION)


def _manifest(data: bytes) -> None:
    with _folder() as folder:
        (folder / "manifest.json").write_bytes(data)
        zero3_rank(0).write(folder)
        try:
            read_manifest(folder)
            analysis, where, _ = analyze([folder], options=AnalyzeOptions(hta=False, jobs=1), render=PAGE)
        except ZerotraceError:
            return
        check_result(analysis, where)


def _manifest_fields(program: bytes) -> None:
    source = json.loads((ROOT / "traces" / ("stage3" if len(program) % 3 else "single") / "manifest.json").read_bytes())
    _manifest(json.dumps(fields_changed(program, source)).encode())


def _analysis(data: bytes) -> None:
    """All that reads a stored result; what it says may be nonsense, and there is an end to it."""
    with _folder() as folder:
        shutil.copytree(_analysed_run(), folder / "run")
        (folder / "run" / "analysis" / "analysis.json").write_bytes(data)
        run = str(folder / "run")
        for words in (
            ["report", run],
            ["check", run, "--list"],
            ["compare", run, run, "--json"],
            ["export", run, "--perfetto", str(folder / "x.pftrace")],
            ["analyze", run, "--no-hta", "--jobs", "1"],
        ):
            done = CliRunner().invoke(main, words)
            if done.exception is not None and not isinstance(done.exception, SystemExit):
                raise done.exception
            assert done.exit_code in (0, 1), done.output


def _analysis_fields(program: bytes) -> None:
    source = json.loads((_analysed_run() / "analysis" / "analysis.json").read_bytes())
    _analysis(json.dumps(fields_changed(program, source)).encode())


def _snapshot_fields(program: bytes) -> None:
    source = pickle.loads(gzip.decompress(seeds()["snapshot"][0]))
    try:
        data = pickle.dumps(fields_changed(program, source), protocol=4)
    except (UnicodeEncodeError, OverflowError):
        return
    _snapshot(data)


@lru_cache(maxsize=1)
def _analysed_run() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="zerotrace-fuzz-run-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for rank in range(2):
        zero3_rank(rank).write(folder)
    shutil.copy(ROOT / "traces" / "stage3" / "manifest.json", folder)
    analyze([folder], options=AnalyzeOptions(hta=False, jobs=1))
    return folder


#: What is fuzzed, by name.
TARGETS: dict[str, Callable[[bytes], None]] = {
    "mutated": _mutated,
    "trace": _one,
    "gzip": _zipped,
    "snapshot": _snapshot,
    "owners": _owners,
    "label": _label,
    "manifest": _manifest,
    "manifest_fields": _manifest_fields,
    "analysis": _analysis,
    "analysis_fields": _analysis_fields,
    "snapshot_fields": _snapshot_fields,
}


@lru_cache(maxsize=1)
def seeds() -> dict[str, list[bytes]]:
    """Sound inputs of each target, to start from."""
    traces = [make(0).text().encode() for make in RUNS]
    memory = TinyAllocator()
    memory.allocate(3 * MIB, stack=(("/torch/nn/modules/linear.py", "forward", 3),))
    memory.record()
    memory.free(memory.allocate(MIB, stack=()), stack=())
    with _folder() as folder:
        snapshot = memory.write(folder / "rank_0.snapshot.pickle.gz").read_bytes()
    programs = [bytes(range(k, k + 30)) for k in (0, 60, 120, 200)]
    storage = {"address": 1, "bytes": 2, "device": "cuda:0", "owner": "params", "holder": "p"}
    owners = {"version": 1, "rank": 0, "device": "cuda:0", "storages": [storage]}
    label = format_label(Label(event=LabelEvent.GATHER, kind=GatherKind.DEMAND, params=("a", "b"), num_params=2))
    return {
        "mutated": [bytes([run, 0, 0, 1]) + bytes(range(k, k + 40)) for run in range(3) for k in (0, 60, 120)],
        "trace": traces,
        "gzip": [gzip.compress(text, mtime=0)[2:] for text in traces],
        "snapshot": [snapshot, gzip.decompress(snapshot)],
        "owners": [json.dumps(owners).encode()],
        "label": [
            label.encode(),
            b"zt1:forward phase=forward module=a.b",
            b"zt:gather kind=prefetch fwd for=layer n=2 numel=30 first=a.b",
            b"zt:fetch module=layer bwd",
        ],
        "manifest": [(ROOT / "traces" / run / "manifest.json").read_bytes() for run in ("stage3", "single")],
        "analysis": [(_analysed_run() / "analysis" / "analysis.json").read_bytes()],
        **dict.fromkeys(("manifest_fields", "analysis_fields", "snapshot_fields"), programs),
    }
