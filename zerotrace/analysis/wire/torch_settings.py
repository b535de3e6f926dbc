"""Which settings of torch's own engines decide what is sent, and whether they are what the trace shows.

Sources, of torch 2.4 to 2.13: ``torch/nn/parallel/distributed.py`` for DDP,
``torch/distributed/optim/zero_redundancy_optimizer.py`` for its ZeRO-1, ``torch/distributed/fsdp/_fully_shard/`` for
FSDP2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zerotrace.model import RESHARD, WireCause, WireKey

#: Engine and cause -> the settings that decide it; what is not here is decided by none.
_NAMES: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("ddp", "element_size"): ("comm_hooks",),
    ("zero1", "element_size"): ("comm_hooks",),
    ("fsdp2", "element_size"): ("reduce_dtype", "param_dtype"),
    ("fsdp2", "kept"): (RESHARD,),
    ("fsdp2", "gathered_again"): (RESHARD,),
}

#: What another engine's sentence would get wrong.
_CLAIMS: Mapping[tuple[str, str], str] = {
    ("zero1", "all_reduce"): "DDP reduces gradients by all-reduce, which sends each one twice, though a rank updates a "
    "share of the parameters alone and needs no other gradients.",
    ("ddp", "accumulation"): "Several backward passes of a step reduce their gradients, which no_sync would leave to "
    "the last.",
    ("zero1", "accumulation"): "Several backward passes of a step reduce their gradients, which no_sync would leave to "
    "the last.",
}

#: What an engine does whatever it is told: seen, it is as it should be.
_ALWAYS = frozenset({("zero1", "all_reduce")})


def with_settings(cause: WireCause, engine: str, settings: Mapping[str, Any] | None) -> WireCause:
    """A cause with the settings of one of torch's engines in the place of DeepSpeed's keys.

    Args:
        cause: as found, whatever engine it was.
        engine: which of torch's engines.
        settings: in effect; ``None`` where they are unknown.
    """
    names = _NAMES.get((engine, cause.code), ())
    return replace(
        cause,
        claim=_CLAIMS.get((engine, cause.code), cause.claim),
        keys=tuple(_key(name, settings) for name in names if settings is None or name in settings),
        confirmed=_is_confirmed(cause, engine, settings),
    )


def _key(name: str, settings: Mapping[str, Any] | None) -> WireKey:
    value = None if settings is None else json.dumps(settings[name])
    return WireKey(key=name, value=value, is_default=None)


def _is_confirmed(cause: WireCause, engine: str, settings: Mapping[str, Any] | None) -> bool | None:
    """Whether settings say what the trace shows; ``None`` where none is about it."""
    if (engine, cause.code) in _ALWAYS:
        return True
    if settings is None or (engine, cause.code) not in _NAMES:
        return None
    if cause.code == "element_size":
        if engine != "fsdp2":
            return bool(settings.get("comm_hooks")) or None  # without a hook the gradients are as wide as parameters
        return any("32" in str(settings.get(name)) for name in ("reduce_dtype", "param_dtype"))
    # A part of the modules may be told otherwise than the rest: then the setting is neither.
    return settings.get(RESHARD) is not (cause.code == "kept")
