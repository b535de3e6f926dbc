"""What a row of device time is: one ordered table of rules, data and not code.

A row with collective metadata is communication whatever its name. Without metadata the name decides, and
each distinct name is looked at once.
"""

from __future__ import annotations

import re

from msgspec import Struct

from zerotrace.model import Category

#: Kineto categories of device rows, in today's spelling. Nothing else is device time: annotations mirrored to
#: the device, synchronisation rows, and host operators that carry a stream are not.
DEVICE_CATS = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})

#: Of these, the ones that move or set memory and compute nothing.
COPY_CATS = frozenset({"gpu_memcpy", "gpu_memset"})

#: Runtime and driver calls: where launches and synchronisations are found.
RUNTIME_CATS = frozenset({"cuda_runtime", "cuda_driver"})

#: Synchronisation rows. They name a device and a stream, but are no device time: they say who waits for whom.
SYNC_CAT = "cuda_sync"

#: Host annotations, which carry ProfilerStep, ``gloo:*`` and labels.
ANNOTATION_CATS = frozenset({"user_annotation", "cpu_op"})

_CAT_TODAY = {
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "runtime": "cuda_runtime",
    "driver": "cuda_driver",
    "operator": "cpu_op",
    "concurrent_kernel": "kernel",
}

#: The host operator that carries a collective's metadata.
COLLECTIVE_OPERATOR = "record_param_comms"

#: ``Collective name`` values of rows that only wait and move nothing.
NOT_COLLECTIVES = frozenset({"wait"})


class Rule(Struct, frozen=True):
    """A name that matches ``pattern`` (searched, case ignored) is of ``category``."""

    pattern: str
    category: Category
    reason: str


#: First match wins; what no rule matches is compute.
KERNEL_RULES: tuple[Rule, ...] = (
    Rule(r"^(nccl|rccl|msccl)\w*kernel", Category.COMM, "NCCL, RCCL and MSCCL kernels of every generation"),
    Rule(r"^mscclpp|\bmscclpp::", Category.COMM, "MSCCL++"),
    Rule(r"\bmultimem_\w*(reduce|gather)", Category.COMM, "torch symmetric memory over NVLink multicast"),
    Rule(r"\b(one|two)_?shot_?all_?(reduce|gather)|all_?reduce_?(one|two)_?shot", Category.COMM, "symmetric memory"),
    Rule(r"\bcross_device_reduce", Category.COMM, "custom all-reduce of the inference engines"),
    Rule(r"\bdeep_ep::|\b(intranode|internode|internode_ll)::(dispatch|combine)", Category.COMM, "DeepEP"),
    Rule(r"nvshmem", Category.COMM, "NVSHMEM"),
    Rule(r"\b(oneapi::)?ccl::|^oneccl", Category.COMM, "oneCCL"),
    Rule(r"^(hccl|hcom)", Category.COMM, "HCCL"),
)  # fmt: skip

# Words for moving data between devices, in the names of kernels that no rule knows.
_LIKE_COMMUNICATION = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|userbuffers|multimem|nvls|(?<![a-z])p2p",
    re.IGNORECASE,
)

_COMPILED = tuple((re.compile(rule.pattern, re.IGNORECASE), rule.category) for rule in KERNEL_RULES)


def canonical_cat(cat: object) -> str:
    """The category in today's lower-case spelling: ``Memcpy`` and ``gpu_memcpy`` are one."""
    lower = cat.lower() if isinstance(cat, str) else ""
    return _CAT_TODAY.get(lower, lower)


def device_category(cat: str, name: str, has_collective: bool) -> Category | None:
    """The category of one row.

    Args:
        cat: Kineto category in today's spelling.
        name: name of the row.
        has_collective: whether the row, or the operator that launched it, carries a collective's metadata.

    Returns:
        The category; ``None`` if the row is no device row.
    """
    if cat not in DEVICE_CATS:
        return None
    if has_collective:
        return Category.COMM
    if cat != "kernel":
        return Category.COPY
    return next((category for pattern, category in _COMPILED if pattern.search(name)), Category.COMPUTE)


def is_unclassified(cat: str, name: str) -> bool:
    """Whether a row that no rule and no metadata makes communication may be some: it is counted as compute, in doubt.

    Args:
        cat: Kineto category in today's spelling.
        name: name of the row.
    """
    return cat == "kernel" and (not name.strip() or _LIKE_COMMUNICATION.search(name) is not None)


def host_category(cat: str, name: str, on_gloo_thread: bool) -> Category | None:
    """The category of one host row in host mode.

    ``gloo:*`` annotations are communication. Operators on the other threads are compute, without the
    ``c10d::*`` wrappers and ``record_param_comms``, which only hand a collective over.
    """
    if name.startswith("gloo:") and cat in ANNOTATION_CATS:
        return Category.COMM
    if cat == "cpu_op" and not on_gloo_thread and not name.startswith(("c10d::", COLLECTIVE_OPERATOR)):
        return Category.COMPUTE
    return None
