"""The buckets in which torch's DistributedDataParallel reduces gradients, as it says of itself.

They live in C++ and have no Python object. What DDP logs about itself names the parameters of each: the only other way
to ask makes a copy of all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from msgspec import Struct

from zerotrace.model import BucketRecord


class DdpBucket(Struct, frozen=True, kw_only=True):
    """One bucket, in the order in which they are reduced."""

    params: tuple[torch.nn.Parameter, ...]
    """In the order in which their gradients are expected."""
    elements: int
    bytes: int
    dtype: torch.dtype


def read_buckets(ddp: Any) -> tuple[DdpBucket, ...] | None:
    """The buckets as they are now; ``None`` until DDP has settled them.

    DDP parts the parameters anew in the second step, by the order in which gradients came in the first, and logs that
    in the third. With ``find_unused_parameters`` it never does.

    Args:
        ddp: a ``DistributedDataParallel``.
    """
    logged = ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices")
    if not logged:
        return None
    params = _reduced_params(ddp)
    return tuple(_bucket([params[int(index)] for index in part.split()]) for part in logged.split(","))


def first_bucket_bytes(ddp: Any) -> tuple[int, ...]:
    """Sizes of the buckets that DDP began with: they hold until it has settled others."""
    logged = ddp._get_ddp_logging_data().get("bucket_sizes", "")
    return tuple(int(size) for size in logged.split(",") if size.strip())


def describe_buckets(ddp: Any, names: dict[int, str]) -> tuple[BucketRecord, ...]:
    """The buckets for the manifest; none while DDP has not settled them.

    Args:
        ddp: a ``DistributedDataParallel``.
        names: ``id`` of each parameter -> its qualified name.
    """
    return tuple(
        BucketRecord(
            elements=bucket.elements,
            bytes=bucket.bytes,
            dtype=str(bucket.dtype).removeprefix("torch."),
            params=tuple(names.get(id(param), "") for param in bucket.params),
        )
        for bucket in read_buckets(ddp) or ()
    )


def _bucket(params: list[torch.nn.Parameter]) -> DdpBucket:
    elements = sum(param.numel() for param in params)
    return DdpBucket(
        params=tuple(params), elements=elements, bytes=elements * params[0].element_size(), dtype=params[0].dtype
    )


def _reduced_params(ddp: Any) -> list[torch.nn.Parameter]:
    """The parameters as DDP numbers them: those that need a gradient, each once, without those it is to ignore."""
    ignored = getattr(ddp, "parameters_to_ignore", ())
    params: dict[int, torch.nn.Parameter] = {}
    for prefix, module in ddp.module.named_modules():
        for name, param in module.named_parameters(recurse=False):
            if param.requires_grad and f"{prefix}.{name}" not in ignored:
                params.setdefault(id(param), param)
    return list(params.values())
