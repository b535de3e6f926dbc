"""Finds the owner of every storage that an engine holds, DeepSpeed's or one on a plain torch optimizer.

Attribute names were read in the sources of DeepSpeed 0.16.0 to 0.19.8: ``stage3.py``, ``stage_1_and_2.py``,
``bf16_optimizer.py``, ``fp16/unfused_optimizer.py``, ``fp16/fused_optimizer.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.capture.torch_engines import find_parallel
from zerotrace.capture.torch_owners import Claim, claims_of, local_of, unlocated_buckets
from zerotrace.model import Owner

OWNERS_VERSION = 1


class StorageOwner(Struct, frozen=True, kw_only=True):
    """One storage and who it belongs to."""

    address: int
    """Of its first byte. On a CUDA device, that of a block in the allocator's snapshot."""
    bytes: int
    device: str
    owner: Owner
    holder: str
    """Where the storage was found first: ``optimizer.fp32_partitioned_groups_flat[0]``."""
    num_tensors: int
    """Tensors found in it, views counted once for each place that holds one."""


class UnlocatedStorage(Struct, frozen=True, kw_only=True):
    """A storage that is there, but whose address Python cannot ask for: in a snapshot it can be told by its size."""

    bytes: int
    device: str
    owner: Owner
    holder: str


class OwnersFile(Struct, frozen=True, kw_only=True):
    """Content of ``rank_N.owners.json``: who holds what after the last step of the memory window."""

    version: int = OWNERS_VERSION
    rank: int
    step: int
    """Optimizer step after which this was read."""
    device: str
    allocated_bytes: int | None
    """``memory_allocated`` at that moment; ``None`` on CPU, like the next three."""
    peak_bytes: int | None
    """``max_memory_allocated`` over the memory window."""
    reserved_bytes: int | None
    workspace_bytes: int | None
    """What the libraries' workspaces held before the window."""
    storages: tuple[StorageOwner, ...]
    unlocated: tuple[UnlocatedStorage, ...] = ()
    """What torch's DDP holds in C++: its buckets of gradients."""


#: Attributes of DeepSpeed's optimizers, and what their tensors are.
_ATTRIBUTES = (
    (Owner.MASTER, ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition",
                    "fp32_groups", "fp32_groups_flat")),
    (Owner.PARAMS, ("lp_param_buffer", "fp16_partitioned_groups_flat", "param_groups_fp16_flat_cpu_memory",
                    "bit16_groups_flat", "bf16_groups_flat", "fp16_groups_flat", "fp16_groups")),
    (Owner.GRAD_PARTITION, ("grad_partitions_flat_buffer", "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition",
                            "averaged_gradients", "grad_partition_buffers")),
    (Owner.GRADS, ("fp32_groups_gradients_flat", "all_grad_tensors")),
    (Owner.REDUCE_BUCKET, ("_DeepSpeedZeroOptimizer_Stage3__ipg_bucket_flat_buffer", "ipg_buffer",
                           "extra_large_param_to_reduce")),
)  # fmt: skip
_STATES = {"exp_avg": Owner.EXP_AVG, "exp_avg_sq": Owner.EXP_AVG_SQ}

#: How deep containers are searched for tensors.
_DEPTH = 4


def find_owners(engine: Any) -> tuple[StorageOwner, ...]:
    """Every storage that an engine holds, by falling size.

    Of several claims on a storage the first one holds: what is known by name comes before what an attribute that no
    rule knows holds, which is ``other``.

    Args:
        engine: what trains; no step may be running.
    """
    found: dict[tuple[str, int], StorageOwner] = {}
    for owner, holder, claimed in _claims(engine):
        tensor = local_of(claimed)
        if tensor.is_meta or tensor.layout != torch.strided:
            continue
        storage = tensor.untyped_storage()
        if not storage.nbytes():
            continue
        key = (str(tensor.device), storage.data_ptr())
        first = found.get(key)
        if first is not None:
            found[key] = replace(first, num_tensors=first.num_tensors + 1)
            continue
        found[key] = StorageOwner(
            address=key[1], bytes=storage.nbytes(), device=key[0], owner=owner, holder=holder, num_tensors=1
        )
    return tuple(sorted(found.values(), key=lambda storage: (-storage.bytes, storage.address)))


def find_unlocated(engine: Any, device: str) -> tuple[UnlocatedStorage, ...]:
    """What an engine holds in storages that Python cannot see.

    Args:
        engine: what trains.
        device: where it trains.
    """
    parallel = find_parallel(engine)
    return tuple(
        UnlocatedStorage(bytes=size, device=device, owner=Owner.REDUCE_BUCKET, holder=holder)
        for holder, size in (unlocated_buckets(parallel) if parallel is not None else ())
    )


def _claims(engine: Any) -> Iterator[Claim]:
    optimizer = getattr(engine, "optimizer", None)
    parallel = find_parallel(engine)
    if parallel is not None:
        yield from claims_of(parallel)
    # A plain torch optimizer works on the model's own parameters, which are no master copy.
    yield from _of_model(engine.module)
    if optimizer is not None:
        yield from _of_optimizer(optimizer)
    yield from _rest("engine", engine)
    if optimizer is not None:
        yield from _rest("optimizer", optimizer)


def _of_model(model: torch.nn.Module) -> Iterator[Claim]:
    for name, param in model.named_parameters():
        partition = getattr(param, "ds_tensor", None)
        if partition is None:
            yield Owner.PARAMS, f"module.{name}", param.data
        else:
            yield Owner.PARAMS, f"module.{name}.ds_tensor", partition
            secondary = getattr(param, "ds_secondary_tensor", None)
            if secondary is not None:
                yield Owner.PARAMS, f"module.{name}.ds_secondary_tensor", secondary
            whole = param.ds_status.name != "NOT_AVAILABLE"
            persisted = " (persisted)" if getattr(param, "ds_persist", False) else ""
            owner = Owner.GATHERED_PARAMS if whole else Owner.PARAMS
            yield owner, f"module.{name}{persisted}", param.data
        for kind in ("grad", "grad_accum"):
            # The second is where stages 1 and 2 add up gradients in another dtype.
            if (grad := getattr(param, kind, None)) is not None:
                yield Owner.GRADS, f"module.{name}.{kind}", grad
    for name, buffer in model.named_buffers():
        yield Owner.OTHER, f"module.{name} (buffer)", buffer


def _of_optimizer(optimizer: Any) -> Iterator[Claim]:
    for bucket_holder, bucket in _buckets(optimizer):
        yield from ((Owner.REDUCE_BUCKET, holder, tensor) for holder, tensor in _tensors(bucket_holder, bucket))
    for owner, names in _ATTRIBUTES:
        for name in names:
            value = getattr(optimizer, name, None)
            for holder, tensor in _tensors(f"optimizer.{name}", value):
                yield owner, holder, tensor
                if owner is Owner.MASTER and tensor.grad is not None:
                    yield Owner.GRADS, f"{holder}.grad", tensor.grad
    inner = _innermost(optimizer)
    for number, group in enumerate(getattr(inner, "param_groups", ())):
        for place, param in enumerate(group["params"]):
            # What the optimizer updates and is no parameter of the model, which came first, is a copy of it.
            holder = f"optimizer.param_groups[{number}][{place}]"
            yield Owner.MASTER, holder, param.data
            if param.grad is not None:
                yield Owner.GRADS, f"{holder}.grad", param.grad
    for number, (_, state) in enumerate(getattr(inner, "state", {}).items()):
        if not isinstance(state, Mapping):
            continue
        for key, value in state.items():
            for holder, tensor in _tensors(f"optimizer.state[{number}].{key}", value):
                yield _STATES.get(key, Owner.OTHER), holder, tensor


def _innermost(optimizer: Any) -> Any:
    """The optimizer that has the states, within those that hold one another: ``optim`` is torch's ZeRO's."""
    for _ in range(_DEPTH):
        held = next((vars(optimizer)[name] for name in ("optimizer", "optim") if name in vars(optimizer)), None)
        if not hasattr(held, "param_groups"):
            break
        optimizer = held
    return optimizer


def _buckets(optimizer: Any) -> Iterator[tuple[str, Any]]:
    """The flat buffers in which gradients are collected for their reduction: one or two a dtype since 0.17."""
    for dtype, bucket in (getattr(optimizer, "ipg_buckets", None) or {}).items():
        yield f"optimizer.ipg_buckets[{str(dtype).removeprefix('torch.')}].buffer", bucket.buffer


def _rest(name: str, holder: Any) -> Iterator[Claim]:
    for attribute, value in vars(holder).items():
        yield from ((Owner.OTHER, path, tensor) for path, tensor in _tensors(f"{name}.{attribute}", value))


def _tensors(holder: str, value: Any, depth: int = _DEPTH) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested containers, each with the place where it is."""
    if isinstance(value, torch.Tensor):
        yield holder, value
    elif depth == 0 or isinstance(value, (str, bytes)):
        return
    elif isinstance(value, Mapping):
        for key, item in value.items():
            inside = key if isinstance(key, (str, int)) else type(key).__name__
            yield from _tensors(f"{holder}[{inside}]", item, depth - 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for number, item in enumerate(value):
            yield from _tensors(f"{holder}[{number}]", item, depth - 1)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(f"{holder}.{field.name}", getattr(value, field.name, None), depth - 1)
