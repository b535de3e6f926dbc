"""What the causes of the gap are worked out from: the mean step's traffic, what labels count, Ψ, N and stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from zerotrace.analysis.labelled import LabelTotal
from zerotrace.labels import GatherKind, LabelEvent, Phase
from zerotrace.model import BucketRecord, CollectiveKind, ShardGroupRecord, WireRole, WireTraffic

#: Bytes of an element of bf16 or fp16, in which theory counts.
THEORY_ELEMENT_BYTES = 2

# What is this close to a whole number of micro-steps, relatively, is one: padding and rounding are less.
_WHOLE = 0.02


class LabelMeans(Struct, frozen=True, kw_only=True):
    """What labels count in the mean step of a rank; ``None`` where no label says."""

    micro_steps: float | None
    reduced: float | None
    """Elements of gradients, without padding."""
    gathered: Mapping[Phase | None, float] | None
    """Elements of parameters gathered for modules, by phase, without padding."""
    refreshed: float | None
    """Elements of persisted parameters."""


def label_means(totals: Mapping[int, Sequence[LabelTotal]], steps: Iterable[tuple[int, int]]) -> LabelMeans:
    """Means over ranks and steps.

    Args:
        totals: labels of each rank, counted.
        steps: rank and step of what is averaged.
    """
    pairs = {*steps}
    used = [t for rank, mine in totals.items() for t in mine if (rank, t.step) in pairs]

    def elements(*purposes: str) -> float | None:
        found = [t.elements for t in used if t.purpose in purposes]
        return None if not found or None in found else sum(count or 0 for count in found) / len(pairs)

    modules = (GatherKind.DEMAND.value, GatherKind.PREFETCH.value)
    phases = {t.phase for t in used if t.purpose in modules}
    gathered: dict[Phase | None, float] = {}
    for phase in phases:
        found = [t.elements or 0 for t in used if t.purpose in modules and t.phase is phase]
        gathered[phase] = sum(found) / len(pairs)
    num_micro = [t.count for t in used if t.event is LabelEvent.MICRO_STEP]
    return LabelMeans(
        micro_steps=sum(num_micro) / len(pairs) if num_micro else None,
        reduced=elements(LabelEvent.REDUCE.value),
        gathered=gathered if elements(*modules) is not None else None,
        refreshed=elements(GatherKind.REFRESH.value),
    )


class Facts(Struct, frozen=True, kw_only=True):
    """The mean step of a run whose traffic is known to the byte."""

    traffic: Sequence[WireTraffic]
    labels: LabelMeans
    stage: int
    group_size: int
    """N."""
    num_params: int
    """Ψ."""
    config: Mapping[str, Any] | None
    """DeepSpeed's whole configuration; ``None`` where it is unknown."""
    theory_ratio: float
    """The wire ratio in theory."""
    num_gathers: int
    """How often theory gathers each parameter in a micro-step."""
    engine: str | None = None
    """Which of torch's engines trained; ``None`` for DeepSpeed, and where that is unknown."""
    settings: Mapping[str, Any] | None = None
    """That engine's settings."""
    groups: Sequence[ShardGroupRecord] = ()
    """The groups of parameters that FSDP2 gathers together."""
    buckets: Sequence[BucketRecord] = ()
    """Those in which DDP reduces gradients."""

    @property
    def unit_bytes(self) -> float:
        """What one unit of the wire ratio is: 2Ψ bytes × (N−1)/N."""
        return self.price(self.num_params)

    def price(self, elements: float) -> float:
        """What a rank sends to gather, or to reduce and scatter, so many elements of two bytes."""
        return THEORY_ELEMENT_BYTES * elements * (self.group_size - 1) / self.group_size

    def once(self, traffic: WireTraffic) -> float:
        """What the same elements would cost at the theoretical price of their stage, in their own width.

        An all-reduce is the theory at stage 0; elsewhere a reduce-scatter, or an all-gather, would do.
        """
        size = (traffic.size_bytes or 0.0) * (self.group_size - 1) / self.group_size
        return 2 * size if self.stage == 0 and traffic.kind is CollectiveKind.ALL_REDUCE else size

    def of(self, *roles: WireRole) -> list[WireTraffic]:
        """Traffic of these roles."""
        return [traffic for traffic in self.traffic if traffic.role in roles]

    def elements(self, *roles: WireRole) -> float:
        """Elements of these roles, padding included."""
        return sum(traffic.elements or 0.0 for traffic in self.of(*roles))

    @property
    def micro_steps(self) -> int:
        """Micro-steps of a step: as labels count them, else as many times as Ψ gradients were reduced."""
        counted = self.labels.micro_steps
        if counted is None:
            counted = self.elements(WireRole.GRADIENTS) / self.num_params if self.num_params else 1.0
        whole = max(1, round(counted))
        return whole if abs(counted - whole) <= _WHOLE * whole else 1

    @property
    def reductions(self) -> int:
        """How often a step reduces its gradients: every micro-step from stage 2 on, else at its end.

        Source: ``deepspeed/runtime/engine.py``, ``allreduce_gradients``. torch's DDP reduces in every backward pass
        but those inside of ``no_sync``: what was reduced tells (``torch/nn/parallel/distributed.py``).
        """
        if self.stage >= 2:
            return self.micro_steps
        times = self.elements(WireRole.GRADIENTS) / self.num_params if self.engine is not None else 1.0
        return max(1, round(times)) if abs(times - round(times)) <= _WHOLE * times else 1
