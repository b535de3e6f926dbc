"""What torch's data parallelism holds beside the model and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zerotrace.capture.ddp_buckets import first_bucket_bytes, read_buckets
from zerotrace.capture.fsdp1 import find_flat_params
from zerotrace.capture.fsdp_groups import find_groups, has_fsdp2, is_master
from zerotrace.capture.torch_engines import is_ddp, is_fsdp1
from zerotrace.model import Owner

Claim = tuple[Owner, str, torch.Tensor]


def claims_of(parallel: torch.nn.Module) -> Iterator[Claim]:
    """The tensors that can be reached, each with its owner and its place.

    Args:
        parallel: the model as torch's data parallelism has it.
    """
    if is_ddp(parallel):
        yield from _ddp_claims(parallel)
    elif is_fsdp1(parallel):
        for flat in find_flat_params(parallel):
            yield from _flat_claims(f"module.{flat.module} (flat)", flat.handle)
    elif has_fsdp2(parallel):
        for group in find_groups(parallel):
            for name, param in group.params:
                yield from _sharded_claims(f"module.{name}", param)
            yield from _traffic_claims(group.module, group.group)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds of a tensor that is sharded; the tensor itself where it is not."""
    local = getattr(tensor, "_local_tensor", tensor)
    return local if isinstance(local, torch.Tensor) else tensor


def unlocated_buckets(parallel: torch.nn.Module) -> Iterator[tuple[str, int]]:
    """Place and bytes of the buckets of DDP that no Python object leads to.

    Args:
        parallel: the model as torch's data parallelism has it.
    """
    if not is_ddp(parallel):
        return
    buckets = read_buckets(parallel)
    if buckets is None:
        sizes = list(first_bucket_bytes(parallel))
    else:
        sizes = [bucket.bytes for bucket in buckets if not _grads_in(parallel, bucket.params)]
    for number, size in enumerate(sizes):
        yield f"parallel.reducer bucket {number} of {len(sizes)}", size


def _ddp_claims(ddp: Any) -> Iterator[Claim]:
    for number, bucket in enumerate(read_buckets(ddp) or ()):
        for grad in _grads_in(ddp, bucket.params):
            yield Owner.REDUCE_BUCKET, f"parallel.reducer bucket {number}", grad


def _sharded_claims(holder: str, param: Any) -> Iterator[Claim]:
    """What FSDP2 holds of one parameter: its shard, and in some moments the whole."""
    yield Owner.MASTER if is_master(param) else Owner.PARAMS, f"{holder} (shard)", param._sharded_param_data
    for gathered in getattr(param, "all_gather_outputs", ()):
        yield Owner.GATHERED_PARAMS, f"{holder} (gathered)", gathered
    resharded = getattr(param, "_sharded_post_forward_param_data", None)
    if resharded is not None:
        yield Owner.GATHERED_PARAMS, f"{holder} (resharded after forward)", resharded
    if param.sharded_param.grad is not None:
        yield Owner.GRAD_PARTITION, f"{holder}.grad (shard)", local_of(param.sharded_param.grad)
    whole = [getattr(getattr(param, "_unsharded_param", None), "grad", None), param.unsharded_accumulated_grad]
    for grad in whole:
        if grad is not None:
            yield Owner.GRADS, f"{holder}.grad", local_of(grad)


#: Attributes of FSDP1's flat parameter, and what their tensors are.
_FLAT = {
    "_mp_shard": Owner.PARAMS,
    "_full_param_padded": Owner.GATHERED_PARAMS,
    "_full_prec_full_param_padded": Owner.GATHERED_PARAMS,
    "_saved_grad_shard": Owner.GRAD_PARTITION,
    "grad": Owner.GRAD_PARTITION,
}


def _flat_claims(holder: str, handle: Any) -> Iterator[Claim]:
    """What FSDP1 holds of one flat parameter."""
    flat = handle.flat_param
    mixed = getattr(handle, "_fwd_bwd_param_dtype", flat.dtype) not in (None, flat.dtype)
    shard = getattr(flat, "_local_shard", None)
    yield Owner.MASTER if mixed else Owner.PARAMS, f"{holder}._local_shard", flat.data if shard is None else shard
    for name, owner in _FLAT.items():
        tensor = getattr(flat, name, None)
        if isinstance(tensor, torch.Tensor):
            yield owner, f"{holder}.{name}", tensor


def _traffic_claims(module: str, group: Any) -> Iterator[Claim]:
    """What the collectives of a group hold while they are under way."""
    results = [group._all_gather_result, getattr(group.comm_ctx.all_gather_state, "all_gather_result", None)]
    for result in results:
        if result is not None:
            yield Owner.GATHERED_PARAMS, f"module.{module} (all-gather)", result.all_gather_output
    # One state up to torch 2.11, a list since.
    states = getattr(group.comm_ctx, "reduce_scatter_states", None)
    for state in [getattr(group.comm_ctx, "reduce_scatter_state", None)] if states is None else states:
        if state is not None:
            yield Owner.REDUCE_BUCKET, f"module.{module} (reduce-scatter)", state.reduce_scatter_input


def _grads_in(ddp: Any, params: tuple[torch.nn.Parameter, ...]) -> list[torch.Tensor]:
    """Gradients that lie in their bucket, which leads to it."""
    if not ddp.gradient_as_bucket_view:
        return []
    return [param.grad for param in params if param.grad is not None]
