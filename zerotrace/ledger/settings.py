"""What a DeepSpeed configuration says about memory, with DeepSpeed's defaults where it says nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from zerotrace.errors import LedgerError

#: Bytes of an element.
DTYPE_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
# the names that DeepSpeed takes (``runtime/config.py``, ``DtypeEnum``), without ``torch.``
_NAMES = {"fp32": "fp32", "float32": "fp32", "float": "fp32", "fp16": "fp16", "float16": "fp16", "half": "fp16",
          "bf16": "bf16", "bfloat16": "bf16", "bfp16": "bf16"}  # fmt: skip

#: States that an optimizer of the configuration keeps a parameter, by its type in lower case.
_OPTIMIZER_STATES = {"adam": 2, "adamw": 2, "lamb": 2, "lion": 1, "adagrad": 1, "muadam": 2, "muadamw": 2,
                     "onebitadam": 2, "zerooneadam": 2, "onebitlamb": 2, "musgd": 1, "sgd": 1}  # fmt: skip


class Settings(Struct, frozen=True, kw_only=True):
    """The part of a configuration that decides what is held where.

    Sources: ``runtime/zero/config.py``, ``runtime/zero/offload_config.py``, ``runtime/precision_config.py``.
    """

    stage: int
    dtype: str = "fp32"
    """``fp32``, ``fp16`` or ``bf16``: of parameters and of the forward pass."""
    accumulation_dtype: str = "fp32"
    communication_dtype: str = "fp32"
    overlap_comm: bool = False
    contiguous_gradients: bool = True
    reduce_bucket_size: int = 500_000_000
    """Elements, like all sizes of DeepSpeed's configuration."""
    multi_rank_allreduce: bool = True
    """``use_multi_rank_bucket_allreduce``."""
    param_persistence_threshold: int = 100_000
    model_persistence_threshold: int | None = None
    prefetch_bucket_size: int = 50_000_000
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    sub_group_size: int = 1_000_000_000
    memory_efficient_linear: bool = True
    hpz_partition_size: int = 1
    offload_optimizer: bool = False
    offload_optimizer_ratio: float = 1.0
    offload_param: bool = False
    low_precision_master: bool = False
    """``bf16_master_weights_and_grads`` or ``fp16_master_weights_and_grads``."""
    low_precision_states: bool = False
    """``bf16_optimizer_states``."""
    fused_optimizer: bool = False
    """Whether DeepSpeed builds its own fused Adam; else the program's torch optimizer is taken to be used."""
    num_states: int = 2
    """States that the optimizer keeps a parameter: two for Adam."""
    accumulation_steps: int = 1
    notes: tuple[str, ...] = ()
    """What was assumed because the configuration does not say."""

    @property
    def param_bytes(self) -> int:
        """Bytes a parameter."""
        return DTYPE_BYTES[self.dtype]

    @property
    def accumulation_bytes(self) -> int:
        """Bytes an accumulated gradient."""
        return DTYPE_BYTES[self.accumulation_dtype]

    @property
    def communication_bytes(self) -> int:
        """Bytes a gradient takes in the reduce bucket of stage 3."""
        return DTYPE_BYTES[self.communication_dtype]

    @property
    def master_bytes(self) -> int:
        """Bytes of the optimizer's own copy a parameter."""
        return 2 if self.low_precision_master else 4

    @property
    def state_bytes(self) -> int:
        """Bytes of one optimizer state a parameter."""
        return 2 if self.low_precision_states else 4

    @property
    def half_precision(self) -> bool:
        """Whether the forward pass works in 16 bits, so that there is a master copy at every stage."""
        return self.dtype != "fp32"


def read_settings(ds_config: Mapping[str, Any], stage: int | None = None) -> Settings:
    """Reads a configuration as DeepSpeed would, without DeepSpeed.

    Args:
        ds_config: the whole configuration.
        stage: takes the place of the configuration's.

    Raises:
        LedgerError: a section is none, or a value is of a wrong kind.
    """
    top = _Section(ds_config, "")
    zero, accumulation = top.section("zero_optimization"), top.section("data_types")
    bf16 = top.section("bf16" if "bf16" in ds_config else "bfloat16")
    fp16 = top.section("fp16")
    if fp16.flag("enabled") and bf16.flag("enabled"):
        raise LedgerError(
            "bf16.enabled and fp16.enabled are both true in the DeepSpeed configuration; expected one of them at most.",
            code="ledger_config",
            hint="switch one of the two off: DeepSpeed refuses to start with both",
        )
    dtype = "fp16" if fp16.flag("enabled") else "bf16" if bf16.flag("enabled") else "fp32"
    chosen = zero.number("stage", 0) if stage is None else stage
    if chosen not in range(4):
        raise LedgerError(
            f"ZeRO stage {chosen}: stages are 0 to 3.", code="ledger_config", hint="mend zero_optimization.stage"
        )
    optimizer = top.section("optimizer")
    offload_optimizer, offload_param = zero.section("offload_optimizer"), zero.section("offload_param")
    offloads = offload_optimizer.text("device", "none") != "none" or zero.flag("cpu_offload")
    offload = chosen > 0 and offloads
    kind = optimizer.text("type", "").lower()
    fused = kind in ("adam", "adamw") and not optimizer.section("params").flag("torch_adam") and not offload
    notes: list[str] = []
    if dtype == "fp32":
        notes.append(
            "neither bf16 nor fp16 is enabled: parameters and gradients are fp32 and take 4 bytes each, where the "
            "paper counts 2"
        )
    if not kind:
        notes.append("the optimizer is taken to be the program's own torch Adam or AdamW: the configuration names none")
    elif kind not in _OPTIMIZER_STATES:
        notes.append(f"the optimizer {kind} is taken to keep two states a parameter, as Adam does")
    model_threshold = zero.number("stage3_model_persistence_threshold", zero.number("model_persistence_threshold", -1))
    return Settings(
        stage=chosen,
        dtype=dtype,
        accumulation_dtype=accumulation.dtype("grad_accum_dtype", dtype),
        communication_dtype=top.dtype("communication_data_type", dtype),
        overlap_comm=zero.flag("overlap_comm", chosen == 3),
        contiguous_gradients=zero.flag("contiguous_gradients", True),
        reduce_bucket_size=zero.number("reduce_bucket_size", 500_000_000),
        multi_rank_allreduce=zero.flag("use_multi_rank_bucket_allreduce", True),
        param_persistence_threshold=zero.stage3("param_persistence_threshold", 100_000),
        model_persistence_threshold=None if model_threshold < 0 else model_threshold,
        prefetch_bucket_size=zero.stage3("prefetch_bucket_size", 50_000_000),
        max_live_parameters=zero.stage3("max_live_parameters", 1_000_000_000),
        max_reuse_distance=zero.stage3("max_reuse_distance", 1_000_000_000),
        sub_group_size=zero.number("sub_group_size", 1_000_000_000),
        memory_efficient_linear=zero.flag("memory_efficient_linear", True),
        hpz_partition_size=zero.number("zero_hpz_partition_size", 1),
        offload_optimizer=offload,
        offload_optimizer_ratio=offload_optimizer.fraction("ratio", 1.0),
        offload_param=chosen == 3 and offload_param.text("device", "none") != "none",
        low_precision_master=bf16.flag("bf16_master_weights_and_grads") or fp16.flag("fp16_master_weights_and_grads"),
        low_precision_states=bf16.flag("bf16_optimizer_states"),
        fused_optimizer=fused,
        num_states=_OPTIMIZER_STATES.get(kind, 2),
        accumulation_steps=top.number("gradient_accumulation_steps", 1),
        notes=(*top.notes, *notes),
    )


class _Section:
    """Values of one section. ``"auto"``, which HuggingFace's Trainer fills in, counts as not said."""

    def __init__(self, values: Mapping[str, Any], name: str, notes: list[str] | None = None) -> None:
        self._values = values
        self._name = name
        self.notes: list[str] = [] if notes is None else notes

    def section(self, key: str) -> _Section:
        value = self._get(key)
        if value is None:
            return _Section({}, self._path(key), self.notes)
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "a section")
        return _Section(value, self._path(key), self.notes)

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def number(self, key: str, default: int) -> int:
        value = self._get(key)
        if value is None:
            return default
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value != int(value) or value < 0:
            raise self._wrong(key, value, "a whole number")
        return int(value)

    def stage3(self, key: str, default: int) -> int:
        """A number that DeepSpeed knows under two names, with and without ``stage3_``."""
        return self.number(f"stage3_{key}", self.number(key, default))

    def fraction(self, key: str, default: float) -> float:
        value = self._get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise self._wrong(key, value, "a number from 0 to 1")
        return float(value)

    def text(self, key: str, default: str) -> str:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self._wrong(key, value, "a text")
        return value

    def dtype(self, key: str, default: str) -> str:
        value = self.text(key, default)
        name = _NAMES.get(value.removeprefix("torch."))
        if name is None:
            raise self._wrong(key, value, f"one of {', '.join(dict.fromkeys(_NAMES.values()))}")
        return name

    def _get(self, key: str) -> Any:
        value = self._values.get(key)
        if value == "auto":
            self.notes.append(f'{self._path(key)} is "auto": DeepSpeed\'s default is taken')
            return None
        return value

    def _path(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def _wrong(self, key: str, value: Any, expected: str) -> LedgerError:
        return LedgerError(
            f"{self._path(key)} is {value!r} in the DeepSpeed configuration; expected {expected}.",
            code="ledger_config",
            hint="mend the value, or leave the key out for DeepSpeed's default",
        )
