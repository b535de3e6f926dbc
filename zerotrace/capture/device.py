"""The device of this rank and its process group; the few places where CUDA and CPU differ."""

from __future__ import annotations

import collections
import os
import sys

import torch
from msgspec import Struct

from zerotrace.capture.plan import BACKENDS


class MemoryGauges(Struct, frozen=True, kw_only=True):
    """Device memory of this rank, in bytes, as torch's allocator and the driver report it."""

    resident_bytes: int
    peak_bytes: int
    reserved_bytes: int
    device_used_bytes: int


def init_process_group() -> torch.device:
    """Join the process group of this run (NCCL on GPUs, gloo on CPUs).

    A program that trains with DeepSpeed imports it first: the group is then DeepSpeed's too, and the device that of
    its accelerator. ``DS_ACCELERATOR=cpu`` in the environment forces the CPU in any case.

    Returns:
        The device of this rank.
    """
    if is_cuda():
        # Before anything touches CUDA: otherwise every rank opens a context on device 0.
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = BACKENDS["cuda" if is_cuda() else "cpu"]
    deepspeed = sys.modules.get("deepspeed")
    if deepspeed is None:
        torch.distributed.init_process_group(backend)
        return current()
    if not is_cuda():
        forbid_op_builds()
    deepspeed.init_distributed(dist_backend=backend)
    return current()


def forbid_op_builds() -> None:
    """Keep DeepSpeed's CPU accelerator from compiling its shared-memory collectives.

    DeepSpeed looks each op up in ``deepspeed.ops.__compatible_ops__`` before it builds it; where that says no, it
    uses the process group, which is what a capture is to show. Replacing the table also spares DeepSpeed's probing,
    which runs a compiler.
    """
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__ = collections.defaultdict(bool)


def is_cuda() -> bool:
    """Whether this rank computes on a CUDA device."""
    accelerators = sys.modules.get("deepspeed.accelerator")
    if accelerators is not None:
        return bool(accelerators.get_accelerator().device_name() == "cuda")
    return os.environ.get("DS_ACCELERATOR") != "cpu" and torch.cuda.is_available()


def current() -> torch.device:
    """This rank's device."""
    return torch.device("cuda", torch.cuda.current_device()) if is_cuda() else torch.device("cpu")


def synchronize() -> None:
    """Wait for all work on this rank's device."""
    if is_cuda():
        torch.cuda.synchronize()


def device_name() -> str:
    """Marketing name of this rank's device."""
    return torch.cuda.get_device_name() if is_cuda() else "cpu"


def reset_peak_memory() -> None:
    """Start a new interval for the peak gauge."""
    if is_cuda():
        torch.cuda.reset_peak_memory_stats()


def read_memory() -> MemoryGauges | None:
    """The gauges as they stand; ``None`` on CPU, where torch has no allocator statistics."""
    if not is_cuda():
        return None
    free, total = torch.cuda.mem_get_info()
    return MemoryGauges(
        resident_bytes=torch.cuda.memory_allocated(),
        peak_bytes=torch.cuda.max_memory_allocated(),
        reserved_bytes=torch.cuda.memory_reserved(),
        device_used_bytes=total - free,
    )
