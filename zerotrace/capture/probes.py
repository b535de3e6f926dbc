"""Small programs of ``zerotrace doctor``: each tries one thing in a process of its own and prints JSON.

``python -m zerotrace.capture.probes NAME ARGS``. A thing that crashes, hangs or opens a CUDA context does so there.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any


def probe_torch() -> dict[str, Any]:
    """Versions, devices, and what torch was built with. Opens no CUDA context."""
    import torch

    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return {
        "version": torch.__version__,
        "cuda": torch.version.cuda,
        "num_devices": num_devices,
        "kineto": bool(torch.profiler.kineto_available()),
        "gloo": torch.distributed.is_available() and torch.distributed.is_gloo_available(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if num_devices else None,
    }


def probe_deepspeed() -> dict[str, Any]:
    """The version, and whether the functions are there that a capture hooks into."""
    from importlib import import_module

    import deepspeed

    places = {
        "fetch": ("runtime.zero.partitioned_param_coordinator", "PartitionedParameterCoordinator",
                  ("_fetch_sub_module_impl", "fetch_sub_module")),
        "gather": ("runtime.zero.partitioned_param_coordinator", "PartitionedParameterCoordinator",
                   ("_PartitionedParameterCoordinator__all_gather_params",)),
        "refresh": ("runtime.zero.partition_parameters", "Init", ("_all_gather",)),
        "engine": ("runtime.engine", "DeepSpeedEngine", ("step",)),
        "reduce at stages 1 and 2": ("runtime.zero.stage_1_and_2", "DeepSpeedZeroOptimizer", ("reduce_ipg_grads",)),
        "reduce at stage 3": ("runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3",
                              ("_DeepSpeedZeroOptimizer_Stage3__reduce_and_partition_ipg_grads",)),
    }  # fmt: skip
    missing = []
    for hook, (module, owner, names) in places.items():
        found = getattr(import_module(f"deepspeed.{module}"), owner, None)
        if not any(hasattr(found, name) for name in names):
            missing.append(hook)
    takes_config = "config" in inspect.signature(deepspeed.initialize).parameters
    return {"version": deepspeed.__version__, "missing": missing if takes_config else [*missing, "initialize"]}


def probe_all_reduce(backend: str, rank: str, num_ranks: str, store: str) -> dict[str, Any]:
    """One all-reduce; every rank has to come to the same sum."""
    import torch

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    device = "cpu"
    if backend == "nccl":
        device = f"cuda:{rank}"
        torch.cuda.set_device(device)
    group = {"rank": int(rank), "world_size": int(num_ranks), "init_method": f"file://{store}"}
    torch.distributed.init_process_group(backend, **group)
    value = torch.full((4,), float(rank) + 1, device=device)
    torch.distributed.all_reduce(value)
    total = value[0].item()
    torch.distributed.destroy_process_group()
    return {"sum": total, "expected": sum(range(1, int(num_ranks) + 1))}


def probe_cupti() -> dict[str, Any]:
    """Whether the profiler sees a kernel that has certainly run, and what else uses each device."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    memory = []
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        memory.append({"name": torch.cuda.get_device_name(index), "free": free, "total": total})
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        torch.ones(1 << 20, device="cuda").mul_(2)
        torch.cuda.synchronize()
    kernels = [event.name for event in profiler.events() if "CUDA" in str(event.device_type)]
    return {"num_kernels": len(kernels), "devices": memory}


PROBES: dict[str, Callable[..., dict[str, Any]]] = {
    "torch": probe_torch,
    "deepspeed": probe_deepspeed,
    "all-reduce": probe_all_reduce,
    "cupti": probe_cupti,
}


if __name__ == "__main__":
    found = PROBES[sys.argv[1]](*sys.argv[2:])
    # Libraries print too: the answer is the last line.
    sys.stdout.write("\n" + json.dumps(found) + "\n")
    sys.stdout.flush()
