"""Whether the traces of a folder belong to one run, and what is missing of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from zerotrace.analysis.reading import RankReading
from zerotrace.errors import TraceError
from zerotrace.ingest.files import rank_in_name
from zerotrace.model import Diagnostic, Level, Mode, RunManifest

_NAMED_RANKS = 16
_NAMED_FILES = 4


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


def hosts_of_ranks(readings: Sequence[RankReading], manifest: RunManifest | None) -> dict[int, str | None]:
    """The host of each rank: as the traces name it if all do, else as the manifest counts hosts.

    ``None`` where neither says.
    """
    named = {reading.source.rank: reading.source.host for reading in readings}
    if all(named.values()) or manifest is None:
        return named
    counted = {record.rank: f"host {record.host}" for record in manifest.ranks}
    return {rank: counted.get(rank) for rank in named} if counted.keys() >= named.keys() else named


def disagreements(readings: Sequence[RankReading]) -> Iterator[Diagnostic]:
    """What the ranks' traces say differently about the run."""
    yield from _missing_ranks(readings)
    yield from _exchanged_names(readings)
    yield from _exchanged_devices(readings)
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
    there = {reading.source.rank for reading in readings}
    stated = max((reading.source.world_size or 0 for reading in readings), default=0)
    world = stated or max(there) + 1
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
        message=f"{f'the traces speak of {world} ranks' if stated else f'the ranks are numbered up to {world - 1}'}; "
        f"no trace of rank {_listed(named)}" + (" and others" if num_missing > len(named) else ""),
        hint="figures are of the ranks that are there; copy the missing files into the folder",
    )


def _exchanged_names(readings: Sequence[RankReading]) -> Iterator[Diagnostic]:
    """Files that bear each other's rank in their names. Names that count in another way, within a host say, may."""
    named = {r.source.rank: rank_in_name(Path(r.source.file)) for r in readings}
    wrong = [reading for reading in readings if named[reading.source.rank] not in (None, reading.source.rank)]
    if not wrong or {named[r.source.rank] for r in wrong} != {r.source.rank for r in wrong}:
        return
    said = ", ".join(f"{r.source.file} says that it is rank {r.source.rank}" for r in wrong[:_NAMED_FILES])
    yield Diagnostic(
        code="ranks_exchanged",
        level=Level.WARNING,
        count=len(wrong),
        message=f"{said}{' and others' if len(wrong) > _NAMED_FILES else ''}: names and traces were mixed up; the "
        "ranks that the traces state are taken",
        hint="if the names are right, the traces' distributedInfo is not",
    )


def _exchanged_devices(readings: Sequence[RankReading]) -> Iterator[Diagnostic]:
    """Ranks whose devices break an order that most ranks of their host keep: the next rank, the next device."""
    hosts: dict[str | None, dict[int, int]] = {}
    for reading in readings:
        devices = [device for device in reading.analysis.exposed if device is not None]
        if len(devices) == 1:
            hosts.setdefault(reading.source.host, {})[reading.source.rank] = devices[0]
    for device_of in hosts.values():
        expected = dict(zip(sorted(device_of), sorted(device_of.values())))
        wrong = [rank for rank in expected if device_of[rank] != expected[rank]]
        if not wrong or len(wrong) > len(device_of) // 2 or len(set(device_of.values())) < len(device_of):
            continue
        said = ", ".join(f"rank {rank} ran on device {device_of[rank]}" for rank in wrong[:_NAMED_FILES])
        yield Diagnostic(
            code="ranks_exchanged",
            level=Level.WARNING,
            count=len(wrong),
            message=f"{said}{' and others' if len(wrong) > _NAMED_FILES else ''}, though the other ranks follow the "
            "order of the devices: their traces may have been exchanged, and what is said of one is true of another",
            hint="compare the files with those that the job wrote",
        )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
