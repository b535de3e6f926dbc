"""Constructed inputs, each with one kind of fault seen in practice, and the right answer.

The cases are not part of the repository; where they are absent, these tests skip and say so. The same kinds are
covered by this project's own small traces in ``tests/unit``.
"""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.ledger import Settings, Shapes, paper_ledger, shapes_of
from zerotrace.ledger.estimators import estimate
from zerotrace.model import STEP_ALL, Analysis, Attribution, Level, StepPartition

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases"
ANSWERED = (
    "c01", "c02", "c10", "c13", "c14", "c16", "c18", "c20", "c21", "c23", "c24", "c27", "c29", "c32", "c34",
    "c36", "c37", "c40", "c42", "c43", "c46", "c48", "c49", "c51", "c53", "c54", "c55", "c57", "c60",
    "c61", "c64", "c69",
)  # fmt: skip

ACROSS_RANKS = ("c01", "c10", "c13", "c21", "c49", "c51", "c53", "c55", "c57", "c60", "c61", "c64")

pytestmark = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not on this machine")


def run_case(case: str, tmp_path: Path, attribution: Attribution = Attribution.CLIP) -> tuple[Analysis, dict[str, Any]]:
    folder = next(CASES.glob(f"{case}_*"))
    inputs = tmp_path / "inputs"
    shutil.copytree(folder, inputs, ignore=shutil.ignore_patterns("expected.json", "README"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        analysis, _, _ = analyze([inputs], tmp_path / "out", AnalyzeOptions(hta=False, jobs=1, attribution=attribution))
    return analysis, json.loads((folder / "expected.json").read_text())


def microseconds(part: StepPartition) -> dict[str, float] | None:
    if not part.known:
        return None
    names = {
        "compute": part.compute_ns,
        "comm": part.comm_ns,
        "overlapped": part.overlapped_ns,
        "exposed": part.exposed_ns,
        "other": part.copy_only_ns,
        "idle": part.idle_ns,
        "span": part.span_ns,
    }
    return {f"{name}_us": value / 1000 for name, value in names.items() if value is not None}


def by_rank_and_step(analysis: Analysis) -> dict[str, dict[str, dict[str, float] | None]]:
    found: dict[str, dict[str, dict[str, float] | None]] = {}
    for part in analysis.partition:
        step = "all" if part.step == STEP_ALL else str(part.step)
        found.setdefault(str(part.rank), {})[step] = microseconds(part)
    return found


@pytest.mark.parametrize("case", ANSWERED)
def test_case_gives_its_expected_figures(case: str, tmp_path: Path) -> None:
    analysis, expected = run_case(case, tmp_path)
    assert by_rank_and_step(analysis) == expected["steps"]
    loud = [note for note in analysis.diagnostics if note.level is not Level.INFO]
    assert {note.code for note in loud} == {message["code"] for message in expected["messages"]}
    for message in expected["messages"]:
        text = " ".join(note.message for note in loud if note.code == message["code"])
        assert all(piece in text for piece in message["must_mention"])
        assert {note.level.value for note in loud if note.code == message["code"]} == {message["level"]}
    assert expected["outcome"] == ("warn" if loud else "ok")
    assert analysis.mode.value == expected.get("mode", "device")
    for rank, steps in expected.get("overlap_ratio", {}).items():
        for step, ratio in steps.items():
            assert [p.overlap_ratio for p in analysis.partition if (p.rank, p.step) == (int(rank), int(step))] == [
                ratio
            ]
    for summary in analysis.ranks:
        assert summary.outside_steps_ns == 1000 * expected.get("outside_steps_us", {}).get(str(summary.rank), 0)


@pytest.mark.parametrize("case", ["c01", "c32"])
def test_case_hides_as_much_of_its_gathers_as_expected(case: str, tmp_path: Path) -> None:
    analysis, expected = run_case(case, tmp_path)
    assert analysis.gathers is not None
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for step in analysis.gathers.steps:
        totals = step.totals
        found.setdefault(str(step.rank), {})[str(step.step)] = {
            "gather_us": totals.gather_ns / 1000,
            "hidden_us": totals.hidden_ns / 1000,
            "hidden_fraction": None if totals.hidden_ratio is None else round(totals.hidden_ratio, 6),
        }
    each = pq.read_table(tmp_path / "out" / "gathers.parquet").to_pylist()
    collectives = pq.read_table(tmp_path / "out" / "collectives.parquet").to_pylist()
    seq = {(row["rank"], row["gather"]): row["seq"] for row in collectives if row["gather"] is not None}
    for rank, steps in expected["prefetch"].items():
        for step, want in steps.items():
            per_gather = want.pop("per_gather", None)
            assert found[rank][step] == want
            if per_gather is not None:
                mine = [row for row in each if (row["rank"], row["step"]) == (int(rank), int(step))]
                assert [
                    [seq[row["rank"], row["gather"]], row["gather_ns"] / 1000, row["hidden_ns"] / 1000] for row in mine
                ] == per_gather
    total = analysis.gathers.total
    assert total is not None
    # One average over cold and warm steps says nothing.
    assert total.totals.hidden_ratio != pytest.approx(expected.get("traps", {}).get("hidden_fraction_mean"), abs=1e-3)
    assert analysis.gathers.cold_steps == ((2,) if case == "c32" else ())


@pytest.mark.parametrize("case", ACROSS_RANKS)
def test_case_gives_its_expected_collectives(case: str, tmp_path: Path) -> None:
    _, expected = run_case(case, tmp_path)
    rows = pq.read_table(tmp_path / "out" / "collectives.parquet").to_pylist()
    assert [{"rank": row["rank"], "seq": row["seq"]} for row in rows if row["collective"] is None] == expected.get(
        "unmatched", []
    )
    assert len({row["collective"] for row in rows} - {None}) == len(expected["collectives"])
    for want in expected["collectives"]:
        members = [row for row in rows if row["seq"] == want["seq"] and row["collective"] is not None]
        assert collective_as_expected(members, want) == want
    offsets = {str(row["rank"]): row["clock_offset_ns"] / 1000 for row in rows}
    assert offsets == expected.get("clock_offset_us", dict.fromkeys(offsets, 0))


def collective_as_expected(rows: list[dict[str, Any]], want: dict[str, Any]) -> dict[str, Any]:
    """What the table says of one collective, in the words of the answer."""
    first = rows[0]
    members, _, group = first["group"].partition("] ")
    earliest = min(row["start_ns"] - row["clock_offset_ns"] for row in rows)
    found = {
        "ranks": json.loads(members + "]"),
        "pg": group,
        "seq": first["seq"],
        "name": first["name"],
        "start_rel_us": {
            str(row["rank"]): (row["start_ns"] - row["clock_offset_ns"] - earliest) / 1000 for row in rows
        },
        "skew_us": first["skew_ns"] / 1000,
        "wait_us": {str(row["rank"]): row["wait_ns"] / 1000 for row in rows},
        "transfer_us": first["transfer_ns"] / 1000,
        "busbw_GBps": None if first["busbw_gbps"] is None else round(first["busbw_gbps"], 6),
    }
    if "algbw_GBps" in want:
        found["algbw_GBps"] = round(first["algbw_gbps"], 6)
    if first["last_rank"] is not None:
        found["last_rank"] = first["last_rank"]
    if first["num_members"] < first["group_size"]:
        found["complete"] = False
    return found


def test_case_c21_counts_kernels_once(tmp_path: Path) -> None:
    analysis, expected = run_case("c21", tmp_path)
    assert kernel_counts(analysis) == expected["kernel_count"]


def test_case_c20_counts_all_kernels_of_a_graph(tmp_path: Path) -> None:
    analysis, expected = run_case("c20", tmp_path)
    assert kernel_counts(analysis) == expected["kernel_count"]


def kernel_counts(analysis: Analysis) -> dict[str, dict[str, int]]:
    counted: dict[str, dict[str, int]] = {}
    for kernel in analysis.top_kernels:
        of_rank = counted.setdefault(str(kernel.rank), {})
        of_rank[kernel.category.value] = of_rank.get(kernel.category.value, 0) + kernel.count
    return counted


def test_case_c23_attributed_by_launch(tmp_path: Path) -> None:
    analysis, expected = run_case("c23", tmp_path, Attribution.LAUNCH)
    for rank, steps in expected["by_launch"].items():
        for step, want in steps.items():
            got = by_rank_and_step(analysis)[rank][step]
            assert got is not None
            assert {key: got[key] for key in want} == want
    assert "attribution_differs" in {note.code for note in analysis.diagnostics}


def test_case_c18_counts_the_dropped_device_row(tmp_path: Path) -> None:
    analysis, expected = run_case("c18", tmp_path)
    assert expected["dropped_device_events"] == 1
    assert any("1 device rows" in note.message for note in analysis.diagnostics)


def test_case_c34_counts_kernels_by_category(tmp_path: Path) -> None:
    analysis, expected = run_case("c34", tmp_path)
    assert kernel_counts(analysis) == expected["kernel_count"]


def test_case_c73_pads_as_deepspeed_does() -> None:
    folder = next(CASES.glob("c73_*"))
    given, expected = (json.loads((folder / name).read_text()) for name in ("ledger_input.json", "expected.json"))
    shapes, world = shapes_of(given["param_numels"], given["largest_layer_numel"]), given["world_size"]
    answer = expected["ledger"]
    assert shapes.num_params == answer["n"]
    for stage in range(4):
        sizes = {"param_bytes": given["param_bytes"], "grad_bytes": given["grad_bytes"]}
        ledger = paper_ledger(shapes, stage, world, **sizes, state_bytes=given["optim_bytes"])
        assert ledger.bytes == answer["theory_bytes"][str(stage)]
        assert ledger.padded_bytes == answer["padded_bytes"][str(stage)]
        parts = {1: shapes.flat_partition_numel(world), 2: shapes.flat_partition_numel(world)}
        parts[3] = shapes.partition_numel(world)
        assert parts.get(stage) == answer["partition_numel"].get(str(stage))
        assert answer["padded_numel"].get(str(stage), parts.get(stage, 0) * world) == parts.get(stage, 0) * world
        estimated = estimate(shapes, Settings(stage=stage), world)[0]
        assert estimated == answer["deepspeed_estimate_gpu_bytes"].get(str(stage))


def test_case_c70_counts_what_was_allocated_before_the_profiler(tmp_path: Path) -> None:
    analysis, expected = run_case("c70", tmp_path)
    assert by_rank_and_step(analysis) == expected["steps"]
    assert analysis.memory is not None
    windows = {window.rank: window.start_ns for window in analysis.windows}
    for rank, devices in expected["memory"].items():
        for device, want in devices.items():
            (found,) = [p for p in analysis.memory.profiled if (p.rank, p.device) == (int(rank), device)]
            assert found.baseline_bytes == want["baseline_bytes"]
            assert found.peak_bytes == want["peak_allocated_bytes"]
            assert found.end_bytes == want["end_bytes"]
            assert found.peak_ns - windows[int(rank)] == 1000 * want["peak_ts_rel_us"]
            given = expected["ledger_input"]
            states = paper_ledger(Shapes(num_params=given["params"]), given["stage"], given["world_size"]).bytes
            assert states == expected["ledger"]["states_bytes"]
            assert (found.baseline_bytes or 0) - states == expected["ledger"]["unexplained_at_baseline_bytes"]
