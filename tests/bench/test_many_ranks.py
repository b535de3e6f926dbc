"""What hundreds of ranks cost, on as many cores as the machine has to spare: run alone, with -s and -m bench."""

from __future__ import annotations

import resource
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.jobs import Job
from tests.unit.test_many_ranks import assert_all_match, assert_job_is_right, processor_seconds

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]


class Memory(threading.Thread):
    """The most memory that this process and its children hold at once, shared pages counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak_bytes = 0
        self._done = threading.Event()

    def __enter__(self) -> Memory:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self.join()

    def run(self) -> None:
        me = psutil.Process()
        while not self._done.wait(0.2):
            held = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    held += process.memory_full_info().pss
                except psutil.Error:
                    continue  # a worker that has just ended
            self.peak_bytes = max(self.peak_bytes, held)


@pytest.mark.parametrize("seq", [True, False])
@pytest.mark.parametrize("num_lost", [0, 1000])
def test_a_million_rows_of_64_ranks_match_in_seconds(
    seq: bool, num_lost: int, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = assert_all_match(15_625, seq=seq, num_lost=num_lost)
    with capsys.disabled():
        print(f"\n1,000,000 rows of 64 ranks, {'Seq' if seq else 'order'}, {num_lost} lost: {taken:.1f} s")
    assert taken < 10


def test_a_job_of_512_ranks_and_2000_collectives_is_analysed_in_a_minute(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(512, 2000, seed=1, num_steps=4, ranks_a_host=8, clock_us=tuple(100.0 * host for host in range(64)))
    job.write(tmp_path / "job", zipped=True)
    before = (time.perf_counter(), time.process_time(), resource.getrusage(resource.RUSAGE_CHILDREN))
    with Memory() as memory:
        assert_job_is_right(job, tmp_path)
    wall, own = time.perf_counter() - before[0], time.process_time() - before[1]
    workers = processor_seconds(resource.getrusage(resource.RUSAGE_CHILDREN)) - processor_seconds(before[2])
    with capsys.disabled():
        print(
            f"\n512 ranks × 2,000 collectives: {wall:.1f} s wall clock; processor {own:.1f} s in the main process and "
            f"{workers:.1f} s in two workers; peak memory of all {memory.peak_bytes / 2**20:.0f} MiB"
        )
    # Where other programs had the cores, the wall clock is theirs: then it is what two cores of our own would take.
    had_the_cores = (own + workers) / wall > 1
    assert (wall if had_the_cores else own + workers / 2) < 60
    assert memory.peak_bytes < 2 << 30
