"""A job of 1,024 ranks of real traces, 23 MB of JSON each: run alone, with -s and -m bench. Some ten minutes."""

from __future__ import annotations

import resource
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.bench.test_many_ranks import Memory
from tests.unit.test_many_ranks import processor_seconds
from tools.many_ranks import write_job
from zerotrace.analysis.run import AnalyzeOptions, analyze

pytestmark = [pytest.mark.bench, pytest.mark.timeout(3600)]

STAGE3 = Path(__file__).resolve().parents[2] / "traces" / "stage3"


@dataclass(frozen=True)
class Cost:
    """Seconds that the analysis of a job took."""

    wall: float
    own: float
    """Processor time of the process that looks across ranks."""
    workers: float
    """Processor time of those that read traces."""
    peak_bytes: int


def cost_of(job: Path, num_ranks: int, jobs: int) -> Cost:
    before = (time.perf_counter(), time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN))
    with Memory() as memory:
        analysis, _, _ = analyze([job], job / "out", AnalyzeOptions(hta=False, jobs=jobs, force=True))
    workers = processor_seconds(resource.getrusage(resource.RUSAGE_CHILDREN)) - processor_seconds(before[2])
    assert len(analysis.sources) == num_ranks
    assert analysis.collectives is not None and analysis.collectives.num_unmatched == 0
    shutil.rmtree(job / "out")
    return Cost(time.perf_counter() - before[0], time.process_time() - before[1], workers, memory.peak_bytes)


def test_two_workers_are_nearly_twice_as_fast_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(STAGE3, tmp_path / "job", 48)
    cost_of(tmp_path / "job", 48, 2)  # warms the disk cache
    one, two = cost_of(tmp_path / "job", 48, 1), cost_of(tmp_path / "job", 48, 2)
    with capsys.disabled():
        print(f"\n48 ranks: {one.wall:.1f} s in one process, {two.wall:.1f} s in two: {one.wall / two.wall:.2f} times")
    assert one.wall / two.wall > 1.8


def test_a_rank_costs_the_same_among_8_and_among_1024(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = {}
    for num_ranks in (8, 1024):
        write_job(STAGE3, tmp_path / "job", num_ranks)
        costs[num_ranks] = found = cost_of(tmp_path / "job", num_ranks, 2)
        shutil.rmtree(tmp_path / "job")
        with capsys.disabled():
            print(
                f"\n{num_ranks} ranks: {found.wall:.1f} s; a rank {found.workers / num_ranks:.3f} s of a worker; "
                f"across ranks {found.own:.1f} s; peak memory of all {found.peak_bytes / 2**20:.0f} MiB"
            )
    few, many = costs[8], costs[1024]
    assert many.workers / 1024 == pytest.approx(few.workers / 8, rel=0.2)
    assert many.own < 60
