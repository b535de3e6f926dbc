"""torch's own ways to train on several ranks: told apart, and asked for their settings."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from zerotrace.capture.fsdp1 import clean_name
from zerotrace.capture.fsdp_groups import find_groups, has_fsdp2, is_fsdp2

_MIB = 1 << 20


def find_parallel(engine: Any) -> torch.nn.Module | None:
    """The model as torch's data parallelism has it; ``None`` where there is none.

    Args:
        engine: what trains: an object with it as ``parallel`` or ``module``, or the wrapped model itself.
    """
    declared = getattr(engine, "parallel", None)
    if isinstance(declared, torch.nn.Module):
        return declared
    for candidate in (engine, getattr(engine, "module", None)):
        if isinstance(candidate, torch.nn.Module) and is_parallel(candidate):
            return candidate
    return None


def is_parallel(module: torch.nn.Module) -> bool:
    """Whether a module is wrapped by torch's data parallelism."""
    return is_ddp(module) or is_fsdp1(module) or is_fsdp2(module)


def is_ddp(module: Any) -> bool:
    """Whether this is torch's ``DistributedDataParallel``."""
    return isinstance(module, DistributedDataParallel)


def is_fsdp1(module: Any) -> bool:
    """Whether this is torch's first ``FullyShardedDataParallel``."""
    # A program that has not loaded it has none.
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FullyShardedDataParallel", None)
    return kind is not None and isinstance(module, kind)


def is_zero(optimizer: Any) -> bool:
    """Whether this is torch's ``ZeroRedundancyOptimizer``."""
    module = sys.modules.get("torch.distributed.optim.zero_redundancy_optimizer")
    kind = getattr(module, "ZeroRedundancyOptimizer", None)
    return kind is not None and isinstance(optimizer, kind)


def inner_model(parallel: torch.nn.Module) -> torch.nn.Module:
    """The model by itself, whose names are those of the program."""
    inner = getattr(parallel, "module", None) if is_ddp(parallel) else None
    return inner if isinstance(inner, torch.nn.Module) else parallel


def own_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """The modules of a model with their names, without the wrappers of FSDP1, which gather before the module runs."""
    return ((clean_name(name), module) for name, module in model.named_modules() if not is_fsdp1(module))


def name_engine(engine: Any) -> str | None:
    """What the manifest calls it; ``None`` where it is none of torch's."""
    parallel = find_parallel(engine)
    if parallel is None:
        return None
    if is_ddp(parallel):
        return "zero1" if is_zero(getattr(engine, "optimizer", None)) else "ddp"
    if is_fsdp1(parallel):
        return "fsdp1"
    return "fsdp2" if has_fsdp2(parallel) else None


def read_settings(engine: Any) -> dict[str, Any]:
    """The settings that are in effect, read off the objects that train."""
    parallel = find_parallel(engine)
    optimizer: Any = getattr(engine, "optimizer", None)
    if is_fsdp1(parallel):
        return _fsdp1_settings(parallel)
    if parallel is not None and has_fsdp2(parallel):
        return _fsdp2_settings(parallel)
    settings = _ddp_settings(parallel) if is_ddp(parallel) else {}
    if is_zero(optimizer):
        settings["parameters_as_bucket_view"] = bool(optimizer.parameters_as_bucket_view)
        settings["overlap_with_ddp"] = bool(optimizer._overlap_with_ddp)
    return settings


def _ddp_settings(ddp: Any) -> dict[str, Any]:
    return {
        "bucket_cap_mb": ddp.bucket_bytes_cap / _MIB,
        "first_bucket_cap_mb": (1 if ddp.bucket_bytes_cap_default else ddp.bucket_bytes_cap / _MIB),
        "gradient_as_bucket_view": bool(ddp.gradient_as_bucket_view),
        "static_graph": bool(ddp.static_graph),
        "find_unused_parameters": bool(ddp.find_unused_parameters),
        # A hook of the program's own may reduce in another type, or send something else.
        "comm_hooks": [getattr(hook, "__qualname__", str(hook)) for hook, _ in getattr(ddp, "_comm_hooks", ())],
    }


def _fsdp2_settings(model: torch.nn.Module) -> dict[str, Any]:
    groups = find_groups(model)
    inner = [group for group in groups if not group.is_root]
    reshards = {group.reshards for group in inner or groups}
    policies = [group.group.mp_policy for group in groups]
    return {
        # The root's own is in the table of groups.
        "reshard_after_forward": reshards.pop() if len(reshards) == 1 else "of some groups",
        "forward_prefetch": max((len(group.state._states_to_forward_prefetch) for group in groups), default=0),
        "backward_prefetch": max((len(group.state._states_to_backward_prefetch) for group in groups), default=0),
        "param_dtype": _dtype(policies, "param_dtype"),
        "reduce_dtype": _dtype(policies, "reduce_dtype"),
        "cpu_offload": any(type(group.group.offload_policy).__name__ == "CPUOffloadPolicy" for group in groups),
    }


def _fsdp1_settings(fsdp: Any) -> dict[str, Any]:
    precision = fsdp.mixed_precision
    return {
        "sharding_strategy": fsdp.sharding_strategy.name,
        "forward_prefetch": bool(fsdp.forward_prefetch),
        "backward_prefetch": fsdp.backward_prefetch.name if fsdp.backward_prefetch is not None else None,
        "limit_all_gathers": bool(fsdp.limit_all_gathers),
        "use_orig_params": bool(fsdp._use_orig_params),
        "param_dtype": _dtype([precision], "param_dtype"),
        "reduce_dtype": _dtype([precision], "reduce_dtype"),
        "cpu_offload": bool(fsdp.cpu_offload.offload_params),
    }


def _dtype(policies: list[Any], name: str) -> str | None:
    """The type that all policies name; ``None`` for that of the parameters."""
    found = {getattr(policy, name, None) for policy in policies}
    return str(found.pop()).removeprefix("torch.") if len(found) == 1 and None not in found else None
