"""Reading piece by piece gives what reading at once gives, wherever the text is cut, and memory stays flat."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.builders import TraceBuilder
from zerotrace.errors import TraceError
from zerotrace.ingest import pieces, spool, table
from zerotrace.ingest.blocks import TraceText
from zerotrace.ingest.kineto import COMPLETE
from zerotrace.ingest.pieces import TracePieces, UncutError
from zerotrace.ingest.rank import RankTrace, ingest_rank

# What looks like the border of two events, like the end of the list, and like another list.
BORDERS = ['},{"ph":', "}]", '"traceEvents": [', "} , {", "\\", '"', "\n", "ü", "]}"]
TEXTS = st.lists(st.sampled_from([*BORDERS, "a", "aten::mm"]), max_size=6).map("".join)
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from(["X", "X", "X", "i", "f", "M"]), "ts": st.integers(0, 10**6), "dur": st.integers(0, 999)},
    optional={
        "cat": st.sampled_from(["cpu_op", "kernel", "python_function", "user_annotation", "cuda_runtime", "news"]),
        "name": TEXTS,
        "pid": st.integers(0, 9),
        "args": st.fixed_dictionaries(
            {},
            optional={
                "External id": st.integers(0, 99),
                "stream": st.integers(0, 9),
                "nested": st.lists(st.fixed_dictionaries({"ph": TEXTS, "of": st.lists(st.just({"x": 1}))}), max_size=3),
                "text": TEXTS,
            },
        ),
    },
)


def plain(events: list[Any]) -> list[tuple[Any, ...]]:
    """Complete events as values; whatever no analysis reads as nothing."""
    return [
        (event.cat, event.name, event.pid, event.ts, event.dur, event.args)
        if type(event) in COMPLETE and event.cat != "python_function"
        else ()
        for event in events
    ]


def read_cut(path: Path) -> tuple[list[tuple[Any, ...]], list[tuple[str, str]], TracePieces]:
    reader = TracePieces(TraceText(path))
    events, times = [], []
    for piece in reader.cut():
        assert piece.first == len(events)
        events += plain(piece.events)
        times += piece.times()
    return events, times, reader


@settings(max_examples=300, deadline=None)
@given(
    events=st.lists(EVENTS, max_size=12),
    head=st.dictionaries(st.sampled_from(["deviceProperties", "host_name", "x"]), TEXTS | st.just([{"id": 0}])),
    tail=st.dictionaries(
        st.sampled_from(["traceName", "distributedInfo"]), TEXTS | st.just({"c": [{"r": [0, 1]}, {}]})
    ),
    style=st.sampled_from([{"indent": 2}, {"separators": (",", ":")}, {"indent": None}, {"ensure_ascii": False}]),
    size=st.sampled_from([1, 40, 300, 1 << 20]),
)
def test_pieces_make_up_the_whole(
    events: list[Any],
    head: dict[str, Any],
    tail: dict[str, Any],
    style: dict[str, Any],
    size: int,
    tmp_path_factory: Any,
) -> None:
    path = tmp_path_factory.mktemp("trace") / "rank_0.json"
    path.write_text(json.dumps({**head, "traceEvents": events, **tail, "baseTimeNanoseconds": 7}, **style))
    whole = TracePieces(TraceText(path))
    at_once = whole.whole()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_PIECE", size)
        patch.setattr(pieces, "_WINDOW", size)
        patch.setattr("zerotrace.ingest.unpack._BLOCK", size)
        cut, times, reader = read_cut(path)
    assert cut == plain(at_once.events)
    assert times == at_once.times()
    assert reader.num_events == whole.num_events == len(events)
    assert reader.document.base_time_ns == whole.document.base_time_ns == 7
    assert reader.document.host_name == whole.document.host_name
    assert reader.diagnostics == whole.diagnostics == []


def in_small_pieces(monkeypatch: pytest.MonkeyPatch, size: int = 200) -> None:
    monkeypatch.setattr(pieces, "_PIECE", size)
    monkeypatch.setattr("zerotrace.ingest.unpack._BLOCK", size)


def steps(num_steps: int = 6) -> TraceBuilder:
    trace = TraceBuilder()
    for step in range(num_steps):
        begin = 1000 * step
        trace = (
            trace.step(step, begin, begin + 1000).compute(begin + 10, begin + 200).all_gather(begin + 100, begin + 300)
        )
    return trace


def assert_equal_traces(one: RankTrace, other: RankTrace) -> None:
    assert one.events.equals(other.events) or one.events.to_pylist() == other.events.to_pylist()
    for field in ("source", "mode", "windows", "first_ns", "diagnostics", "profiled"):
        assert getattr(one, field) == getattr(other, field)


def test_a_rank_read_in_pieces_slices_and_files_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = steps().write(tmp_path)
    at_once = ingest_rank(path)
    in_small_pieces(monkeypatch)
    monkeypatch.setattr(table, "_SLICE", 3)
    monkeypatch.setattr(spool, "_IN_MEMORY", 16)
    slices: list[int] = []

    def keep(events: pa.Table, _mode: object) -> pa.Table:
        slices.append(events.num_rows)
        return events

    in_pieces = ingest_rank(path, folder=tmp_path, keep=keep)
    assert_equal_traces(in_pieces, at_once)
    assert len(slices) > 3 and max(slices) == 3
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_repair_is_made_and_told_in_the_piece_that_needs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = steps().write(tmp_path)
    data = path.read_bytes()
    where = [data.index(b"ProfilerStep#1"), data.index(b"ProfilerStep#4")]
    for place in reversed(where):
        data = data[:place] + b"\x01" + data[place:]
    path.write_bytes(data.replace(b"\x01P", b"P\x01"))
    at_once = TracePieces(TraceText(path))
    at_once.whole()
    in_small_pieces(monkeypatch)
    _, _, reader = read_cut(path)
    assert reader.diagnostics == at_once.diagnostics
    assert [(note.code, note.count, note.offset) for note in reader.diagnostics] == [("json_repaired", 2, where[0] + 1)]


@pytest.mark.parametrize(
    "text",
    [
        '{"x": {"traceEvents": [{"ph": "X"}]}}',
        '{"traceEvents": [{"ph": "X"}], "x": 1} {"traceEvents": []}',
        '{"traceEvents": [{"ph": "X"}, {"ph": "X"',
        '{"traceEvents": [{"ph": "X"}, 5]}',
        '[{"ph": "X"}]',
        '{"traceEvents": {"ph": "X"}}',
        "",
    ],
)
def test_what_cannot_be_cut_is_left_to_the_reader_of_wholes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "rank_0.json"
    path.write_text(text)
    with pytest.raises(UncutError):
        read_cut(path)


@pytest.mark.parametrize("second", ["[]", '[{"ph": "X"}]'])
def test_two_lists_of_events_are_refused(second: str, tmp_path: Path) -> None:
    path = steps().write(tmp_path)
    path.write_text(path.read_text().rstrip().removesuffix("}") + f', "traceEvents": {second}}}')
    with pytest.raises(TraceError, match="two lists of traceEvents"):
        ingest_rank(path)


def test_a_list_inside_of_something_else_is_not_the_traces_own(tmp_path: Path) -> None:
    path = steps().write(tmp_path)
    at_once = ingest_rank(path)
    inner = steps(1).events
    path.write_text(json.dumps({"merged_from": {"traceEvents": inner}, **json.loads(path.read_text())}))
    assert ingest_rank(path).events.equals(at_once.events)
    path.write_text(json.dumps({"merged_from": {"traceEvents": inner}, "traceEvents": []}))
    with pytest.raises(TraceError) as caught:
        ingest_rank(path)
    assert caught.value.code == "empty_trace"


ODD = [
    {"ph": "X", "cat": "cpu_op", "name": "odd", "pid": 1, "tid": 1, "ts": 1, "dur": 2, "args": []},
    {"ph": "(", "name": "another phase", "ts": 1},
    {"name": "no phase", "ts": 1},
    {"ph": "i", "name": "Record Window End", "ts": 1, "args": []},
    None,
]


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_entry_costs_no_other_anything(odd: Any, tmp_path: Path) -> None:
    def trace() -> TraceBuilder:
        found = steps(2)
        for at, total, changed in ((5, 10, 10), (1500, 4096, 4086)):
            args = {"Total Allocated": total, "Bytes": changed, "Device Type": 1, "Device Id": 0}
            found.event(ph="i", cat="cpu_instant_event", name="[memory]", pid=1, tid=1, ts=at, args=args)
        return found

    clean = ingest_rank(trace().write(tmp_path / "clean"))
    path = trace().write(tmp_path / "odd")
    text = json.loads(path.read_text())
    text["traceEvents"].insert(1, odd)
    path.write_text(json.dumps(text))
    assert [memory.peak_bytes for memory in clean.profiled] == [4096]
    assert ingest_rank(path).profiled == clean.profiled


@pytest.mark.parametrize(
    "odd",
    [
        {"ph": "X", "cat": "ac2g", "name": "a span", "ts": 0, "dur": 1},
        {"ph": "X", "cat": "fwdbwd", "name": "a span", "ts": 5, "dur": -1},
        {"ph": "i", "cat": "python_function", "name": "[memory]", "ts": 5, "args": {"Total Allocated": 7}},
    ],
)
def test_python_frames_beside_it_change_nothing_of_an_odd_event(odd: dict[str, Any], tmp_path: Path) -> None:
    read = []
    for num_frames in (0, 50):
        trace = steps(1)
        trace.event(**odd)
        for frame in range(num_frames):
            trace.host(f"frame {frame}", 1, 2, cat="python_function")
        read.append(ingest_rank(trace.write(tmp_path / str(num_frames))))
    few, many = read
    assert few.events.to_pylist() == many.events.to_pylist()
    assert (few.profiled, few.first_ns) == (many.profiled, many.first_ns)
    assert [note.message for note in few.diagnostics] == [note.message for note in many.diagnostics]


def test_an_event_with_many_objects_costs_about_what_it_costs_as_a_whole(tmp_path: Path) -> None:
    """Each of its objects looks like the border of an event."""
    trace = steps(2)
    path = trace.write(tmp_path)
    listed = ",".join(['{"a":1}'] * 1_500_000)
    text = path.read_text().rstrip()
    event = f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":1,"dur":1,"args":{{"L":[{listed}]}}}}'
    path.write_text(text.replace('"traceEvents": [', f'"traceEvents": [{event},', 1))
    assert path.stat().st_size > 5 * pieces._PIECE
    begun = time.process_time()
    TracePieces(TraceText(path)).whole()
    at_once = time.process_time() - begun
    events, _, _ = read_cut(path)
    assert len(events) == len(trace.events) + 1
    assert time.process_time() - begun - at_once < 40 * at_once + 1


def test_a_byte_order_mark_shifts_no_place(tmp_path: Path) -> None:
    path = steps(1).write(tmp_path)
    data = path.read_bytes().replace(b"ProfilerStep#0", b"Profiler\x01Step#0", 1)
    path.write_bytes(b"\xef\xbb\xbf" + data)
    reader, whole = (TracePieces(TraceText(path)) for _ in range(2))
    list(reader.cut())
    whole.whole()
    assert reader.diagnostics == whole.diagnostics != []


def test_a_list_that_ends_in_no_event_is_read_as_a_whole(tmp_path: Path) -> None:
    path = steps().write(tmp_path)
    at_once = ingest_rank(path)
    trace = json.loads(path.read_text())
    trace["traceEvents"].append(None)
    path.write_text(json.dumps(trace))
    read = ingest_rank(path)
    assert read.events.equals(at_once.events)
    assert read.source.num_events == at_once.source.num_events + 1


def test_a_trace_that_breaks_in_a_late_piece_is_refused_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = steps().write(tmp_path)
    path.write_bytes(path.read_bytes()[:-200])
    in_small_pieces(monkeypatch)
    with pytest.raises(TraceError) as caught:
        ingest_rank(path)
    assert caught.value.code == "trace_truncated"


MEASURE = """
import resource, sys
from pathlib import Path
from zerotrace.ingest.rank import ingest_rank
trace = ingest_rank(Path(sys.argv[1]), folder=Path(sys.argv[2]), keep=lambda events, mode: events.slice(0, 1))
print(trace.source.num_events, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Five times the text of stacks and shapes costs no more; five times the rows cost a few bytes each."""
    peaks = []
    for num_steps in (100, 500):
        path = tmp_path / f"rank_{num_steps}.json"
        write_stacks(path, num_steps)
        command = [sys.executable, "-c", MEASURE, str(path), str(tmp_path)]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout
        num_events, peak_kib = map(int, said.split())
        assert num_events == 408 * num_steps
        peaks.append(peak_kib)
    assert path.stat().st_size > 30e6
    assert peaks[1] - peaks[0] < 10 * 1024


def write_stacks(path: Path, num_steps: int) -> None:
    """Steps of one kernel under 400 Python frames each, and operators with their shapes."""
    shapes = json.dumps([[8, 1024, 4096], [4096, 4096], []] * 3)
    with path.open("w") as file:
        file.write('{"distributedInfo": {"rank": 0, "backend": "nccl", "world_size": 1}, "traceEvents": [\n')
        for step in range(num_steps):
            at = 1000 * step
            rows = [
                f'{{"ph":"X","cat":"user_annotation","name":"ProfilerStep#{step}","pid":1,"tid":1,"ts":{at},"dur":1000}}'
            ]
            rows += [
                f'{{"ph":"X","cat":"python_function","name":"site-packages/pkg/sub/module_{frame % 40}.py({frame}): a'
                f'_with_a_long_name","pid":1,"tid":1,"ts":{at + frame},"dur":9,"args":{{"Python parent id":{frame}}}}}'
                for frame in range(400)
            ]
            rows += [
                f'{{"ph":"X","cat":"cpu_op","name":"aten::mm","pid":1,"tid":1,"ts":{at + op},"dur":1,'
                f'"args":{{"External id":{op},"Input Dims":{shapes},"Input Strides":{shapes}}}}}'
                for op in range(6)
            ]
            rows.append(
                f'{{"ph":"X","cat":"kernel","name":"gemm","pid":0,"tid":7,"ts":{at + 500},"dur":100,'
                '"args":{"device":0,"stream":7}}'
            )
            file.write((",\n" if step else "") + ",\n".join(rows))
        file.write("\n]}\n")


NO_ROOM = """
import resource, sys
from pathlib import Path
from zerotrace.errors import ZerotraceError
from zerotrace.ingest import spool
from zerotrace.ingest.rank import ingest_rank
spool._IN_MEMORY = 16
resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
try:
    ingest_rank(Path(sys.argv[1]), folder=Path(sys.argv[2]) if sys.argv[2:] else None)
except (OSError, ZerotraceError) as error:
    print(type(error).__name__, getattr(error, "code", ""))
"""


@pytest.mark.parametrize(("where", "said"), [((), "TraceError no_room"), (("here",), "OSError")])
def test_a_spool_without_room_says_whose_place_is_full(where: tuple[str, ...], said: str, tmp_path: Path) -> None:
    path = steps().write(tmp_path)
    command = [sys.executable, "-c", NO_ROOM, str(path), *(str(tmp_path) for _ in where)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == said
