"""Memory as a trace's own ``[memory]`` marks tell it: totals of each device, with ``profile_memory=True``."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, repeat
from operator import is_

import numpy as np

from zerotrace.ingest.columns import as_int
from zerotrace.ingest.kineto import Mark, MarkArgs
from zerotrace.ingest.pieces import Piece
from zerotrace.ingest.times import FLOAT_EXACT_BELOW_US, floats_to_ns, to_microseconds
from zerotrace.intervals import Int64Array
from zerotrace.model import ProfiledMemory

_NAME = "[memory]"
# c10::DeviceType
_DEVICES = {0: "cpu", 1: "cuda", 20: "privateuse", 12: "xpu"}


class MemoryMarks:
    """Takes the marks of a trace piece by piece."""

    def __init__(self) -> None:
        self._by_device: dict[str, list[tuple[int, int, int | None, int | None]]] = {}

    def add(self, piece: Piece) -> None:
        """Takes the marks of a piece."""
        # all in C: most traces have hundreds of thousands of events and no mark
        found = compress(piece.events, map(is_, map(type, piece.events), repeat(Mark)))
        marks = [mark for mark in found if mark.name == _NAME and mark.args is not None]
        for when, mark in zip(_times(marks).tolist(), marks):
            level = as_int(mark.args.total_allocated)
            if level is not None:
                entry = (when, level, as_int(mark.args.total_reserved), as_int(mark.args.changed_bytes))
                self._by_device.setdefault(_device(mark.args), []).append(entry)

    def totals(self, rank: int, base_ns: int) -> tuple[ProfiledMemory, ...]:
        """The totals of every device that the marks name, in the order of names.

        The baseline is what the first mark says was allocated, less what it changed: blocks from before the profiler
        started count from the beginning, and may be freed inside of it. On CPU torch counts from zero when the profiler
        starts, so that there the baseline is unknown.

        Args:
            rank: for the result.
            base_ns: what times are relative to.
        """
        return tuple(_totals(rank, device, found, base_ns) for device, found in sorted(self._by_device.items()))


def _totals(
    rank: int, device: str, marks: Sequence[tuple[int, int, int | None, int | None]], base_ns: int
) -> ProfiledMemory:
    ordered = sorted(marks, key=lambda mark: mark[0])
    levels = [level for _, level, _, _ in ordered]
    first = ordered[0][3]
    peak = levels.index(max(levels))
    return ProfiledMemory(
        rank=rank,
        device=device,
        baseline_bytes=levels[0] - first if first is not None and device != "cpu" else None,
        peak_bytes=levels[peak],
        peak_ns=ordered[peak][0] + base_ns,
        end_bytes=levels[-1],
        peak_reserved_bytes=max((reserved for _, _, reserved, _ in ordered if reserved is not None), default=None),
        num_events=len(ordered),
    )


def _device(args: MarkArgs) -> str:
    kind = as_int(args.device_type)
    name = _DEVICES.get(kind, f"device type {kind}") if kind is not None else "unknown"
    index = as_int(args.device_id)
    return name if name == "cpu" or index is None or index < 0 else f"{name}:{index}"


def _times(marks: Sequence[Mark]) -> Int64Array:
    microseconds = np.nan_to_num(to_microseconds([mark.ts for mark in marks]))
    if not marks or np.abs(microseconds).max() < FLOAT_EXACT_BELOW_US:
        return floats_to_ns(microseconds)
    # epoch-sized: a float holds a quarter of a microsecond, enough to say when
    return np.asarray(np.rint(microseconds).astype(np.int64) * 1000)
