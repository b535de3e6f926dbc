"""torch's own ways to train on several ranks: told apart, and asked for their settings."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from zerotrace.capture.engines import DDP

_MIB = 1 << 20


def find_parallel(engine: Any) -> torch.nn.Module | None:
    """The model as torch's data parallelism has it; ``None`` where there is none.

    Args:
        engine: what trains: an object with it as ``parallel``, or the wrapped model itself.
    """
    for candidate in (getattr(engine, "parallel", None), engine):
        if isinstance(candidate, torch.nn.Module) and is_parallel(candidate):
            return candidate
    return None


def is_parallel(module: torch.nn.Module) -> bool:
    """Whether a module is wrapped by torch's data parallelism."""
    return isinstance(module, DistributedDataParallel)


def is_ddp(module: Any) -> bool:
    """Whether this is torch's ``DistributedDataParallel``."""
    return isinstance(module, DistributedDataParallel)


def name_engine(engine: Any) -> str | None:
    """What ``--engine`` calls it; ``None`` where it is none of torch's."""
    parallel = find_parallel(engine)
    if parallel is None:
        return None
    return DDP.name


def read_settings(engine: Any) -> dict[str, Any]:
    """The settings that are in effect, read off the objects that train."""
    parallel = find_parallel(engine)
    if isinstance(parallel, DistributedDataParallel):
        return _ddp_settings(parallel)
    return {}


def _ddp_settings(ddp: Any) -> dict[str, Any]:
    return {
        "bucket_cap_mb": ddp.bucket_bytes_cap / _MIB,
        "gradient_as_bucket_view": bool(ddp.gradient_as_bucket_view),
        "static_graph": bool(ddp.static_graph),
        "find_unused_parameters": bool(ddp.find_unused_parameters),
        # A hook of the program's own may reduce in another type, or send something else.
        "comm_hooks": [getattr(hook, "__qualname__", str(hook)) for hook, _ in getattr(ddp, "_comm_hooks", ())],
    }
