"""The settings of torch's own engines that findings name: DeepSpeed's keys say nothing to them.

Sources: ``torch/nn/parallel/distributed.py``, ``torch/distributed/fsdp/_fully_shard/``,
``torch/distributed/fsdp/fully_sharded_data_parallel.py``.
"""

from __future__ import annotations

from typing import Any

from zerotrace.model import RESHARD, RunManifest

_WRAPPED = "auto_wrap_policy"
_SHARDED = "fully_shard"


def torch_engine(manifest: RunManifest | None) -> str | None:
    """Which of torch's engines trained; ``None`` for DeepSpeed, a single device, and where that is unknown."""
    if manifest is None or manifest.stage is not None or manifest.sharing is None:
        return None
    return manifest.engine if manifest.sharing.wire_ratio is not None else None


def smaller_reductions(engine: str, manifest: RunManifest | None) -> str:
    """What reduces gradients in smaller parts, and sooner."""
    if engine.startswith("fsdp"):
        return f"{_groups(engine)} on smaller modules: each reduces its gradients by itself"
    settings: Any = (manifest.engine_settings if manifest is not None else None) or {}
    now = settings.get("bucket_cap_mb")
    return f"smaller bucket_cap_mb{'' if now is None else f' (now {now:g})'}"


def keep_parameters(engine: str) -> str:
    """What keeps parameters whole between forward and backward."""
    if engine == "fsdp1":
        return "sharding_strategy: SHARD_GRAD_OP, which gives nothing back in between"
    return f"{RESHARD}: false, which gives nothing back in between"


def earlier_gathers(engine: str) -> str:
    """What gathers parameters ahead of the module that needs them."""
    if engine == "fsdp1":
        return "forward_prefetch: true, and backward_prefetch: BACKWARD_PRE"
    return "set_modules_to_forward_prefetch and set_modules_to_backward_prefetch: 1 or more modules ahead"


def larger_gathers(engine: str) -> str:
    """What makes gathers fewer and larger."""
    return f"{_groups(engine)} on larger modules: fewer and larger gathers"


def smaller_gathers(engine: str) -> str:
    """What parts the parameters into more gathers."""
    return f"{_groups(engine)} on each block, so that one is gathered while another runs"


def _groups(engine: str) -> str:
    return _WRAPPED if engine == "fsdp1" else _SHARDED
