"""What torch's data parallelism holds beside the model and the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from zerotrace.capture.ddp_buckets import first_bucket_bytes, read_buckets
from zerotrace.capture.torch_engines import is_ddp
from zerotrace.model import Owner

Claim = tuple[Owner, str, torch.Tensor]


def claims_of(parallel: torch.nn.Module) -> Iterator[Claim]:
    """The tensors that can be reached, each with its owner and its place.

    Args:
        parallel: the model as torch's data parallelism has it.
    """
    if is_ddp(parallel):
        yield from _ddp_claims(parallel)


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


def _grads_in(ddp: Any, params: tuple[torch.nn.Parameter, ...]) -> list[torch.Tensor]:
    """Gradients that lie in their bucket, which leads to it."""
    if not ddp.gradient_as_bucket_view:
        return []
    return [param.grad for param in params if param.grad is not None]
