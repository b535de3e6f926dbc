"""The ways to train that ``--engine`` names: what each needs, and which of ``runners/`` does it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineKind:
    """One way to train."""

    name: str
    """As ``--engine`` and the manifest have it."""
    runner: str
    """Its program in ``runners/``, without the ending."""
    packages: tuple[str, ...]
    """Packages that its ranks import."""
    has_stages: bool = False
    """Whether it has ZeRO's stages and takes a DeepSpeed configuration."""
    num_ranks: int | None = None
    """The number of ranks that it can have; ``None`` for any."""


DEEPSPEED = EngineKind(name="deepspeed", runner="gpt2", packages=("torch", "deepspeed", "psutil"), has_stages=True)

#: One device and nothing else: the compute baseline.
SINGLE = EngineKind(name="single", runner="single", packages=("torch", "psutil"), num_ranks=1)

ENGINES = {engine.name: engine for engine in (DEEPSPEED, SINGLE)}
