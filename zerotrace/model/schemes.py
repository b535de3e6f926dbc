"""What each way to train is in ZeRO's terms: which model states its ranks share, and what it sends in theory.

Whoever needs to know what an engine does asks here, not for the engine's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace


class Scheme(Struct, frozen=True, kw_only=True):
    """How a run shares its model states among ranks."""

    name: str
    """As reports call it: ``ZeRO-3``, ``DDP``, ``FSDP2, kept``."""
    stage: int
    """The ZeRO stage that shards the same states between steps."""
    wire_ratio: float | None
    """The wire ratio in theory; ``None`` where nothing has to be sent."""
    num_gathers: int = 0
    """How often a micro-step gathers each parameter for the modules that use it."""
    beside: str | None = None
    """Name of the scheme that does the same work in another engine, or of which it is a variant: what it is held
    against."""


#: DeepSpeed's stages. Theory: Rajbhandari et al., ZeRO, section 7.
STAGES = (
    Scheme(name="ZeRO-0", stage=0, wire_ratio=2.0),
    Scheme(name="ZeRO-1", stage=1, wire_ratio=2.0),
    Scheme(name="ZeRO-2", stage=2, wire_ratio=2.0),
    Scheme(name="ZeRO-3", stage=3, wire_ratio=3.0, num_gathers=2),
)

_SINGLE = Scheme(name="single device", stage=0, wire_ratio=None)
#: Gradients are all-reduced, everything else is whole on each rank: ``torch/nn/parallel/distributed.py``.
_DDP = Scheme(name="DDP", stage=0, wire_ratio=2.0, beside="ZeRO-0")
#: Each rank keeps the optimizer's states of some parameters: ``torch/distributed/optim/zero_redundancy_optimizer.py``.
_ZERO1 = Scheme(name="ZeRO-1 (torch)", stage=1, wire_ratio=2.0, beside="ZeRO-1")
#: All states are sharded: ``torch/distributed/fsdp/_fully_shard/``.
_FSDP2 = Scheme(name="FSDP2", stage=3, wire_ratio=3.0, num_gathers=2, beside="ZeRO-3")
#: The same between steps; parameters stay whole from the forward pass to the end of the backward pass.
_KEPT = Scheme(name="FSDP2, kept", stage=3, wire_ratio=2.0, num_gathers=1, beside="FSDP2")

#: torch's first FSDP, by ``sharding_strategy`` (``torch/distributed/fsdp/api.py``): with SHARD_GRAD_OP parameters stay
#: whole from forward to backward, with NO_SHARD nothing is sharded. The hybrid ones work in two groups of ranks.
_FSDP1 = {
    "FULL_SHARD": replace(_FSDP2, name="FSDP1"),
    "SHARD_GRAD_OP": replace(_KEPT, name="FSDP1, kept", beside="FSDP1"),
    "NO_SHARD": replace(_DDP, name="FSDP1, not sharded"),
}

_ENGINES = {"single": _SINGLE, "ddp": _DDP, "zero1": _ZERO1}

#: The setting of FSDP2 that decides whether backward gathers again.
RESHARD = "reshard_after_forward"


def scheme_of(engine: str, stage: int | None, settings: Mapping[str, Any] | None) -> Scheme | None:
    """The scheme of a run; ``None`` for an engine that is not known.

    Args:
        engine: as the manifest calls it.
        stage: DeepSpeed's; ``None`` for an engine that has none.
        settings: those of one of torch's engines; ``None`` where they are unknown.
    """
    if stage is not None:
        return STAGES[stage] if stage in range(len(STAGES)) else None
    told = settings or {}
    if engine == "fsdp2":
        return _KEPT if told.get(RESHARD) is False else _FSDP2
    if engine == "fsdp1":
        return _FSDP1.get(str(told.get("sharding_strategy")))
    return _ENGINES.get(engine)


def beside(name: str | None) -> str | None:
    """Name of the scheme that one is held against: see :attr:`Scheme.beside`."""
    known = (*STAGES, _SINGLE, _DDP, _ZERO1, _FSDP2, _KEPT, *_FSDP1.values())
    return next((scheme.beside for scheme in known if scheme.name == name), None)
