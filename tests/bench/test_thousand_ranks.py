"""A job of 1,024 ranks of real traces, 23 MB of JSON each: run alone, with -s and -m bench. Some ten minutes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from tests.bench.test_many_ranks import Memory
from tools.many_ranks import write_job
from zerotrace.store import read_analysis

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


# The command as it is run, and then what its own process and those that it started have taken.
_MEASURED = """
import resource, sys
from zerotrace.cli import main
main(sys.argv[1:], standalone_mode=False)
for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
    usage = resource.getrusage(who)
    print(usage.ru_utime + usage.ru_stime)
"""


def cost_of(job: Path, num_ranks: int, jobs: int, *, watch: bool = True) -> Cost:
    """Analyses a job.

    Args:
        job: its folder.
        num_ranks: that it has.
        jobs: processes that read traces.
        watch: whether memory is looked at, which takes a twentieth of a core.
    """
    arguments = [str(job), "--no-report", "--no-hta", "--force", "--quiet", "--jobs", str(jobs)]
    start = time.perf_counter()
    memory = Memory()
    with memory if watch else nullcontext():
        done = subprocess.run(
            [sys.executable, "-c", _MEASURED, "analyze", *arguments], capture_output=True, text=True, check=True
        )
    wall = time.perf_counter() - start
    own, workers = map(float, done.stdout.splitlines()[-2:])
    analysis = read_analysis(job)
    assert len(analysis.sources) == num_ranks
    assert analysis.collectives is not None
    assert analysis.collectives.num_unmatched == 0
    shutil.rmtree(job / "analysis")
    return Cost(wall, own, workers, memory.peak_bytes)


def test_two_workers_are_nearly_twice_as_fast_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(STAGE3, tmp_path / "job", 48)
    cost_of(tmp_path / "job", 48, 2)  # warms the disk cache
    one, two = (cost_of(tmp_path / "job", 48, jobs, watch=False) for jobs in (1, 2))
    with capsys.disabled():
        print(f"\n48 ranks: {one.wall:.1f} s in one process, {two.wall:.1f} s in two: {one.wall / two.wall:.2f} times")
    assert one.wall / two.wall > 1.8


def test_a_rank_costs_the_same_among_8_and_among_1024(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_job(STAGE3, tmp_path / "few", 8)
    write_job(STAGE3, tmp_path / "many", 1024)
    cost_of(tmp_path / "few", 8, 2)  # warms the disk cache
    # Before and after: in five minutes a machine may become another one.
    few = [cost_of(tmp_path / "few", 8, 2) for _ in range(5)]
    many = cost_of(tmp_path / "many", 1024, 2)
    few += [cost_of(tmp_path / "few", 8, 2) for _ in range(5)]
    with capsys.disabled():
        for num_ranks, costs in ((8, few), (1024, [many])):
            print(
                f"\n{num_ranks} ranks: {median(cost.wall for cost in costs):.1f} s; a rank "
                f"{median(cost.workers for cost in costs) / num_ranks:.3f} s of a worker; across ranks "
                f"{median(cost.own for cost in costs):.1f} s; peak memory of all "
                f"{max(cost.peak_bytes for cost in costs) / 2**20:.0f} MiB"
            )
    assert many.workers / 1024 == pytest.approx(median(cost.workers for cost in few) / 8, rel=0.2)
    assert many.own < 60
