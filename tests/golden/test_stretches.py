"""A rank that is taken apart stretch by stretch comes to what it comes to as a whole, to the nanosecond and byte."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from tests.builders import TraceBuilder
from tools import big_trace
from zerotrace.analysis import stretches
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.analysis.stretches import RankEvents, Stretch
from zerotrace.errors import ZerotraceError
from zerotrace.model import Attribution
from zerotrace.store import to_json

SHARED = Path(__file__).resolve().parents[3] / "shared"

Outcome = tuple[str, dict[str, pa.Table]]

both = pytest.mark.parametrize("attribution", list(Attribution))


def outcome(run: Path, folder: Path, attribution: Attribution) -> Outcome:
    """``analysis.json`` but for the seconds, and every table; or why there are none."""
    try:
        analysis, _, _ = analyze([run], folder, AnalyzeOptions(hta=False, jobs=1, attribution=attribution))
    except ZerotraceError as error:
        return f"{error.code}: {error}", {}
    tables = {}
    for path in sorted(folder.rglob("*.parquet")):
        with path.open("rb") as stream:
            tables[path.relative_to(folder).as_posix()] = pq.read_table(stream)
    return to_json(replace(analysis, elapsed_s=0)).decode(), tables


class Stretched:
    """Analyses in stretches of so few events, and counts the stretches."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_rows: int) -> None:
        self.count = 0
        monkeypatch.setattr(stretches, "MAX_ROWS", max_rows)
        original = RankEvents.stretches

        def counted(events: RankEvents, *args: object) -> Iterator[Stretch]:
            for stretch in original(events, *args):  # type: ignore[arg-type]
                self.count += 1
                yield stretch

        monkeypatch.setattr(RankEvents, "stretches", counted)


def assert_same(run: Path, folder: Path, attribution: Attribution, max_rows: int) -> int:
    """How many stretches there were."""
    as_one = outcome(run, folder / "as-one", attribution)
    with pytest.MonkeyPatch.context() as patch:
        stretched = Stretched(patch, max_rows)
        in_stretches = outcome(run, folder / "in-stretches", attribution)
    assert in_stretches[0] == as_one[0]
    assert in_stretches[1].keys() == as_one[1].keys()
    for name, table in as_one[1].items():
        assert in_stretches[1][name].equals(table), name
    return stretched.count


@both
def test_many_steps_of_a_large_model(attribution: Attribution, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(big_trace, "_LAYERS", 1)
    run = tmp_path / "run"
    run.mkdir()
    for rank in (0, 1):
        big_trace.write_trace(run / f"rank_{rank}.json", 5_000_000, rank=rank)
    assert assert_same(run, tmp_path, attribution, max_rows=400) > 10


@both
@pytest.mark.parametrize("run", ["nvlink/stage3", "pcie/stage3"])
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared captures are not on this machine")
def test_captures_of_other_machines(run: str, attribution: Attribution, tmp_path: Path) -> None:
    num_ranks = len([*(SHARED / "captures" / run).glob("rank_*.pt.trace.json.gz")])
    assert assert_same(SHARED / "captures" / run, tmp_path, attribution, max_rows=2000) >= 2 * num_ranks


@both
@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared cases are not on this machine")
def test_damaged_and_odd_traces(attribution: Attribution, tmp_path: Path) -> None:
    for case in sorted((SHARED / "cases").iterdir()):
        if any(path.name.startswith("rank_") for path in case.glob("*")):
            assert_same(case, tmp_path / case.name, attribution, max_rows=20)


@both
@pytest.mark.parametrize("seed", range(8))
def test_whatever_runs_over_borders(seed: int, attribution: Attribution, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    awkward(random.Random(seed)).write(run)
    assert assert_same(run, tmp_path, attribution, max_rows=7) > 2


@both
def test_host_time_of_gloo(attribution: Attribution, tmp_path: Path) -> None:
    run, rng = tmp_path / "run", random.Random(0)
    run.mkdir()
    for rank in (0, 1):
        trace = TraceBuilder(rank=rank, world_size=2, backend="gloo")
        for step in range(6):
            trace.step(step, 100 * step, 100 * step + 100 + rng.randrange(2))
            for _ in range(4):
                start = 100 * step + rng.randrange(95)
                trace.host("aten::mm", start, start + rng.randrange(40), tid=4000)
            start = 100 * step + rng.randrange(90)
            trace.host("c10d::allgather_", start - 5, start - 2, tid=4000)
            trace.host("gloo:all_gather", start, start + rng.randrange(1, 60), tid=4001, cat="user_annotation")
            trace.host("autograd::engine::evaluate_function: Mm", start + 20, start + 60, tid=4002)
        trace.write(run)
    assert assert_same(run, tmp_path, attribution, max_rows=8) > 4


def awkward(rng: random.Random) -> TraceBuilder:
    """Steps with gaps and overlaps, and rows, launches, waits and gathers that do not keep to them."""
    trace, begin = TraceBuilder(), 0
    for step in range(8):
        length = rng.randrange(80, 160)
        trace.step(step, begin, begin + length + rng.choice([0, 0, 0.001, -5, 7]))
        for _ in range(rng.randrange(3, 9)):
            start = begin + rng.randrange(-20, length + 40)
            where: dict[str, object] = {}
            if rng.random() < 0.4:
                where["launched"] = start - rng.randrange(1, 200)
            kind = rng.choice(["compute", "compute", "copy", "all_gather"])
            if kind == "compute":
                where["stream"] = rng.choice([7, 8])
                if rng.random() < 0.2:
                    where["name"] = rng.choice(["all_reduce_of_mine", "my_all_gather"])
            getattr(trace, kind)(start, start + rng.randrange(0, 60), **where)
        if rng.random() < 0.5:
            start = begin + rng.randrange(0, length)
            trace.host("cudaDeviceSynchronize", start, start + rng.randrange(0, 90), cat="cuda_runtime")
        if rng.random() < 0.5:
            start = begin + rng.randrange(0, length)
            trace.host("Optimizer.step#Adam.step", start, start + 30, cat="user_annotation")
        begin += length
    return trace
