"""Jobs of many ranks, made from one schedule of collectives: one trace a rank, written as text for speed.

    Job(num_ranks=8, num_collectives=40, seed=1).write(folder)

Collectives follow each other on one stream. Ranks arrive at random times, the last one's arrival starts the transfer,
and all members end together but for a jitter below a microsecond.
"""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

BASE_TIME_NS = 1_790_000_000_000_000_000

Lost = Callable[[int, int], bool]

#: Name, what is said of it in the kernel's name, output elements for one that is put in.
KINDS = (("_allgather_base", "AllGather_RING_LL", 2), ("allreduce", "AllReduce_Sum_bf16_RING_LL", 1),
         ("_reduce_scatter_base", "ReduceScatter_Sum_bf16_RING_LL", 1))  # fmt: skip


@dataclass(frozen=True)
class Collective:
    """One collective of the whole world, microseconds."""

    number: int
    kind: tuple[str, str, int]
    elements: int
    starts: tuple[float, ...]
    """Start on each rank."""
    end: float

    def name(self) -> str:
        """The kernel's name."""
        return f"ncclDevKernel_{self.kind[1]}(ncclDevKernelArgsStorage<4096ul>)"


@dataclass(frozen=True)
class Job:
    """What a job did, and what is written of it."""

    num_ranks: int
    num_collectives: int
    seed: int = 0
    num_steps: int = 1
    seq: bool = True
    """Whether collectives carry Seq."""
    metadata: bool = True
    """Whether kernels carry any metadata, or their name alone."""
    ranks_a_host: int | None = None
    """Ranks that share a host and its clock; ``None`` for one host that no trace names."""
    clock_us: tuple[float, ...] = ()
    """How far the clock of each host is ahead."""
    named: bool = True
    """Whether traces name their host, where there are several."""
    slow_us: tuple[tuple[int, float], ...] = ()
    """Ranks that compute so much longer ahead of each collective."""

    @cached_property
    def collectives(self) -> tuple[Collective, ...]:
        """The schedule."""
        rng = random.Random(self.seed)
        found, now, slow = [], 100.0, dict(self.slow_us)
        for number in range(self.num_collectives):
            starts = tuple(round(now + rng.uniform(0, 40) + slow.get(rank, 0), 3) for rank in range(self.num_ranks))
            end = round(max(starts) + rng.uniform(10, 120), 3)
            found.append(Collective(number, rng.choice(KINDS), rng.choice((640, 2560, 1 << 20)), starts, end))
            now = end + rng.uniform(5, 60)
        return tuple(found)

    def write(self, folder: Path, lost: Lost | None = None, zipped: bool = False) -> Path:
        """Writes one trace a rank; ``lost(rank, number)`` says which collectives a rank has no record of."""
        folder.mkdir(parents=True, exist_ok=True)
        for rank in range(self.num_ranks):
            data = self.trace(rank, lost).encode()
            path = folder / f"rank_{rank}.json{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(data, 1) if zipped else data)
        return folder

    def trace(self, rank: int, lost: Lost | None = None) -> str:
        """The trace of one rank as JSON."""
        host = rank // self.ranks_a_host if self.ranks_a_host else None
        head = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": self._device(rank), "name": "Test GPU"}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": self.num_ranks},
            "baseTimeNanoseconds": BASE_TIME_NS,
        }
        if host is not None and self.named:
            head["host_name"] = f"node-{host}"
        ahead = self.clock_us[host] if host is not None and host < len(self.clock_us) else 0.0
        return json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(self._events(rank, ahead, lost)) + "\n]}"

    def _device(self, rank: int) -> int:
        return rank % (self.ranks_a_host or 8)

    def _events(self, rank: int, ahead: float, lost: Lost | None) -> Iterator[str]:
        device, rng = self._device(rank), random.Random(f"{self.seed} {rank}")
        members, slow = self._members(), dict(self.slow_us).get(rank, 0)
        for step, (begin, end) in enumerate(self._steps()):
            yield (
                f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step + 2}", "pid": 9, "tid": 9, '
                f'"ts": {begin + ahead:.3f}, "dur": {end - begin:.3f}}}'
            )
        for one in self.collectives:
            start, end = one.starts[rank] + ahead, one.end + rng.uniform(-0.4, 0.4) + ahead
            launch, compute = f'"correlation": {2 * one.number + 1}', f'"correlation": {2 * one.number + 2}'
            yield _row("cuda_runtime", "cudaLaunchKernelExC", 9, 9, start - 6, 2, launch)
            if lost is None or not lost(rank, one.number):
                args = f'{launch}, "External id": {one.number + 1}, "device": {device}, "stream": 20'
                described = self._described(one, members) if self.metadata else ""
                yield _row("kernel", one.name(), device, 20, start, end - start, args + described)
            if slow:
                args = f'"device": {device}, "stream": 7'
                yield _row("kernel", "gemm_bf16", device, 7, start - slow, slow, args)
            yield _row("cuda_runtime", "cudaLaunchKernel", 9, 9, start - 3, 2, compute)
            args = f'{compute}, "device": {device}, "stream": 7'
            yield _row("kernel", "gemm_bf16", device, 7, start + 1, 0.4 * (end - start), args)

    def _described(self, one: Collective, members: str) -> str:
        seq = f', "Seq": {one.number}' if self.seq else ""
        return (
            f', "Collective name": "{one.kind[0]}", "In msg nelems": {one.elements}, "Out msg nelems": '
            f'{one.kind[2] * one.elements}, "Group size": {self.num_ranks}, "dtype": "BFloat16", '
            f'"Process Group Name": "0", "Process Group Ranks": "{members}"{seq}'
        )

    def _members(self) -> str:
        """The members as torch writes them: not all of them beyond 30."""
        ranks = [str(rank) for rank in range(self.num_ranks)]
        shown = ranks if len(ranks) <= 30 else [*ranks[:29], "...", ranks[-1]]
        return f"[{', '.join(shown)}]"

    def _steps(self) -> Iterator[tuple[float, float]]:
        size = -(-self.num_collectives // self.num_steps)
        for step in range(self.num_steps):
            inside = self.collectives[step * size : (step + 1) * size]
            yield min(inside[0].starts) - 30, inside[-1].end + 4


def _row(cat: str, name: str, pid: int, tid: int, start: float, dur: float, args: str) -> str:
    return (
        f'{{"ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid}, "ts": {start:.3f}, '
        f'"dur": {dur:.3f}, "args": {{{args}}}}}'
    )
