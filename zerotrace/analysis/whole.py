"""What all stretches of a rank tell together: sets of instants are joined, lengths and counts summed up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from zerotrace.analysis.causes import Blocking
from zerotrace.analysis.gathers.calls import ComputeLaunches
from zerotrace.analysis.gathers.phases import BackwardOperators
from zerotrace.analysis.kernels import KernelTotals
from zerotrace.analysis.launched import LaunchedTime
from zerotrace.analysis.overlap_tax import Kernels
from zerotrace.analysis.partition import DeviceSets
from zerotrace.analysis.stretch_part import DevicePart, GatherPart, StretchPart
from zerotrace.analysis.trust import RowCounts
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import BlockingEvidence, StepPartition
from zerotrace.tables import BoolArray


class WholeDevice:
    """One device over the stretches so far, the first of which is given."""

    def __init__(self, first: DevicePart) -> None:
        self.device = first.sets.device
        self.partition: list[StepPartition] = []
        self.evidence: list[BlockingEvidence] = []
        self.outside_steps_ns = 0
        self.spent: Int64Array = np.zeros_like(first.spent)
        self.launched: LaunchedTime | None = None
        self._launched_exposed: dict[int, list[Intervals]] = {}
        self._sets: list[DeviceSets] = []
        self._kernels: list[Kernels] = []
        self._sure: list[Intervals] = []
        self.add(first)

    def add(self, part: DevicePart) -> None:
        """Takes the next stretch."""
        self.partition += part.partition
        self.evidence += part.evidence
        self.outside_steps_ns += part.outside_steps_ns
        self.spent += part.spent
        if part.launched is not None:
            self.launched = part.launched if self.launched is None else self.launched + part.launched
        for step, exposed in part.launched_exposed.items():
            self._launched_exposed.setdefault(step, []).append(exposed)
        self._sets.append(part.sets)
        self._kernels += [] if part.kernels is None else [part.kernels]
        self._sure += [] if part.sure is None else [part.sure]

    @property
    def sets(self) -> DeviceSets:
        """Its time over all of the trace."""
        held = [part.held for part in self._sets if part.held is not None]
        return DeviceSets(
            device=self.device,
            comm=_joined(part.comm for part in self._sets),
            exposed=_joined(part.exposed for part in self._sets),
            held=Blocking(_joined(one.queued for one in held), _joined(one.sync for one in held)) if held else None,
        )

    def take_kernels(self) -> Kernels | None:
        """Its compute kernels, where it communicates. They are let go of: there may be millions."""
        parts, self._kernels = self._kernels, []
        return Kernels.of_all(parts) if parts else None

    @property
    def sure(self) -> Intervals:
        """When it computes beyond doubt."""
        return _joined(self._sure)

    def launched_exposed(self, step: int) -> Intervals:
        """The exposed communication that a step launched."""
        return _joined(self._launched_exposed.get(step, []))


class WholeRank:
    """A rank over its stretches.

    Args:
        parts: stretches in their order, at least one; one after another is asked for.
    """

    def __init__(self, parts: Iterable[StretchPart]) -> None:
        following = iter(parts)
        first = next(following)
        self.devices: Sequence[WholeDevice] = [WholeDevice(part) for part in first.devices]
        self.counts: list[RowCounts] = [first.counts]
        self.kernels: KernelTotals = first.kernels
        self._gathers: WholeGathers | None = None if first.gathers is None else WholeGathers(first.gathers)
        del first
        for part in following:
            for device, its_part in zip(self.devices, part.devices):
                device.add(its_part)
            self.counts.append(part.counts)
            self.kernels += part.kernels
            if self._gathers is not None and part.gathers is not None:
                self._gathers.add(part.gathers)

    def take_gathers(self) -> GatherPart | None:
        """What gathers need to know. It is let go of: it is long."""
        parts, self._gathers = self._gathers, None
        return None if parts is None else parts.whole()


class WholeGathers:
    """What gathers need to know of the stretches so far, the first of which is given."""

    def __init__(self, first: GatherPart) -> None:
        self._compute: list[ComputeLaunches] = [first.compute]
        self._backward: list[BackwardOperators] = [first.backward]
        self._host_bound: list[Int64Array | None] = [first.host_bound]
        self._ends_beside: BoolArray = first.ends_beside

    def add(self, part: GatherPart) -> None:
        """Takes the next stretch."""
        self._compute.append(part.compute)
        self._backward.append(part.backward)
        self._host_bound.append(part.host_bound)
        self._ends_beside |= part.ends_beside

    def whole(self) -> GatherPart:
        """All of them as one."""
        known = [bound for bound in self._host_bound if bound is not None]
        return GatherPart(
            compute=ComputeLaunches.of_all(self._compute),
            ends_beside=self._ends_beside,
            host_bound=np.concatenate(known) if known else None,
            backward=BackwardOperators.of_all(self._backward),
        )


def _joined(parts: Iterable[Intervals]) -> Intervals:
    listed = [Intervals.empty(), *parts]
    return Intervals.union(*(np.concatenate([getattr(one, side) for one in listed]) for side in ("starts", "ends")))
