"""Whether the traces of a folder belong to one run, and what is missing of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zerotrace.analysis.reading import RankReading
from zerotrace.errors import TraceError
from zerotrace.model import Diagnostic, Level, Mode

_NAMED_RANKS = 16


def common_mode(readings: Sequence[RankReading]) -> Mode:
    """The mode of all ranks.

    Raises:
        TraceError: ``no_device_events`` if some have device rows and others have none.
    """
    by_mode = {reading.mode: reading.source.file for reading in readings}
    if len(by_mode) > 1:
        raise TraceError(
            f"{by_mode[Mode.HOST]} has no device rows, though {by_mode[Mode.DEVICE]} has",
            code="no_device_events",
            hint="the device records of that rank were lost; capture again, or leave its file out",
        )
    return next(iter(by_mode))


def disagreements(readings: Sequence[RankReading]) -> Iterator[Diagnostic]:
    """What the ranks' traces say differently about the run."""
    yield from _missing_ranks(readings)
    steps = {tuple(sorted(window.step for window in reading.windows)) for reading in readings}
    if len(steps) > 1:
        examples = "; ".join(
            f"{r.source.file} has {_listed(sorted(w.step for w in r.windows))}" for r in (readings[0], readings[-1])
        )
        yield Diagnostic(
            code="steps_differ",
            level=Level.WARNING,
            message=f"the ranks were profiled in different steps, so their means are of different work: {examples}",
            hint="start and stop the profiler at the same step on every rank",
        )


def _missing_ranks(readings: Sequence[RankReading]) -> Iterator[Diagnostic]:
    world = max((reading.source.world_size or 0 for reading in readings), default=0)
    there = {reading.source.rank for reading in readings}
    num_missing = world - sum(rank < world for rank in there)
    if num_missing <= 0:
        return
    named: list[int] = []
    for rank in range(world):  # stops after a few: a world size may be anything
        if rank not in there:
            named.append(rank)
        if len(named) == min(_NAMED_RANKS, num_missing):
            break
    yield Diagnostic(
        code="missing_ranks",
        level=Level.WARNING,
        count=num_missing,
        message=f"the traces speak of {world} ranks; no trace of rank {_listed(named)}"
        + (" and others" if num_missing > len(named) else ""),
        hint="figures are of the ranks that are there; copy the missing files into the folder",
    )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
