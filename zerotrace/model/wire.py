"""Bytes on the wire: what was sent a step, what theory says, and the gap by cause."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class CollectiveKind(str, Enum):
    """What a collective does, whatever its backend calls it."""

    ALL_REDUCE = "all_reduce"
    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    SEND = "send"
    RECV = "recv"
    OTHER = "other"
    """Anything else: no price is defined for it."""


class WireRole(str, Enum):
    """What ZeRO sends a collective for."""

    GRADIENTS = "gradients"
    """Reduction of gradients."""
    PARAMETERS = "parameters"
    """Parameters gathered for the modules that are about to run: stage 3."""
    UPDATED = "updated"
    """Parameters after the optimizer step: all of them at stages 1 and 2, the persisted ones at stage 3."""
    CONTROL = "control"
    """A few numbers: the norm of the gradients, the overflow flag."""
    OTHER = "other"
    """Nothing that ZeRO does in its own group: tensor, pipeline, sequence and expert parallelism, the user's own."""


class Origin(str, Enum):
    """Where a figure that theory needs comes from."""

    MANIFEST = "manifest"
    OPTION = "option"
    INFERRED = "inferred"
    """Read off the traffic itself."""


class WireTraffic(Struct, frozen=True, kw_only=True):
    """All collectives of one kind and role: the mean of a step and rank."""

    kind: CollectiveKind
    role: WireRole
    phase: str | None
    """``forward``, ``backward`` or ``step``; ``None`` where no label says."""
    dtype: str | None
    group_size: int | None
    num_calls: float
    elements: float | None
    """Elements of S: output of gathers, input of everything else."""
    size_bytes: float | None
    """S."""
    sent_bytes: float | None
    """What a rank sends, ring: S × 2(n−1)/n for all-reduce, S × (n−1)/n for the others."""
    reason: str | None = None
    """Why bytes are unknown, where they are."""


class WireKey(Struct, frozen=True, kw_only=True):
    """A key of DeepSpeed's configuration, or a setting of one of torch's engines."""

    key: str
    """A key with its section: ``zero_optimization.reduce_scatter``."""
    value: str | None
    """The value in force, as JSON; ``None`` where the configuration is unknown."""
    is_default: bool | None
    """Whether that is DeepSpeed's default, because the configuration does not name the key; ``None`` for torch's."""


class WireCause(Struct, frozen=True, kw_only=True):
    """One reason why a step sends another number of bytes than theory says. Causes add up to the gap."""

    code: str
    name: str
    """In two or three words."""
    claim: str
    """What happens, in one sentence."""
    sent_bytes: float
    """Sent a rank and step beyond theory; negative where less is sent."""
    ratio: float
    """The same in units of the wire ratio."""
    keys: tuple[WireKey, ...] = ()
    """The keys or settings that decide it; empty where none does."""
    confirmed: bool | None = None
    """Whether trace and configuration tell the same; ``None`` where there is no configuration to compare."""
    evidence: str
    """What in the trace shows it."""


class WireLedger(Struct, frozen=True, kw_only=True):
    """Bytes sent a rank and step, beside theory.

    ``ratio = Σ sent bytes / (2Ψ bytes × (N−1)/N)``: 2 for an all-reduce of the bf16 gradients, 3 for stage 3 in
    theory. ``ratio = theory_ratio + Σ causes + unexplained_ratio``.
    """

    num_steps: int
    """Steps that the means are over."""
    group_size: int | None
    """N: ranks that share the model states."""
    stages: tuple[int, ...]
    """The ZeRO stage, of another engine the one that shards the same states; two where the traffic alone cannot tell
    them apart."""
    stage_origin: Origin | None
    scheme: str | None = None
    """What trained, where that is none of DeepSpeed's stages: ``DDP``, ``FSDP2``."""
    sizes_by_label: bool = False
    """Whether labels tell how much each collective moves, since the trace does not: gloo's. Padding is not in them."""
    num_params: int | None
    """Ψ."""
    params_origin: Origin | None
    micro_steps: float | None
    """Micro-steps of a step, as the trace shows them."""
    traffic: tuple[WireTraffic, ...]
    sent_bytes: float | None
    theory_bytes: float | None
    ratio: float | None
    theory_ratio: float | None
    causes: tuple[WireCause, ...] = ()
    unexplained_bytes: float | None = None
    """Sent beyond theory and all causes."""
    unexplained_ratio: float | None = None
    reason: str | None = None
    """Why figures above are unknown, where they are."""
