"""A Perfetto trace, read back through its protobufs, has our numbers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from tests.builders import BASE_TIME_NS, TraceBuilder
from tests.export.reading import Readback
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.cli import main
from zerotrace.export import export_perfetto
from zerotrace.labels import GatherKind
from zerotrace.model import Analysis, Attribution, Owner
from zerotrace.store import read_analysis, read_events

ROOT = Path(__file__).resolve().parents[2]


def pid(rank: int) -> int:
    return rank + 1


def export(folder: Path, **options: bool) -> Readback:
    target = folder / "out.pftrace"
    done = export_perfetto(folder, target, replace=True, **options)
    found = Readback(target)
    assert done.num_slices == sum(len(track.slices) for track in found.tracks.values())
    assert done.num_bytes == target.stat().st_size
    return found


def built(folder: Path, *traces: TraceBuilder, **options: object) -> Analysis:
    for trace in traces:
        trace.write(folder)
    chosen = AnalyzeOptions(**{"hta": False, "jobs": 1, **options})  # type: ignore[arg-type]
    return analyze([folder], options=chosen)[0]


def rank_trace(rank: int) -> TraceBuilder:
    """Two steps: hidden and exposed communication, a copy, a late rank, host calls within each other."""
    trace = TraceBuilder(rank, 2).step(2, 0, 500).step(3, 500, 1000)
    trace.compute(20, 100 + rank).all_gather(60 + 50 * rank, 150).copy(200, 210).copy(140, 160, stream=25)
    trace.compute(300, 400).collective("allreduce", 420, 450 + rank, elements=4096)
    # across the border of the steps, and after the last one
    trace.all_gather(480 + 10 * rank, 530).compute(600, 700).all_gather(990, 1040)
    return trace.host("aten::mm", 10, 40).host("aten::addmm", 12, 30).host("aten::empty", 30, 30)


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stage3")
    run = folder / "run"
    shutil.copytree(ROOT / "traces" / "stage3", run, ignore=shutil.ignore_patterns("analysis"))
    analyze([run], options=AnalyzeOptions(hta=False))
    return run / "analysis"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    built(folder, rank_trace(0), rank_trace(1))
    return folder / "analysis"


@pytest.fixture(params=["small", "shipped"])
def folder(request: pytest.FixtureRequest) -> Path:
    """An analysis folder: of a trace made by hand, and of a real capture."""
    return Path(request.getfixturevalue(request.param))


def test_slices_of_a_step_add_up_to_its_partition(folder: Path) -> None:
    analysis, found = read_analysis(folder), export(folder)
    assert any(part.exposed_wait_ns for part in analysis.partition)
    for part in analysis.partition:

        def total(track: str, *names: str, step: int = part.step, rank: int = part.rank) -> int:
            return sum(
                entry.end - entry.start
                for entry in found.slices(pid(rank), track)
                if entry.args.get("step") == step and (not names or entry.name in names)
            )

        assert total("exposed communication") == part.exposed_ns
        assert total("waiting for a late rank") == part.exposed_wait_ns
        assert total("device time", "exposed communication") == part.exposed_ns
        assert total("device time", "compute", "compute, hiding communication") == part.compute_ns
        assert total("device time", "compute, hiding communication") == part.overlapped_ns
        assert total("device time", "copy") == part.copy_only_ns
        assert total("device time", "idle") == part.idle_ns
        assert total("device time") == part.span_ns
        assert total("steps") == part.span_ns


def test_every_row_is_one_slice_on_the_track_of_its_stream_or_thread(folder: Path) -> None:
    found = export(folder)
    for rank, table in read_events(folder):
        rows: dict[str, list[tuple[int, int, str, str]]] = {}
        for row in table.to_pylist():
            on_device = row["device"] is not None and row["category"] is not None
            where = (
                f"stream {row['stream']}" if on_device
                else f"stream {row['stream']}: synchronisation" if row["cat"] == "cuda_sync"
                else f"annotations of stream {row['tid']}" if row["cat"] == "gpu_user_annotation"
                else f"thread {row['tid']}"
            )  # fmt: skip
            what = (row["start_ns"], row["start_ns"] + row["dur_ns"], row["name"], row["category"] or row["cat"])
            rows.setdefault(where, []).append(what)
        for where, expected in rows.items():
            names = [
                name for name in found.names(pid(rank))
                if name in (where, f"{where}, crossing") or (name.removesuffix(name[name.rfind(":"):]) == where
                and "synchronisation" not in name)
            ]  # fmt: skip
            slices = [entry for name in names for entry in found.slices(pid(rank), name)]
            shown = [(entry.start, entry.end, entry.name, entry.category) for entry in slices]
            assert sorted(shown) == sorted(expected), where


def test_flows_join_the_members_of_each_matched_collective_and_nothing_else(folder: Path) -> None:
    found = export(folder)
    expected: dict[int, set[tuple[int, int, int]]] = {}
    for row in pq.read_table(folder / "collectives.parquet").to_pylist():
        if row["collective"] is not None:
            expected.setdefault(row["collective"], set()).add((pid(row["rank"]), row["start_ns"], row["end_ns"]))
    joined: dict[int, set[tuple[int, int, int]]] = {}
    for track in found.tracks.values():
        for entry in track.slices:
            for flow in entry.flows:
                assert track.pid is not None
                joined.setdefault(flow, set()).add((track.pid, entry.start, entry.end))
    assert all(len(members) == 2 for members in expected.values())
    assert sorted(map(sorted, joined.values())) == sorted(map(sorted, expected.values()))


def test_slices_of_collectives_say_what_is_known_of_them(folder: Path) -> None:
    found = export(folder)
    for row in pq.read_table(folder / "collectives.parquet").to_pylist():
        (entry,) = (
            entry
            for track in found.tracks.values()
            if track.pid == pid(row["rank"]) and track.name.startswith("stream ")
            for entry in track.slices
            if (entry.start, entry.end, entry.category) == (row["start_ns"], row["end_ns"], "comm")
        )
        names = {"name": "collective"}
        for column in ("name", "group", "seq", "dtype", "size_bytes", "phase", "wait_ns", "transfer_ns", "busbw_gbps"):
            assert entry.args.get(names.get(column, column)) == row[column]


def test_the_counter_of_exposed_communication_ends_at_the_step(folder: Path) -> None:
    analysis, found = read_analysis(folder), export(folder)
    for part in analysis.partition:
        (track,) = found.named(pid(part.rank), "exposed so far in the step")
        assert track.unit == 1  # nanoseconds
        end = part.start_ns + part.span_ns
        inside = [value for time, value in track.values if part.start_ns < time < end]
        assert inside == sorted(inside)
        # Where the next step begins at once, the counter falls to 0 at the same instant.
        assert next(value for time, value in track.values if time == end) == part.exposed_ns
        assert [value for time, value in track.values if time == part.start_ns][-1] == 0


def test_gathers_are_slices_by_kind_with_their_module(shipped: Path) -> None:
    found = export(shipped)
    rows = pq.read_table(shipped / "gathers.parquet").to_pylist()
    assert {row["kind"] for row in rows} == {"prefetch", "refresh"}
    for rank in (0, 1):
        for kind in ("prefetch", "refresh"):
            mine = [row for row in rows if (row["rank"], row["kind"]) == (rank, kind)]
            slices = found.slices(pid(rank), f"gathers: {kind}")
            assert sorted((s.start, s.end, s.args["gather"]) for s in slices) == sorted(
                (row["start_ns"], row["end_ns"], row["gather"]) for row in mine
            )
            by_number = {row["gather"]: row for row in mine}
            for entry in slices:
                row = by_number[entry.args["gather"]]
                assert entry.name == (f"prefetch {row['module'] or 'root module'}" if kind == "prefetch" else "refresh")
                for column in ("hidden_ns", "exposed_ns", "blocking_ns", "slack_ns", "bytes", "late", "phase"):
                    assert entry.args.get(column) == row[column]


def test_memory_by_owner_are_counters(shipped: Path) -> None:
    found = export(shipped)
    rows = pq.read_table(shipped / "memory.parquet").to_pylist()
    words = ("allocated", "reserved", *(owner.value for owner in Owner))
    for rank in (0, 1):
        mine = [row for row in rows if row["rank"] == rank]
        for word in words:
            at = {row["time_ns"]: row[f"{word}_bytes"] for row in mine}  # the last of each instant
            tracks = found.named(pid(rank), f"memory: {word}")
            if not any(at.values()):
                assert tracks == []
                continue
            (track,) = tracks
            assert track.unit == 3  # bytes
            values = dict(track.values)
            shown = None
            for time, value in at.items():
                shown = values.get(time, shown)
                assert shown == value
            assert set(values) <= set(at)


def test_tracks_of_a_rank_come_in_one_order_and_ranks_one_below_the_other(shipped: Path) -> None:
    found = export(shipped)
    assert [(p.pid, p.process_name, p.legacy_sort_index) for p in found.processes.values()] == [
        (1, "rank 0", 0), (2, "rank 1", 1)
    ]  # fmt: skip
    assert [*next(iter(found.processes.values())).process_labels] == ["NVIDIA H200"]
    names = found.names(pid(0))
    assert names[:5] == [
        "steps", "device time", "exposed communication", "waiting for a late rank", "exposed so far in the step"
    ]  # fmt: skip
    time_of: dict[int, dict[str, int]] = {}
    for row in next(table for rank, table in read_events(shipped) if rank == 0).to_pylist():
        if row["category"] is not None:
            of_stream = time_of.setdefault(row["stream"], {})
            of_stream[row["category"]] = of_stream.get(row["category"], 0) + row["dur_ns"]
    expected = [f"stream {stream}: {max(t, key=lambda word: t[word])}" for stream, t in sorted(time_of.items())]
    assert [name for name in names if name.startswith("stream ") and "sync" not in name] == expected
    threads = [track for track in found.tracks.values() if track.pid == 1 and track.tid is not None]
    assert all(track.name == f"thread {track.tid}" for track in threads)
    assert threads


def test_rows_of_a_stream_that_overlap_lie_on_further_tracks_of_its_name(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 100).compute(10, 30).compute(20, 40).compute(22, 25).compute(30, 35)
    built(tmp_path, trace)
    found = export(tmp_path)
    tracks = found.named(pid(0), "stream 7: compute")
    at = [[(s.start - BASE_TIME_NS, s.end - BASE_TIME_NS) for s in track.slices] for track in tracks]
    assert at == [[(10_000, 30_000), (30_000, 35_000)], [(20_000, 40_000)], [(22_000, 25_000)]]
    assert all(entry.depth == 0 for track in tracks for entry in track.slices)


def test_rows_of_a_thread_nest_and_what_crosses_lies_beside_it(tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 100, tid=4000).compute(50, 60, launched=-1)
    trace.host("outer", 10, 30).host("inner", 12, 20).host("crossing", 25, 40).host("instant", 30, 30)
    built(tmp_path, trace)
    found = export(tmp_path)
    at = {(s.name, s.depth) for s in found.slices(pid(0), "thread 4000")}
    # In the end `instant` touches both: the step holds it.
    assert at == {("ProfilerStep#0", 0), ("outer", 1), ("inner", 2), ("instant", 1)}
    assert [s.name for s in found.slices(pid(0), "thread 4000, crossing")] == ["crossing"]


def test_without_host_threads_the_devices_are_whole(small: Path) -> None:
    found = export(small, host=False)
    assert not [name for name in found.names(pid(0)) if name.startswith("thread")]
    whole = export(small)
    assert found.slices(pid(0), "stream 7: compute") == whole.slices(pid(0), "stream 7: compute")


def test_the_time_of_a_host_run_is_on_its_threads(tmp_path: Path) -> None:
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2, backend="gloo").step(0, 0, 100).host("aten::mm", 10, 50)
        traces.append(trace.host("gloo:all_reduce", 40, 80 + rank, tid=5000, cat="user_annotation"))
    analysis = built(tmp_path, *traces)
    found = export(tmp_path, host=False)
    for part in analysis.partition:
        slices = found.slices(pid(part.rank), "exposed communication")
        assert (
            sum(s.end - s.start for s in slices if s.args.get("step") == 0)
            == part.exposed_ns
            == (30 + part.rank) * 1000
        )
    assert [s.name for s in found.slices(pid(0), "thread 5000")] == ["gloo:all_reduce"]


def test_ranks_of_several_hosts_lie_on_one_clock(tmp_path: Path) -> None:
    skew = 7_000_000
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2).with_metadata(host_name=f"node{rank}")
        trace.with_metadata(baseTimeNanoseconds=BASE_TIME_NS + skew * rank)
        trace.step(0, 0, 1000)
        for at in range(100, 900, 100):
            trace.all_gather(at + 10 * rank, at + 50).compute(at + 60, at + 80)
        traces.append(trace)
    analysis = built(tmp_path, *traces)
    assert analysis.clock is not None
    assert analysis.clock.offset_of(1) == skew
    found = export(tmp_path)
    ends = [[s.end for s in found.slices(pid(rank), "stream 20: comm")] for rank in (0, 1)]
    assert ends[0] == ends[1]
    assert [s.start for s in found.slices(pid(1), "steps")] == [BASE_TIME_NS]


def test_waiting_names_the_rank_that_is_late(small: Path) -> None:
    found = export(small)
    assert {s.name for s in found.slices(pid(0), "waiting for a late rank")} == {"waiting for rank 1"}


def test_times_without_a_base_are_moved_together_and_above_zero(tmp_path: Path) -> None:
    for rank, base in ((0, BASE_TIME_NS), (1, 0)):
        trace = TraceBuilder(rank, 2).with_metadata(baseTimeNanoseconds=base).step(0, 0, 100).compute(10, 20)
        trace.all_gather(30, 40).write(tmp_path)
    analyze([tmp_path], options=AnalyzeOptions(hta=False, jobs=1))
    done = export_perfetto(tmp_path, tmp_path / "out.pftrace")
    assert not done.aligned
    found = Readback(tmp_path / "out.pftrace")
    starts = [found.slices(pid(rank), "steps")[0].start for rank in (0, 1)]
    assert starts[0] == starts[1] >= 0


def test_attribution_by_launch_shows_what_lies_in_the_windows(tmp_path: Path) -> None:
    """The collective that was launched in step 0 runs 10 µs in its window, and 40 in that of step 1."""
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(0, 0, 100).step(1, 100, 200).compute(170, 180)
        traces.append(trace.all_gather(90, 140, launched=50))
    analysis = built(tmp_path, *traces, attribution=Attribution.LAUNCH)
    assert [part.exposed_ns for part in analysis.partition] == [50_000, 0, 50_000, 0]
    slices = export(tmp_path).slices(pid(0), "exposed communication")
    assert [(s.end - s.start, s.args["step"]) for s in slices] == [(10_000, 0), (40_000, 1)]


@pytest.mark.parametrize("name", ["</script>", "\x1b[31m\x00", "名前\u202e", "a" * 5000, ""])
def test_any_name_comes_back_as_it_was(tmp_path: Path, name: str) -> None:
    built(tmp_path, TraceBuilder().step(0, 0, 100).compute(10, 20, name=name or "k").host(name, 1, 2))
    found = export(tmp_path)
    assert name in {s.name for s in found.slices(pid(0), "thread 4000")}


def zerotrace(*words: str) -> Result:
    return CliRunner().invoke(main, [*words], prog_name="zerotrace")


def test_the_command_writes_a_file_and_replaces_none_unasked(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "a trace.pftrace"
    done = zerotrace("export", str(small), "--perfetto", str(target))
    assert (done.exit_code, done.stdout) == (0, f"Perfetto: '{target}'\n")
    assert "slices of 2 ranks" in done.stderr
    first = target.read_bytes()
    again = zerotrace("export", str(small), "--perfetto", str(target))
    assert again.exit_code == 1
    assert "--force" in again.stderr
    assert zerotrace("export", str(small), "--perfetto", str(target), "--force").exit_code == 0
    assert target.read_bytes() == first
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize("lost", ["collectives.parquet", "events/rank=1/part-0.parquet"])
def test_a_table_that_is_missing_is_named(small: Path, tmp_path: Path, lost: str) -> None:
    shutil.copytree(small, tmp_path / "analysis")
    (tmp_path / "analysis" / lost).unlink()
    done = zerotrace("export", str(tmp_path), "--perfetto", str(tmp_path / "out.pftrace"))
    assert done.exit_code == 1
    assert f"{lost}: this table is missing" in done.stderr
    assert not (tmp_path / "out.pftrace").exists()


@pytest.mark.parametrize("emptied", ["collectives.parquet", "events/rank=1/part-0.parquet"])
def test_a_table_that_lost_its_rows_is_named(small: Path, tmp_path: Path, emptied: str) -> None:
    shutil.copytree(small, tmp_path / "analysis")
    path = tmp_path / "analysis" / emptied
    pq.write_table(pq.read_table(path.open("rb")).slice(0, 0), path)
    done = zerotrace("export", str(tmp_path), "--perfetto", str(tmp_path / "out.pftrace"))
    assert done.exit_code == 1
    assert f"{emptied}: 0 rows" in done.stderr
    assert not (tmp_path / "out.pftrace").exists()


def test_labelled_gathers_of_a_demand_are_on_a_track_of_their_kind(tmp_path: Path) -> None:
    traces = []
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(0, 0, 500)
        trace.gather(GatherKind.DEMAND, 10, 20, 60, params="a.weight", module="a").compute(70, 100)
        traces.append(trace)
    built(tmp_path, *traces)
    (entry,) = export(tmp_path).slices(pid(0), "gathers: demand")
    assert (entry.name, entry.start - BASE_TIME_NS, entry.end - BASE_TIME_NS) == ("demand a", 20_000, 60_000)


@pytest.fixture
def processor() -> str:
    binary = next(
        (found for name in ("trace_processor_shell", "trace_processor") if (found := shutil.which(name))), None
    )
    if binary is None:
        pytest.skip("no trace_processor_shell on PATH: perfetto.dev has it")
    return binary


@pytest.mark.trace_processor
def test_trace_processor_answers_with_our_numbers(processor: str, shipped: Path, tmp_path: Path) -> None:
    from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig

    target = tmp_path / "out.pftrace"
    done = export_perfetto(shipped, target)
    analysis = read_analysis(shipped)

    def ask(sql: str) -> Iterator[tuple[object, ...]]:
        for row in engine.query(sql):
            yield tuple(row.__dict__.values())

    with TraceProcessor(trace=str(target), config=TraceProcessorConfig(bin_path=processor)) as engine:
        assert [*ask("select count(*) from slice")] == [(done.num_slices,)]
        assert [*ask("select name, value from stats where severity in ('error', 'data_loss') and value > 0")] == []
        exposed = dict(
            ask(
                "select p.pid, sum(s.dur) from slice s join process_track t on s.track_id = t.id join process p "
                "using (upid) where t.name = 'exposed communication' and exists (select 1 from args a "
                "where a.arg_set_id = s.arg_set_id and a.key = 'debug.step') group by p.pid"
            )
        )
        assert exposed == {pid(part.rank): part.exposed_ns for part in analysis.partition}
        ((matched,),) = ask("select count(*) from flow")  # of two members each
        assert analysis.collectives is not None
        assert matched == analysis.collectives.num_matched
