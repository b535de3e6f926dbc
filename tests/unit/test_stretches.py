"""The events of a rank in stretches of steps: each has what it is asked for, and they are in memory one at a time."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.builders import BASE_TIME_NS, TraceBuilder
from zerotrace.analysis import slices, stretches
from zerotrace.analysis.stretches import RankEvents, Stretch
from zerotrace.errors import TraceError
from zerotrace.ingest.rank import ingest_rank
from zerotrace.tables import ints


def stretched(
    trace: TraceBuilder, folder: Path, monkeypatch: pytest.MonkeyPatch, max_rows: int, rows_a_slice: int = 3
) -> list[Stretch]:
    monkeypatch.setattr(stretches, "MAX_ROWS", max_rows)
    read = ingest_rank(trace.write(folder))
    with RankEvents(folder) as events:
        for begin in range(0, read.events.num_rows, rows_a_slice):
            events.add(read.events.slice(begin, rows_a_slice).combine_chunks())
        return list(events.stretches(read.windows))


def device_rows(stretch: Stretch) -> list[tuple[int, int]]:
    """Start and end of each row of the device, microseconds."""
    start, dur = ints(stretch.events, "start_ns") - BASE_TIME_NS, ints(stretch.events, "dur_ns")
    here = stretch.events["device"].is_valid().to_pylist()
    found = zip((start // 1000).tolist(), ((start + dur) // 1000).tolist(), here)
    return sorted((begin, end) for begin, end, is_device in found if is_device)


def three_steps() -> TraceBuilder:
    trace = TraceBuilder().step(0, 0, 100).step(1, 100, 200).step(2, 200, 300)
    return trace.compute(10, 30).compute(90, 120).compute(150, 160).all_gather(195, 205).compute(250, 260)


def test_a_stretch_has_what_runs_in_it_and_the_next_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stretched(three_steps(), tmp_path, monkeypatch, max_rows=5)
    assert [[window.step for window in one.windows] for one in found] == [[0], [1], [2]]
    assert device_rows(found[0]) == [(10, 30), (90, 120), (150, 160)]  # the next kernel is also the next row
    assert device_rows(found[1]) == [(90, 120), (150, 160), (195, 205), (250, 260)]
    assert device_rows(found[2]) == [(195, 205), (250, 260)]
    assert [one.end for one in found[:-1]] == [one.begin for one in found[1:]]
    assert sum(int(one.begins_here().sum()) for one in found) == len(three_steps().events)


def test_steps_share_a_stretch_as_long_as_they_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(stretched(three_steps(), tmp_path, monkeypatch, max_rows=13)) == 1
    two = stretched(three_steps(), tmp_path, monkeypatch, max_rows=11)
    assert [[window.step for window in one.windows] for one in two] == [[0, 1], [2]]


def test_one_giant_step_is_not_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = TraceBuilder().step(0, 0, 1000)
    for start in range(0, 900, 30):
        trace.compute(start, start + 20)
    (only,) = stretched(trace, tmp_path, monkeypatch, max_rows=4)
    assert only.events.num_rows == len(trace.events)


def test_windows_that_share_time_are_whole_in_their_stretch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = TraceBuilder().step(0, 0, 130).step(1, 100, 200).compute(10, 30).compute(110, 115).compute(125, 190)
    first, _ = stretched(trace, tmp_path, monkeypatch, max_rows=2)
    assert first.end == BASE_TIME_NS + 100_000
    assert device_rows(first) == [(10, 30), (110, 115), (125, 190)]


@pytest.mark.parametrize("rows_a_slice", [1, 2, 100])
def test_texts_that_slices_number_differently_keep_one_number(rows_a_slice: int) -> None:
    def table(texts: list[str | None]) -> pa.Table:
        columns = {"start_ns": range(len(texts)), "dur_ns": [1] * len(texts)}
        whole = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
        return whole.append_column("name", pa.array(texts, pa.string()).dictionary_encode())

    texts = ["b", None, "a", "b", "c", "a", None, "d"]
    found = slices.Slices(3)
    for begin in range(0, len(texts), rows_a_slice):
        found.add(table(texts[begin : begin + rows_a_slice]))
    assert [text for one in found for text in one["name"].to_pylist()] == texts
    assert {tuple(one["name"].chunk(0).dictionary.to_pylist()) for one in found} == {("b", "a", "c", "d")}
    found.close()


def test_a_file_without_room_says_whose_place_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(slices, "TemporaryFile", full)
    with pytest.raises(TraceError, match="no room"):
        stretched_in(None, tmp_path, monkeypatch)
    with pytest.raises(OSError, match="No space"):
        stretched_in(tmp_path, tmp_path, monkeypatch)


def stretched_in(place: Path | None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stretches, "MAX_ROWS", 3)
    read = ingest_rank(three_steps().write(folder))
    with RankEvents(place) as events:
        events.add(read.events)


KERNELS_A_STEP = 200

_STEP = '{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#%d", "pid": 1, "tid": 1, "ts": %d, "dur": %d},\n'
_ROW = (
    '{"ph": "X", "cat": "%s", "name": "%s", "pid": 1, "tid": 7, "ts": %d, "dur": %d, "args": {"External id": %d,'
    ' "device": %s, "stream": 7, "correlation": %d, "grid": [256, 1, 1], "block": [128, 1, 1]}},\n'
)


def write_steps(path: Path, num_bytes: int) -> None:
    """Steps of kernels and their launches, of about that many bytes: host rows first, as Kineto writes them."""
    num_kernels = num_bytes // (2 * (len(_ROW) + 20))

    def rows() -> Iterator[str]:
        for number in range(num_kernels):
            if number % KERNELS_A_STEP == 0:
                yield _STEP % (number // KERNELS_A_STEP, 10 * number, 10 * KERNELS_A_STEP)
            yield _ROW % ("cuda_runtime", "cudaLaunchKernel", 10 * number, 2, number, "null", number)
        for number in range(num_kernels):
            name = f"gemm_{number % KERNELS_A_STEP}" if number % 50 else "ncclDevKernel_AllGather"
            yield _ROW % ("kernel", name, 10 * number + 5, 7, number, "0", number)

    with path.open("w") as stream:
        stream.write('{"schemaVersion": 1, "distributedInfo": {"backend": "nccl", "rank": 0, "world_size": 2},\n')
        stream.write(f'"baseTimeNanoseconds": {BASE_TIME_NS}, "traceEvents": [\n')
        stream.writelines(rows())
        stream.write('{"ph": "i", "name": "end", "ts": 0}]}\n')


ANALYSE = """
import sys
from pathlib import Path
from zerotrace.analysis.run import AnalyzeOptions, analyze
found, _, _ = analyze([Path(sys.argv[1])], options=AnalyzeOptions(hta=False, jobs=1))
print(len(found.partition), *(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


def steps_and_peak(num_bytes: int, folder: Path) -> tuple[int, int]:
    """How many steps such a trace has, and how many bytes a process holds at most that analyses it."""
    folder.mkdir()
    write_steps(folder / "rank_0.json", num_bytes)
    command = [sys.executable, "-c", ANALYSE, str(folder)]
    num_steps, kilobytes = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return int(num_steps), int(kilobytes) << 10


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the system does not say what a process held")
def test_four_times_the_trace_needs_hardly_more_memory(tmp_path: Path) -> None:
    num_few, few = steps_and_peak(30_000_000, tmp_path / "small")
    num_many, many = steps_and_peak(120_000_000, tmp_path / "large")
    assert num_many > 3.9 * num_few
    assert many - few < 40 << 20
