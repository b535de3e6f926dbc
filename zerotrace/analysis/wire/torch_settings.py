"""Which settings of torch's own engines decide what is sent, and whether they are what the trace shows.

Sources, of torch 2.4 to 2.13: ``torch/nn/parallel/distributed.py`` for DDP,
``torch/distributed/optim/zero_redundancy_optimizer.py`` for its ZeRO-1, ``torch/distributed/fsdp/_fully_shard/`` for
FSDP2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from zerotrace.analysis.wire.facts import Facts
from zerotrace.model import RESHARD, ShardGroupRecord, WireCause, WireKey

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
    (
        "fsdp2",
        "kept",
    ): "Parameters stay whole between forward and backward, as FSDP2 keeps the root's by default, so "
    "that backward need not gather them again.",
    ("ddp", "accumulation"): "Several backward passes of a step reduce their gradients, which no_sync would leave to "
    "the last.",
    ("zero1", "accumulation"): "Several backward passes of a step reduce their gradients, which no_sync would leave to "
    "the last.",
}

#: Bytes that settings tell and those that the trace shows are the same within this part: padding is less.
_SAME = 0.02

#: So many groups that are kept are named.
_MAX_GROUPS = 3

#: What an engine does whatever it is told: seen, it is as it should be.
_ALWAYS = frozenset({("zero1", "all_reduce")})


def with_settings(cause: WireCause, engine: str, facts: Facts) -> WireCause:
    """A cause with the settings of one of torch's engines in the place of DeepSpeed's keys.

    Args:
        cause: as found, whatever engine it was.
        engine: which of torch's engines.
        facts: what the cause was found in, with the settings in effect.
    """
    settings = facts.settings
    names = _NAMES.get((engine, cause.code), ())
    keys = [_key(name, settings) for name in names if settings is None or name in settings]
    if cause.code == "kept":
        keys += [
            WireKey(key=f"{RESHARD} of {group.module or 'the root'}", value="false", is_default=None)
            for group in _kept(facts.groups)[:_MAX_GROUPS]
        ]
    # Without a hook, DDP's gradients travel as wide as its parameters are.
    elif cause.code == "element_size" and engine != "fsdp2" and not _hooks(settings) and facts.buckets:
        types = json.dumps(sorted({bucket.dtype for bucket in facts.buckets}))
        keys = [WireKey(key="gradients in DDP's buckets", value=types, is_default=None)]
    return replace(
        cause,
        claim=_CLAIMS.get((engine, cause.code), cause.claim),
        keys=tuple(keys),
        confirmed=_is_confirmed(cause, engine, facts),
    )


def _hooks(settings: Mapping[str, Any] | None) -> Any:
    return None if settings is None else settings.get("comm_hooks")


def _key(name: str, settings: Mapping[str, Any] | None) -> WireKey:
    value = None if settings is None else json.dumps(settings[name])
    return WireKey(key=name, value=value, is_default=None)


def _kept(groups: Sequence[ShardGroupRecord]) -> list[ShardGroupRecord]:
    """The groups that stay whole from forward to backward."""
    return [group for group in groups if not group.reshard_after_forward]


def _is_confirmed(cause: WireCause, engine: str, facts: Facts) -> bool | None:
    """Whether settings say what the trace shows; ``None`` where none is about it."""
    settings = facts.settings
    if (engine, cause.code) in _ALWAYS:
        return True
    if settings is None or (engine, cause.code) not in _NAMES:
        return None
    if cause.code == "element_size":
        if engine != "fsdp2":
            return bool(_hooks(settings)) or any("16" not in bucket.dtype for bucket in facts.buckets) or None
        return any("32" in str(settings.get(name)) for name in ("reduce_dtype", "param_dtype"))
    if cause.code != "kept":
        return settings.get(RESHARD) is not False
    if not facts.groups:
        return settings.get(RESHARD) is not True
    told = facts.micro_steps * facts.price(sum(group.elements for group in _kept(facts.groups)))
    return abs(told + cause.sent_bytes) <= _SAME * told
