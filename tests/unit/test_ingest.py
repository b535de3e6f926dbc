"""Traces as people have them: other spellings, other orders, damaged, of several kinds."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.builders import BASE_TIME_NS, TraceBuilder
from tests.conftest import Analyse
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.errors import TraceError, ZerotraceError
from zerotrace.ingest.rank import ingest_rank
from zerotrace.model import STEP_ALL, Analysis, Mode


def one_step(rank: int = 0, world_size: int = 1) -> TraceBuilder:
    """100 µs of compute, a gather of 100 µs of which 50 are hidden, in a step of 500."""
    return TraceBuilder(rank, world_size).step(2, 0, 500).compute(100, 200).all_gather(150, 250)


def assert_is_one_step(analysis: Analysis) -> None:
    (part,) = analysis.partition
    figures = (part.span_ns, part.compute_ns, part.comm_ns, part.overlapped_ns, part.exposed_ns, part.idle_ns)
    assert figures == (500_000, 100_000, 100_000, 50_000, 50_000, 350_000)


def codes(analysis: Analysis) -> set[str]:
    return {note.code for note in analysis.diagnostics}


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("name", ["rank_0.json", "rank_0.pt.trace.json.gz", "worker0.trace"])
@pytest.mark.parametrize("zipped", [False, True])
def test_content_decides_and_not_the_suffix(tmp_path: Path, name: str, zipped: bool, indent: int | None) -> None:
    one_step().write(tmp_path, name, zipped=zipped, indent=indent)
    assert_is_one_step(analyze([tmp_path], options=AnalyzeOptions(hta=False))[0])


def test_order_of_events_and_metadata_does_not_matter(tmp_path: Path) -> None:
    trace = one_step()
    text = json.dumps({"traceEvents": trace.events[::-1], **trace.metadata})
    (tmp_path / "rank_0.json").write_text("\ufeff" + text)
    assert_is_one_step(analyze([tmp_path], options=AnalyzeOptions(hta=False))[0])


def test_absolute_time_is_base_plus_ts(tmp_path: Path) -> None:
    trace = ingest_rank(one_step().write(tmp_path))
    assert trace.windows[0].start_ns == BASE_TIME_NS
    bare = ingest_rank(one_step().with_metadata(baseTimeNanoseconds=None).write(tmp_path, "bare.json"))
    assert bare.windows[0].start_ns == 0


def test_epoch_sized_floats_keep_their_nanoseconds(tmp_path: Path) -> None:
    text = (
        '{"traceEvents": ['
        '{"ph":"X","cat":"user_annotation","name":"ProfilerStep#2","pid":1,"tid":1,"ts":1790857026123456.001,"dur":10},'
        '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1790857026123457.123,"dur":0.457,'
        '"args":{"device":0,"stream":7}}]}'
    )
    (tmp_path / "rank_0.json").write_text(text)
    (part,) = analyze([tmp_path], options=AnalyzeOptions(hta=False))[0].partition
    assert part.start_ns == 1_790_857_026_123_456_001
    assert part.compute_ns == 457


def test_display_time_unit_is_for_viewers_only(analyse: Analyse) -> None:
    assert_is_one_step(analyse(one_step().with_metadata(displayTimeUnit="ns")))


def test_capitalised_categories_and_text_threads_of_old_traces(analyse: Analyse) -> None:
    trace = TraceBuilder().step(2, 0, 500, cat="Operator")
    for name, cat, start, end, stream in (
        ("volta_sgemm", "Kernel", 100, 200, 7),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclColl)", "Kernel", 150, 250, 20),
    ):
        trace.event(ph="X", cat=cat, name=name, pid=0, tid=f"stream {stream}", ts=start, dur=end - start, args={})
    assert_is_one_step(analyse(trace))


def test_annotations_and_synchronisation_rows_are_no_device_time(analyse: Analyse) -> None:
    trace = one_step()
    for cat in ("gpu_user_annotation", "cuda_sync", "python_function", "overhead"):
        trace.device(cat, "Stream Wait Event", 0, 480)
    assert_is_one_step(analyse(trace.host("triton_fused_add", 0, 480, stream=0)))


def test_metadata_makes_a_row_communication_whatever_its_name(analyse: Analyse) -> None:
    trace = TraceBuilder().step(2, 0, 500).compute(100, 200)
    trace.host("record_param_comms", 140, 141, **{"Collective name": "allreduce", "External id": 9})
    trace.device("gpu_memcpy", "Memcpy PtoP", 150, 250, stream=20, **{"External id": 9})
    assert_is_one_step(analyse(trace))


def test_a_wait_is_no_collective(analyse: Analyse) -> None:
    trace = one_step().device("kernel", "spin_kernel", 300, 310, **{"Collective name": "wait"})
    (part,) = analyse(trace).partition
    assert (part.compute_ns, part.comm_ns) == (110_000, 100_000)


def test_touching_rows_do_not_overlap_and_streams_are_not_added(analyse: Analyse) -> None:
    trace = TraceBuilder().step(0, 0, 100).compute(0, 40).compute(10, 30, stream=8).all_gather(40, 60)
    (part,) = analyse(trace).partition
    assert (part.compute_ns, part.overlapped_ns, part.exposed_ns) == (40_000, 0, 20_000)


def test_devices_of_one_process_are_two_timelines(analyse: Analyse) -> None:
    analysis = analyse(TraceBuilder().step(0, 0, 100).all_gather(0, 50).compute(0, 50, device=1))
    assert [(p.device, p.overlapped_ns, p.exposed_ns) for p in analysis.partition] == [(0, 0, 50_000), (1, 0, 0)]


def test_the_outermost_annotation_of_a_step_is_its_window(analyse: Analyse) -> None:
    analysis = analyse(one_step().step(2, 5, 490, tid=7777).device("gpu_user_annotation", "ProfilerStep#2", 90, 900))
    assert_is_one_step(analysis)


def test_without_profiler_step_the_trace_is_one_window(analyse: Analyse) -> None:
    analysis = analyse(TraceBuilder().compute(100, 200).all_gather(150, 250))
    (part,) = analysis.partition
    assert (part.step, part.span_ns, part.idle_ns) == (STEP_ALL, 150_000, 0)
    assert "no_profiler_step" in codes(analysis)


def test_a_step_without_device_rows_is_unknown_and_in_no_mean(analyse: Analyse) -> None:
    analysis = analyse(one_step().step(3, 500, 1000))
    known, unknown = analysis.partition
    assert (unknown.step, unknown.compute_ns, unknown.idle_ns, unknown.span_ns) == (3, None, None, 500_000)
    assert analysis.ranks[0].num_steps == 1
    assert analysis.ranks[0].idle_ns == known.idle_ns
    assert any("step 3" in note.message for note in analysis.diagnostics)


def test_negative_and_missing_durations_are_dropped_and_counted(analyse: Analyse) -> None:
    trace = one_step().compute(300, 297).host("aten::mm", 10, 9)
    trace.event(ph="X", cat="kernel", name="k", ts=None, dur=4, args={}).event(ph="B", name="open", ts=1)
    analysis = analyse(trace)
    assert_is_one_step(analysis)
    dropped = [note for note in analysis.diagnostics if note.code == "events_dropped"]
    assert sorted(note.count for note in dropped) == [1, 2]


def test_entries_that_are_no_events_do_no_harm(analyse: Analyse) -> None:
    trace = one_step()
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 1, "args": []}
    trace.events += [None, 7, "text", [], kernel]
    analysis = analyse(trace)
    (part,) = analysis.partition
    assert part.compute_ns == 101_000
    assert "device_unknown" in codes(analysis)


def test_raw_control_characters_and_broken_utf8_are_repaired_and_said(tmp_path: Path) -> None:
    data = one_step().host("NAME", 1, 2).text().encode().replace(b"NAME", b"a\x01b\tc\xff")
    (tmp_path / "rank_0.json").write_bytes(data)
    analysis, _, _ = analyze([tmp_path], options=AnalyzeOptions(hta=False))
    assert_is_one_step(analysis)
    assert codes(analysis) == {"json_repaired", "encoding_repaired"}
    assert any("2 raw control characters" in note.message for note in analysis.diagnostics)


@pytest.mark.parametrize(
    ("data", "code", "mentions"),
    [
        (one_step().text().encode()[:-40], "trace_truncated", ["rank_0.json", "truncated", "byte"]),
        (one_step().text().replace('"gemm_bf16"', '"ge"mm"').encode(), "json_invalid", ["rank_0.json", "offset"]),
        (b'[{"ph": "X"}]', "unsupported_legacy_trace", ["rank_0.json", "Kineto"]),
        (TraceBuilder().text().encode(), "empty_trace", ["rank_0.json"]),
        (b"", "not_a_trace", ["rank_0.json", "empty"]),
        (b'{"zero_optimization": {}}', "not_a_trace", ["rank_0.json", "traceEvents"]),
        (gzip.compress(one_step().text().encode())[:-20], "trace_truncated", ["rank_0.json", "truncated"]),
        (gzip.compress(one_step().text().encode())[:60] + b"\xff" * 400, "gzip_invalid", ["rank_0.json"]),
        # two writers: one file behind the other, a second one that begins in the middle, and one that was cut off
        (one_step().text().encode() * 2, "json_invalid", ["rank_0.json", "more than one trace", "offset"]),
        (one_step().text()[:400].encode() + one_step().text().encode(), "json_invalid", ["more than one trace"]),
        (one_step().text().encode() + one_step().text()[:-40].encode(), "json_invalid", ["more than one trace"]),
    ],
)
def test_what_cannot_be_read_is_refused_with_file_and_place(
    tmp_path: Path, data: bytes, code: str, mentions: list[str]
) -> None:
    (tmp_path / "rank_0.json").write_bytes(data)
    with pytest.raises(TraceError) as caught:
        analyze([tmp_path], options=AnalyzeOptions(hta=False))
    assert caught.value.code == code
    assert all(piece in str(caught.value) for piece in mentions)
    assert [path.name for path in tmp_path.iterdir()] == ["rank_0.json"], "no partial result may stay"


def test_launches_without_kernels_are_not_an_idle_device(analyse: Analyse) -> None:
    trace = TraceBuilder().step(2, 0, 500)
    for i in range(6):
        trace.host("cudaLaunchKernel", i, i + 1, cat="cuda_runtime", correlation=i)
    with pytest.raises(TraceError, match="no device events, though 6 launches") as caught:
        analyse(trace)
    assert caught.value.hint is not None
    assert "CUPTI" in caught.value.hint


def test_other_json_files_are_skipped_by_name(tmp_path: Path) -> None:
    one_step().write(tmp_path)
    (tmp_path / "ds_config.json").write_text('{"zero_optimization": {"stage": 3}}')
    (tmp_path / "notes.json").write_text("not json")
    (tmp_path / "rank_0.snapshot.pickle").write_bytes(b"\x80\x04")
    analysis, _, _ = analyze([tmp_path], options=AnalyzeOptions(hta=False))
    assert_is_one_step(analysis)
    skipped = [note.file for note in analysis.diagnostics if note.code == "file_skipped"]
    assert skipped == ["ds_config.json", "notes.json"]


def test_the_rank_comes_from_the_trace_and_else_from_the_file_name(analyse: Analyse, tmp_path: Path) -> None:
    first = one_step(0, 2).with_metadata(distributedInfo=None)
    second = one_step(1, 2).with_metadata(distributedInfo={"rank": "1", "world_size": "2", "backend": "nccl"})
    analysis = analyse(first, second)
    assert [source.rank for source in analysis.sources] == [0, 1]
    noted = [note.file for note in analysis.diagnostics if note.code == "no_distributed_info"]
    assert noted == ["rank_0.json"]


def test_two_traces_of_one_rank_are_refused(tmp_path: Path) -> None:
    one_step().write(tmp_path, "a.json")
    one_step().write(tmp_path, "b.json")
    with pytest.raises(ZerotraceError, match="rank 0") as caught:
        analyze([tmp_path], options=AnalyzeOptions(hta=False))
    assert caught.value.code == "duplicate_rank"


def test_missing_ranks_are_named(analyse: Analyse) -> None:
    analysis = analyse(one_step(0, 4), one_step(1, 4), one_step(3, 4))
    (note,) = [note for note in analysis.diagnostics if note.code == "missing_ranks"]
    assert "rank 2" in note.message


def test_gloo_traces_are_taken_apart_on_the_host(analyse: Analyse) -> None:
    trace = TraceBuilder(backend="gloo").step(2, 0, 1000)
    trace.host("aten::linear", 50, 200).host("aten::addmm", 60, 190).host("c10d::_allgather_base_", 200, 230)
    trace.host("gloo:all_gather", 150, 350, tid=9000, cat="user_annotation").host("aten::view", 235, 237, tid=9000)
    analysis = analyse(trace)
    (part,) = analysis.partition
    assert analysis.mode is Mode.HOST
    assert (part.device, part.compute_ns, part.comm_ns, part.overlapped_ns) == (None, 150_000, 200_000, 50_000)


def test_one_rank_on_the_host_and_one_on_the_device_are_no_run(analyse: Analyse) -> None:
    host = TraceBuilder(1, 2, backend="gloo").step(2, 0, 500).host("aten::mm", 1, 2)
    with pytest.raises(TraceError, match=r"rank_1.json has no device rows, though rank_0.json has"):
        analyse(one_step(0, 2), host)
