"""DeepSpeed's keys that decide what is sent: the value in force, and whether it is the default.

Defaults were read in ``deepspeed/runtime/zero/config.py`` (class ``DeepSpeedZeroConfig``) of 0.16.0, 0.17.6, 0.18.3 and
0.19.8, which agree on every key below, and in ``deepspeed/runtime/config.py`` for those outside of
``zero_optimization``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

_ZERO = "zero_optimization"
_MODEL_DTYPE = "that of the model"

#: Key -> default. Dots lead into sections.
DEFAULTS: Mapping[str, Any] = {
    f"{_ZERO}.use_multi_rank_bucket_allreduce": True,
    f"{_ZERO}.reduce_scatter": True,
    f"{_ZERO}.overlap_comm": None,  # true at stage 3 alone
    f"{_ZERO}.reduce_bucket_size": 500_000_000,
    f"{_ZERO}.allgather_bucket_size": 500_000_000,
    f"{_ZERO}.parameter_alignment": False,
    f"{_ZERO}.stage3_max_live_parameters": 1_000_000_000,
    f"{_ZERO}.stage3_max_reuse_distance": 1_000_000_000,
    f"{_ZERO}.stage3_param_persistence_threshold": 100_000,
    f"{_ZERO}.stage3_use_all_reduce_for_fetch_params": False,
    f"{_ZERO}.zero_hpz_partition_size": 1,
    f"{_ZERO}.zero_quantized_weights": False,
    f"{_ZERO}.zero_quantized_gradients": False,
    "data_types.grad_accum_dtype": _MODEL_DTYPE,
    "communication_data_type": _MODEL_DTYPE,
    "gradient_accumulation_steps": 1,
}

# Names that DeepSpeed's fields have beside their documented ones.
_ALIASES = {
    name: name.replace(".stage3_", ".")
    for name in DEFAULTS
    if name.startswith(f"{_ZERO}.stage3_")
}  # fmt: skip


class Setting(Struct, frozen=True):
    """A key and the value in force."""

    key: str
    value: Any
    is_default: bool

    @property
    def text(self) -> str:
        """The value as JSON has it."""
        return json.dumps(self.value)


def setting(config: Mapping[str, Any] | None, key: str) -> Setting | None:
    """The value of a key in a run.

    Args:
        config: the whole configuration; ``None`` where it is unknown.
        key: one of :data:`DEFAULTS`.

    Returns:
        The setting; ``None`` where it is unknown, which ``"auto"`` is, too.
    """
    if config is None:
        return None
    value = _look_up(config, key)
    if value is None and key in _ALIASES:
        value = _look_up(config, _ALIASES[key])
    if value is None:
        return Setting(key, DEFAULTS[key], is_default=True)
    return None if value == "auto" else Setting(key, _number(value), is_default=False)


def micro_steps(config: Mapping[str, Any] | None, num_replicas: int) -> Setting | None:
    """``gradient_accumulation_steps``, given or as DeepSpeed works it out from the batch sizes.

    Source: ``deepspeed/runtime/config.py``, ``_set_batch_related_parameters``.

    Args:
        config: the whole configuration; ``None`` where it is unknown.
        num_replicas: ranks that train on data of their own.
    """
    found = setting(config, "gradient_accumulation_steps")
    if config is None or found is None or not found.is_default:
        return found
    batch, micro = config.get("train_batch_size"), config.get("train_micro_batch_size_per_gpu")
    if isinstance(batch, int) and isinstance(micro, int) and micro * num_replicas:
        return Setting(found.key, batch // (micro * num_replicas), is_default=False)
    return found


def _look_up(config: Mapping[str, Any], key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _number(value: Any) -> Any:
    """Counts are often written as 5e8."""
    return int(value) if isinstance(value, float) and value.is_integer() else value
