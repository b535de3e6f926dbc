"""The ways to train that ``--engine`` names: what each needs, what can be set, and which of ``runners/`` does it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class EngineSetting(Struct, frozen=True, kw_only=True):
    """One setting of an engine other than DeepSpeed, as ``--set`` and the options of its runner have it."""

    name: str
    type: type
    """``bool``, or ``int`` or ``float``, which are not negative."""
    default: Any
    """What the runner does where it is not set; ``None`` for what no value says."""
    most: int | None = None
    """The largest value that it takes; ``None`` where any does."""

    @property
    def option(self) -> str:
        """The runner's option."""
        return f"--{self.name.replace('_', '-')}"

    def arguments(self, value: Any) -> list[str]:
        """How the runner is told a value."""
        if self.type is bool:
            return [self.option if value else self.option.replace("--", "--no-", 1)]
        return [self.option, str(value)]


class EngineKind(Struct, frozen=True, kw_only=True):
    """One way to train."""

    name: str
    """As ``--engine`` and the manifest have it."""
    means: str
    """What it is, in a few words."""
    runner: str | None
    """Its program in ``runners/``, without the ending; ``None`` where the program is always a user's own."""
    packages: tuple[str, ...]
    """Packages that its ranks import."""
    has_stages: bool = False
    """Whether it has ZeRO's stages and takes a DeepSpeed configuration."""
    takes_scripts: bool = False
    """Whether a user's own program can train with it."""
    num_ranks: int | None = None
    """The number of ranks that it can have; ``None`` for any."""
    min_torch: tuple[int, int] | None = None
    """The first torch that has what its runner needs; ``None`` for any that a capture works with."""
    settings: tuple[EngineSetting, ...] = ()
    unavailable: str | None = None
    """Why nothing can be captured with it."""


_TORCH = ("torch", "psutil")

_DDP_SETTINGS = (
    # DDP's own is 25, with a first bucket of 1, which any number does away with.
    # torch counts its bytes in 64 bits.
    EngineSetting(name="bucket_cap_mb", type=float, default=None, most=1 << 40),
    EngineSetting(name="gradient_as_bucket_view", type=bool, default=False),
    EngineSetting(name="static_graph", type=bool, default=False),
)

DEEPSPEED = EngineKind(
    name="deepspeed",
    means="DeepSpeed at a ZeRO stage",
    runner="gpt2",
    packages=("torch", "deepspeed", "psutil"),
    has_stages=True,
    takes_scripts=True,
)

DDP = EngineKind(
    name="ddp",
    means="torch's DistributedDataParallel",
    runner="ddp",
    packages=_TORCH,
    settings=_DDP_SETTINGS,
)

ZERO1 = EngineKind(
    name="zero1",
    means="DDP with torch's ZeroRedundancyOptimizer",
    runner="zero1",
    packages=_TORCH,
    settings=(*_DDP_SETTINGS, EngineSetting(name="parameters_as_bucket_view", type=bool, default=False)),
)

FSDP2 = EngineKind(
    name="fsdp2",
    means="torch's FSDP2, fully_shard on each block",
    runner="fsdp2",
    packages=_TORCH,
    # Before, fully_shard was private, and its parts had other names.
    min_torch=(2, 6),
    settings=(
        EngineSetting(name="reshard_after_forward", type=bool, default=True),
        EngineSetting(name="forward_prefetch", type=int, default=0),
        EngineSetting(name="backward_prefetch", type=int, default=0),
    ),
)

#: Whatever a program of the user's trains with.
AUTO = EngineKind(
    name="auto",
    means="with --script: DeepSpeed, DDP, FSDP1, FSDP2 or ZeroRedundancyOptimizer, whichever the program uses",
    runner=None,
    packages=_TORCH,
    takes_scripts=True,
)

NANOTRON = EngineKind(
    name="nanotron-zero1",
    means="nanotron's ZeRO-1 optimizer: not available",
    runner=None,
    packages=_TORCH,
    unavailable="nanotron 0.4, its only release on PyPI, cannot be imported: its modules import each other in a circle "
    "(nanotron.logging, config, parallel.pipeline_parallel), so that no runner could be tried with it",
)

#: One device and nothing else: the compute baseline.
SINGLE = EngineKind(name="single", means="one device without an engine", runner="single", packages=_TORCH, num_ranks=1)

ENGINES = {engine.name: engine for engine in (DEEPSPEED, DDP, ZERO1, FSDP2, NANOTRON, SINGLE, AUTO)}
