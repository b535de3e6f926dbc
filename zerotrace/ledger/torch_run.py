"""What decides who holds what under one of torch's own engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct


class TorchRun(Struct, frozen=True, kw_only=True):
    """What decides who holds what."""

    engine: str
    """``ddp``, ``zero1``, ``fsdp2`` or ``single``."""
    stage: int
    """The ZeRO stage that shards the same states."""
    settings: Mapping[str, Any]
    bucket_bytes: tuple[int, ...] = ()
    """Of DDP's buckets; empty where they are unknown."""
    group_elements: tuple[int, ...] = ()
    """Of the groups that FSDP2 gathers, the root first, padded; empty where they are unknown."""
    kept_elements: int = 0
    """Of these, what stays whole between forward and backward."""
    param_bytes: int = 2
    """Bytes a parameter of the forward pass."""
