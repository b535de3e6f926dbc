"""Results on disk: whole or not at all, never over something else, readable by others."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from zerotrace.analysis.run import AnalyzeOptions, Renderer, analyze
from zerotrace.errors import StoreError
from zerotrace.model import Attribution, WindowKind
from zerotrace.placing import new_file, new_folder
from zerotrace.schema import EVENTS, PARTITION, STEPS
from zerotrace.store import read_analysis, read_events, read_manifest, read_table

MANIFEST = Path(__file__).resolve().parents[2] / "traces" / "stage3" / "manifest.json"
PLAIN = AnalyzeOptions(hta=False, jobs=1)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    for rank in range(2):
        trace = TraceBuilder(rank, 2).step(2, 0, 500).compute(100, 200 + rank).all_gather(150, 250)
        trace.step(3, 500, 900).write(tmp_path / "run")
    return tmp_path / "run"


def test_what_was_written_is_what_is_read(run_folder: Path) -> None:
    analysis, folder, reused = analyze([run_folder], options=PLAIN)
    assert not reused
    assert read_analysis(run_folder) == read_analysis(folder) == analysis
    assert sorted(path.name for path in run_folder.iterdir()) == ["analysis", "rank_0.json", "rank_1.json"]


def test_tables_have_the_schema_that_they_are_said_to_have(run_folder: Path) -> None:
    _, folder, _ = analyze([run_folder], options=PLAIN)
    for schema in (STEPS, PARTITION):
        assert read_table(folder, schema).schema.equals(schema.arrow(), check_metadata=True)
    for rank, table in read_events(folder):
        assert table.schema.equals(EVENTS.arrow(), check_metadata=True)
        assert pq.read_metadata(folder / "events" / f"rank={rank}" / "part-0.parquet").num_rows == table.num_rows


def test_tables_are_readable_by_duckdb_and_polars(run_folder: Path) -> None:
    _, folder, _ = analyze([run_folder], options=PLAIN)
    partition = folder / "partition.parquet"
    query = f"select rank, sum(exposed_ns), count(compute_ns) from '{partition}' group by rank order by rank"
    assert duckdb.sql(query).fetchall() == [(0, 50_000, 1), (1, 49_000, 1)]
    assert pl.read_parquet(partition)["compute_ns"].to_list() == [100_000, None, 101_000, None]
    events = pl.scan_parquet(folder / "events" / "**" / "*.parquet", hive_partitioning=True)
    comm = events.filter(pl.col("category") == "comm").select("rank", "collective", "in_elements").collect()
    assert comm.rows() == [(0, "_allgather_base", 1024), (1, "_allgather_base", 1024)]


def test_events_are_sorted_by_device_stream_and_start(run_folder: Path) -> None:
    _, folder, _ = analyze([run_folder], options=PLAIN)
    for _, table in read_events(folder):
        keys = [
            tuple(-1 if value is None else value for value in row)
            for row in zip(*(table[name].to_pylist() for name in EVENTS.sort_by))
        ]
        assert keys == sorted(keys)


def test_unchanged_traces_are_not_analysed_again(run_folder: Path) -> None:
    first, _, _ = analyze([run_folder], options=PLAIN)
    again, _, reused = analyze([run_folder], options=PLAIN)
    assert reused
    assert again == first


@pytest.mark.parametrize("change", ["trace", "options"])
def test_a_result_of_something_else_is_not_replaced_unasked(run_folder: Path, change: str) -> None:
    first, _, _ = analyze([run_folder], options=PLAIN)
    options = PLAIN
    if change == "trace":
        TraceBuilder(0, 2).step(2, 0, 500).compute(100, 130).write(run_folder)
    else:
        options = AnalyzeOptions(hta=False, jobs=1, attribution=Attribution.LAUNCH)
    with pytest.raises(StoreError, match="exists already") as caught:
        analyze([run_folder], options=options)
    assert caught.value.hint is not None
    assert "--force" in caught.value.hint
    assert read_analysis(run_folder) == first


def test_a_folder_of_another_kind_is_not_replaced_even_by_force(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("x")
    with (
        pytest.raises(StoreError, match="exists already"),
        new_folder(tmp_path / "out", replace=True, is_ours="a.json"),
    ):
        pass
    assert (tmp_path / "out" / "thesis.tex").read_text() == "x"


def test_jobs_do_not_change_the_result(run_folder: Path, tmp_path: Path) -> None:
    one, _, _ = analyze([run_folder], tmp_path / "one", PLAIN)
    two, _, _ = analyze([run_folder], tmp_path / "two", AnalyzeOptions(hta=False, jobs=2))
    assert (one.partition, one.ranks, one.diagnostics) == (two.partition, two.ranks, two.diagnostics)


def _die_while_writing(target: Path) -> None:
    with new_folder(target, replace=True, is_ours="analysis.json") as folder:
        (folder / "analysis.json").write_text("half")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_run_leaves_the_old_result_whole(run_folder: Path) -> None:
    first, folder, _ = analyze([run_folder], options=PLAIN)
    process = multiprocessing.get_context("spawn").Process(target=_die_while_writing, args=(folder,))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    assert read_analysis(run_folder) == first


def test_a_failed_run_leaves_nothing(run_folder: Path) -> None:
    def fail(*_: object) -> str:
        raise RuntimeError("drawing")

    with pytest.raises(RuntimeError, match="drawing"):
        analyze([run_folder], options=PLAIN, render=Renderer(fail, ["name"]))
    assert sorted(path.name for path in run_folder.iterdir()) == ["rank_0.json", "rank_1.json"]


def test_a_newer_major_version_is_refused_and_a_newer_field_is_not(run_folder: Path) -> None:
    _, folder, _ = analyze([run_folder], options=PLAIN)
    path = folder / "analysis.json"
    stored = json.loads(path.read_text())
    path.write_text(json.dumps({**stored, "schema_version": "1.9", "field_of_tomorrow": 1}))
    assert read_analysis(folder).schema_version == "1.9"
    path.write_text(json.dumps({**stored, "schema_version": "2.0"}))
    with pytest.raises(StoreError, match=r"version 2\.0"):
        read_analysis(folder)


def test_the_detailed_window_of_older_manifests_is_known_by_its_former_name(run_folder: Path) -> None:
    older = json.loads(MANIFEST.read_text())
    older["schema_version"] = "1.0"
    older["ranks"][0]["windows"][-1]["kind"] = "profiled"
    (run_folder / "manifest.json").write_text(json.dumps(older))
    manifest = read_manifest(run_folder)
    assert manifest is not None
    assert manifest.ranks[0].windows[-1].kind is WindowKind.DETAILED


def test_a_damaged_manifest_is_named(run_folder: Path) -> None:
    assert read_manifest(run_folder) is None
    (run_folder / "manifest.json").write_text('{"schema_version": "1.0", "stage": "three"}')
    with pytest.raises(StoreError, match=r"manifest\.json") as caught:
        analyze([run_folder], options=PLAIN)
    assert caught.value.code == "manifest_invalid"


def without_rank_1(manifest: Any) -> None:
    del manifest["ranks"][1]


def with_rank_1_twice(manifest: Any) -> None:
    manifest["ranks"].append(manifest["ranks"][1])


def with_a_step_of(step_ns: int) -> Callable[[Any], None]:
    def change(manifest: Any) -> None:
        manifest["ranks"][1]["windows"][1]["step_ns"][3] = step_ns

    return change


def with_gauge(name: str, value: int) -> Callable[[Any], None]:
    return lambda manifest: manifest["ranks"][0].update({name: value})


def with_bucket(elements: int, num_bytes: int) -> Callable[[Any], None]:
    bucket = {"elements": elements, "bytes": num_bytes, "dtype": "float32", "params": ["wte.weight"]}
    return lambda manifest: manifest.update(buckets=[bucket])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.update(world_size=9), "world_size is 9, and 7 of its ranks have no record (found: ranks 0, 1)"),
        (
            lambda m: m.update(world_size=10**15),
            "world_size is 1000000000000000, and 999999999999998 of its ranks have no record",
        ),
        (lambda m: m.update(world_size=1), "rank 1 has a record; expected ranks below the world_size 1"),
        (lambda m: m.update(world_size=0), "world_size is 0; expected a whole number above 0"),
        (without_rank_1, "world_size is 2, and 1 of its ranks has no record (found: rank 0)"),
        (with_rank_1_twice, "rank 1 has more than one record; expected one each"),
        (with_a_step_of(0), "rank 1 has a step of 0 ns in its timed window; expected durations above 0"),
        (with_a_step_of(-5), "rank 1 has a step of -5 ns in its timed window"),
        (lambda m: m.update(stage=7), "stage is 7; expected 0, 1, 2 or 3 (and 1 more like it)"),
        (lambda m: m.update(stage=2), "stage is 2, and zero_optimization.stage of its ds_config 3; expected the same"),
        (lambda m: m["model"].update(num_params=0), "model.num_params is 0"),
        (lambda m: m.update(micro_batch=-4), "micro_batch is -4"),
        (with_gauge("resident_bytes", -1), "resident_bytes of rank 0 is -1; expected no negative size"),
        (with_gauge("peak_bytes", 5), "peak_bytes of rank 0 is 5, its resident_bytes 7261079040"),
        (with_bucket(-3, 4), "elements of buckets[0] is -3; expected no negative number"),
        (with_bucket(300, 4), "bytes of buckets[0] is 4, its elements 300; expected no less"),
        (with_bucket(10**12, 4 * 10**12), "buckets hold 1000000000000 elements, and model.num_params is 774090240"),
    ],
)
def test_a_manifest_that_contradicts_itself_is_refused(
    change: Callable[[Any], None], said: str, run_folder: Path
) -> None:
    content = json.loads(MANIFEST.read_text())
    change(content)
    (run_folder / "manifest.json").write_text(json.dumps(content))
    with pytest.raises(StoreError) as caught:
        analyze([run_folder], options=PLAIN)
    assert caught.value.code == "manifest_contradicts"
    assert f"run/manifest.json: contradicts itself: {said}" in str(caught.value)
    assert "capture again" in (caught.value.hint or "")
    assert not (run_folder / "analysis").exists()


@pytest.mark.parametrize("name", ["single", "stage0", "stage1", "stage2", "stage3"])
@pytest.mark.parametrize("version", ["1.0", "1.1", "1.2", "1.3"])
def test_shipped_manifests_of_every_version_are_read(name: str, version: str, tmp_path: Path) -> None:
    content = json.loads((MANIFEST.parents[1] / name / "manifest.json").read_text())
    (tmp_path / "manifest.json").write_text(json.dumps({**content, "schema_version": version}))
    assert read_manifest(tmp_path) is not None


def test_an_unwritable_place_is_one_clear_error(run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written") as caught:
        analyze([run_folder], tmp_path / "file" / "out", PLAIN)
    assert caught.value.hint == "give --out for another folder"


def test_no_analysis_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no analysis") as caught:
        read_analysis(tmp_path)
    assert "zerotrace analyze" in (caught.value.hint or "")


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "page"
    target.write_bytes(b"old")
    (tmp_path / ".page.partial-killed").write_bytes(b"half")
    with pytest.raises(TypeError), new_file(target, replace=True) as stream:
        stream.writelines([b"new", None])  # type: ignore[list-item]
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("page", b"old")]
    with new_file(target, replace=True) as stream:
        stream.write(b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("page", b"new")]


@pytest.mark.parametrize("name", ["a file", "a folder"])
def test_nothing_is_replaced_by_a_file_unasked(tmp_path: Path, name: str) -> None:
    target = tmp_path / name
    if name == "a file":
        target.write_bytes(b"old")
    else:
        target.mkdir()
    with pytest.raises(StoreError, match="exists already"), new_file(target, replace=name == "a folder"):
        pass
