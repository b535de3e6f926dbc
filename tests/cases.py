"""Constructed inputs, each with one kind of fault seen in practice, held against their right answers.

    python -m tests.cases ../shared/cases [c01 c02 ...]

A case is a folder of inputs with an ``expected.json`` (see the CONVENTIONS.md beside them). Each runs through the
command line as a user would run it, and every figure, message and exit code of the answer is compared. The cases are
not part of the repository: their kinds are covered by small traces of our own in ``tests/unit``.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
from click.testing import CliRunner

from zerotrace.capture.hostfile import read_hostfile
from zerotrace.cli import main
from zerotrace.errors import CaptureError
from zerotrace.ledger import Settings, Shapes, paper_ledger, shapes_of
from zerotrace.ledger.estimators import estimate
from zerotrace.model import STEP_ALL, Analysis, Level, StepPartition
from zerotrace.store import read_analysis

#: Files of a case that are no input.
_ANSWERS = ("expected.json", "README")


class MismatchError(Exception):
    """A case whose outcome is not the right one."""


def same(what: str, found: object, expected: object) -> None:
    """Compares one thing.

    Raises:
        MismatchError: it differs.
    """
    if found != expected:
        raise MismatchError(f"{what}: found {found}, expected {expected}")


def cases_in(folder: Path) -> list[Path]:
    """The folders of cases, in the order of their names."""
    return sorted(path.parent for path in folder.glob("*/expected.json"))


def check_case(case: Path, scratch: Path) -> None:
    """Runs one case in a folder of its own.

    Raises:
        MismatchError: something is not as its answer says.
    """
    expected = json.loads((case / "expected.json").read_text())
    inputs = scratch / case.name
    shutil.copytree(case, inputs, ignore=shutil.ignore_patterns(*_ANSWERS))
    if "parsed" in expected:
        _check_hostfiles(inputs, expected)
    elif "steps" in expected or expected["outcome"] == "error":
        _check_analysis(inputs, scratch / f"{case.name}.out", expected)
    if "ledger" in expected and "n" in expected["ledger"]:
        _check_padding(json.loads((inputs / "ledger_input.json").read_text()), expected["ledger"])


def analyse(inputs: Path, out: Path, *options: str) -> tuple[int, str]:
    """What ``zerotrace analyze`` ends with, and what it says on stderr.

    Raises:
        MismatchError: it failed in a way that is not one of its errors.
    """
    words = ["analyze", str(inputs), "--out", str(out), "--no-report", "--no-hta", "--jobs", "1", "--force", *options]
    done = CliRunner().invoke(main, words, prog_name="zerotrace")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise MismatchError(f"it failed with {done.exception!r}") from done.exception
    return done.exit_code, done.stderr


def _check_analysis(inputs: Path, out: Path, expected: dict[str, Any]) -> None:
    exit_code, said = analyse(inputs, out)
    if expected["outcome"] == "error" and exit_code == 0 and "accept_also" in expected:
        _check_other_answer(read_analysis(out), expected)
        return
    if expected["outcome"] == "error":
        same("exit code", exit_code, 1)
        same("a folder of results", out.exists(), False)
        same("errors said", said.count("zerotrace: "), 1)
        for piece in _pieces(expected):
            same(f"{piece!r} is in {said!r}", piece in said, True)
        if "defect_offset" in expected:
            same(f"{expected['defect_offset']} is in {said!r}", str(expected["defect_offset"]) in said, True)
        return
    same("exit code", exit_code, 0)
    analysis = read_analysis(out)
    _check_messages(analysis, expected)
    same("steps", by_rank_and_step(analysis), expected["steps"])
    for key, check in _CHECKS.items():
        if key in expected:
            check(analysis, out, inputs, expected)


def _check_messages(analysis: Analysis, expected: dict[str, Any]) -> None:
    loud = [note for note in analysis.diagnostics if note.level is not Level.INFO]
    same("codes", {note.code for note in loud}, {message["code"] for message in expected["messages"]})
    for message in expected["messages"]:
        mine = [note for note in loud if note.code == message["code"]]
        same(f"level of {message['code']}", {note.level.value for note in mine}, {message["level"]})
        text = " ".join(note.message for note in mine)
        for piece in message["must_mention"]:
            same(f"{piece!r} is in {text!r}", piece in text, True)
    same("outcome", "warn" if loud else "ok", expected["outcome"])
    same("mode", analysis.mode.value, expected.get("mode", "device"))
    for summary in analysis.ranks:
        outside = expected.get("outside_steps_us", {}).get(str(summary.rank), 0)
        same("time outside of steps", summary.outside_steps_ns, 1000 * outside)


def _check_other_answer(analysis: Analysis, expected: dict[str, Any]) -> None:
    """The answer that is as good as an error: what is wrong is said as an error, and the rest is right."""
    said = " ".join(note.message for note in analysis.diagnostics if note.level is Level.ERROR)
    for piece in (*_pieces(expected), str(expected.get("defect_offset", ""))):
        same(f"{piece!r} is in {said!r}", piece in said, True)
    same("steps", by_rank_and_step(analysis), expected["accept_also"]["steps"])


def _pieces(expected: dict[str, Any]) -> Iterator[str]:
    for message in expected["messages"]:
        yield from message["must_mention"]


def microseconds(part: StepPartition) -> dict[str, float] | None:
    """The partition of a step in the words of an answer; ``None`` where it is unknown."""
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
    """The partition of an analysis in the words of an answer."""
    found: dict[str, dict[str, dict[str, float] | None]] = {}
    for part in analysis.partition:
        step = "all" if part.step == STEP_ALL else str(part.step)
        found.setdefault(str(part.rank), {})[step] = microseconds(part)
    return found


def _check_collectives(_: Analysis, out: Path, __: Path, expected: dict[str, Any]) -> None:
    rows = pq.read_table(out / "collectives.parquet").to_pylist()
    alone = [{"rank": row["rank"], "seq": row["seq"]} for row in rows if row["collective"] is None]
    same("unmatched rows", alone, expected.get("unmatched", []))
    same("matched collectives", len({row["collective"] for row in rows} - {None}), len(expected["collectives"]))
    for want in expected["collectives"]:
        members = [row for row in rows if row["seq"] == want["seq"] and row["collective"] is not None]
        same(f"collective {want['seq']}", _collective(members, want), want)
    offsets = {str(row["rank"]): row["clock_offset_ns"] / 1000 for row in rows}
    same("clock offsets", offsets, expected.get("clock_offset_us", dict.fromkeys(offsets, 0)))


def _collective(rows: list[dict[str, Any]], want: dict[str, Any]) -> dict[str, Any]:
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


def _check_by_order(_: Analysis, out: Path, __: Path, expected: dict[str, Any]) -> None:
    rows = pq.read_table(out / "collectives.parquet").to_pylist()
    found = []
    for number in sorted({row["collective"] for row in rows} - {None}):
        first = next(row for row in rows if row["collective"] == number)
        found.append(
            {
                "n": number + 1,
                "name": f"gloo:{first['name']}",
                "skew_us": first["skew_ns"] / 1000,
                "last_rank": first["last_rank"],
                "busbw_GBps": first["busbw_gbps"],
            }
        )
    same("collectives by order", found, expected["by_order"])


def _check_prefetch(analysis: Analysis, out: Path, _: Path, expected: dict[str, Any]) -> None:
    gathers = analysis.gathers
    if gathers is None or gathers.total is None:
        raise MismatchError("there are no gathers")
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for step in gathers.steps:
        totals = step.totals
        found.setdefault(str(step.rank), {})[str(step.step)] = {
            "gather_us": totals.gather_ns / 1000,
            "hidden_us": totals.hidden_ns / 1000,
            "hidden_fraction": None if totals.hidden_ratio is None else round(totals.hidden_ratio, 6),
        }
    each = pq.read_table(out / "gathers.parquet").to_pylist()
    collectives = pq.read_table(out / "collectives.parquet").to_pylist()
    seq = {(row["rank"], row["gather"]): row["seq"] for row in collectives if row["gather"] is not None}
    for rank, steps in expected["prefetch"].items():
        for step, want in steps.items():
            per_gather = want.pop("per_gather", None)
            same(f"hidden in step {step} of rank {rank}", found[rank][step], want)
            mine = [row for row in each if (row["rank"], row["step"]) == (int(rank), int(step))]
            hidden = [
                [seq[row["rank"], row["gather"]], row["gather_ns"] / 1000, row["hidden_ns"] / 1000] for row in mine
            ]
            if per_gather is not None:
                same("hidden of each gather", hidden, per_gather)
    # One average over cold and warm steps says nothing.
    mean = expected.get("traps", {}).get("hidden_fraction_mean")
    if mean is not None and abs((gathers.total.totals.hidden_ratio or 0) - mean) < 1e-3:
        raise MismatchError(f"the hidden ratio is the mean over cold and warm steps: {mean}")


def _check_kernel_count(analysis: Analysis, _: Path, __: Path, expected: dict[str, Any]) -> None:
    counted: dict[str, dict[str, int]] = {}
    for kernel in analysis.top_kernels:
        of_rank = counted.setdefault(str(kernel.rank), {})
        of_rank[kernel.category.value] = of_rank.get(kernel.category.value, 0) + kernel.count
    same("kernels", counted, expected["kernel_count"])


def _check_by_launch(analysis: Analysis, out: Path, inputs: Path, expected: dict[str, Any]) -> None:
    same("attribution_differs is said", "attribution_differs" in {n.code for n in analysis.diagnostics}, True)
    other = out.with_name(out.name + ".launch")
    same("exit code by launch", analyse(inputs, other, "--attribute", "launch")[0], 0)
    found = by_rank_and_step(read_analysis(other))
    for rank, steps in expected["by_launch"].items():
        for step, want in steps.items():
            part = found[rank][step] or {}
            same(f"step {step} of rank {rank} by launch", {key: part.get(key) for key in want}, want)


def _check_overlap_ratio(analysis: Analysis, _: Path, __: Path, expected: dict[str, Any]) -> None:
    found = {(str(part.rank), str(part.step)): part.overlap_ratio for part in analysis.partition}
    for rank, steps in expected["overlap_ratio"].items():
        for step, ratio in steps.items():
            same(f"overlap of step {step} of rank {rank}", found[rank, step], ratio)


def _check_dropped(analysis: Analysis, _: Path, __: Path, expected: dict[str, Any]) -> None:
    said = f"{expected['dropped_device_events']} device rows"
    same(f"{said!r} is said", any(said in note.message for note in analysis.diagnostics), True)


def _check_missing(analysis: Analysis, _: Path, __: Path, expected: dict[str, Any]) -> None:
    ranks = ", ".join(map(str, expected["missing_ranks"]))
    (note,) = [note for note in analysis.diagnostics if note.code == "missing_ranks"]
    same(f"rank {ranks} is in {note.message!r}", f"no trace of rank {ranks}" in note.message, True)


def _check_memory(analysis: Analysis, _: Path, __: Path, expected: dict[str, Any]) -> None:
    if analysis.memory is None:
        raise MismatchError("there is no memory ledger")
    windows = {window.rank: window.start_ns for window in analysis.windows}
    for rank, devices in expected["memory"].items():
        for device, want in devices.items():
            (found,) = [p for p in analysis.memory.profiled if (p.rank, p.device) == (int(rank), device)]
            answer = {
                "baseline_bytes": found.baseline_bytes,
                "peak_allocated_bytes": found.peak_bytes,
                "end_bytes": found.end_bytes,
                "peak_ts_rel_us": (found.peak_ns - windows[int(rank)]) / 1000,
            }
            same(f"memory of {device} of rank {rank}", answer, want)
            given, ledger = expected["ledger_input"], expected["ledger"]
            states = paper_ledger(Shapes(num_params=given["params"]), given["stage"], given["world_size"]).bytes
            same("bytes of the states", states, ledger["states_bytes"])
            unexplained = (found.baseline_bytes or 0) - states
            same("unexplained at the baseline", unexplained, ledger["unexplained_at_baseline_bytes"])


_CHECKS: dict[str, Callable[[Analysis, Path, Path, dict[str, Any]], None]] = {
    "collectives": _check_collectives,
    "by_order": _check_by_order,
    "prefetch": _check_prefetch,
    "kernel_count": _check_kernel_count,
    "by_launch": _check_by_launch,
    "overlap_ratio": _check_overlap_ratio,
    "dropped_device_events": _check_dropped,
    "missing_ranks": _check_missing,
    "memory": _check_memory,
}


def _check_padding(given: dict[str, Any], answer: dict[str, Any]) -> None:
    shapes, world = shapes_of(given["param_numels"], given["largest_layer_numel"]), given["world_size"]
    same("parameters", shapes.num_params, answer["n"])
    for stage in range(4):
        sizes = {"param_bytes": given["param_bytes"], "grad_bytes": given["grad_bytes"]}
        ledger = paper_ledger(shapes, stage, world, **sizes, state_bytes=given["optim_bytes"])
        same(f"theory of stage {stage}", ledger.bytes, answer["theory_bytes"][str(stage)])
        same(f"padded bytes of stage {stage}", ledger.padded_bytes, answer["padded_bytes"][str(stage)])
        flat = shapes.flat_partition_numel(world)
        part = {1: flat, 2: flat, 3: shapes.partition_numel(world)}.get(stage)
        same(f"partition of stage {stage}", part, answer["partition_numel"].get(str(stage)))
        padded = answer["padded_numel"].get(str(stage))
        if padded is not None:
            same(f"padded elements of stage {stage}", (part or 0) * world, padded)
        estimated = estimate(shapes, Settings(stage=stage), world)[0]
        same(
            f"DeepSpeed's estimate of stage {stage}", estimated, answer["deepspeed_estimate_gpu_bytes"].get(str(stage))
        )


def _check_hostfiles(inputs: Path, expected: dict[str, Any]) -> None:
    for name, hosts in expected["parsed"].items():
        same(name, read_hostfile(inputs / name), hosts)
    for message in expected["messages"]:
        try:
            found: object = read_hostfile(inputs / message["file"])
        except CaptureError as error:
            same(f"code for {message['file']}", error.code, message["code"])
            for piece in message["must_mention"]:
                same(f"{piece!r} is in {str(error)!r}", piece in str(error), True)
        else:
            raise MismatchError(f"{message['file']} was taken as {found}")


def run(folder: Path, chosen: list[str]) -> int:
    """Runs the cases of a folder, all of them or those whose names begin as ``chosen``; prints one line for each.

    Returns:
        How many failed.
    """
    failed = 0
    cases = [case for case in cases_in(folder) if not chosen or case.name.startswith(tuple(chosen))]
    for case in cases:
        problem: str | None = None
        with tempfile.TemporaryDirectory() as scratch:
            try:
                check_case(case, Path(scratch))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is that case's failure
                problem = str(error) if isinstance(error, MismatchError) else repr(error)
        failed += problem is not None
        click.echo(f"{'FAILED' if problem else 'passed'}  {case.name}{f': {problem}' if problem else ''}")
    click.echo(f"{len(cases) - failed} passed, {failed} failed")
    return failed


if __name__ == "__main__":
    sys.exit(min(run(Path(sys.argv[1]), sys.argv[2:]), 1))
