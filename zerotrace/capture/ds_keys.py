"""Checks a configuration against the DeepSpeed that is installed, before any rank starts.

DeepSpeed ignores a key that it does not know at the top level, and raises in every rank for one inside a section.
Here both are one error that names the nearest key there is.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from zerotrace.errors import CaptureError

#: Sections that DeepSpeed describes by a class with fields: where that class is. A DeepSpeed of another version may
#: have it elsewhere; then the keys of that section are not checked here.
_SECTION_CLASSES = {
    "zero_optimization": ("deepspeed.runtime.zero.config", "DeepSpeedZeroConfig"),
    "bf16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "bfloat16": ("deepspeed.runtime.precision_config", "DeepSpeedBF16Config"),
    "fp16": ("deepspeed.runtime.precision_config", "DeepSpeedFP16Config"),
    "comms_logger": ("deepspeed.comm.config", "CommsLoggerConfig"),
    "tensorboard": ("deepspeed.monitor.config", "TensorBoardConfig"),
    "wandb": ("deepspeed.monitor.config", "WandbConfig"),
    "comet": ("deepspeed.monitor.config", "CometConfig"),
    "csv_monitor": ("deepspeed.monitor.config", "CSVConfig"),
    "hybrid_engine": ("deepspeed.runtime.config", "HybridEngineConfig"),
    "compile": ("deepspeed.compile.config", "CompileConfig"),
    "tensor_parallel": ("deepspeed.runtime.tensor_parallel.config", "TPTrainingConfig"),
}

#: Sections that DeepSpeed reads key by key.
SECTION_KEYS: dict[str, frozenset[str]] = {
    "optimizer": frozenset({"type", "params", "legacy_fusion"}),
    "scheduler": frozenset({"type", "params"}),
    "flops_profiler": frozenset(
        {"enabled", "recompute_fwd_factor", "profile_step", "module_depth", "top_modules", "detailed", "output_file"}
    ),
    "activation_checkpointing": frozenset(
        {
            "partition_activations",
            "number_checkpoints",
            "contiguous_memory_optimization",
            "cpu_checkpointing",
            "profile",
            "synchronize_checkpoint_boundary",
        }
    ),
    "timers": frozenset({"throughput"}),
    "torch_autocast": frozenset({"enabled", "dtype", "lower_precision_safe_modules"}),
    "data_types": frozenset({"grad_accum_dtype", "param_dtype", "buffer_dtype", "keep_in_fp32_modules"}),
    "aio": frozenset(
        {"block_size", "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events", "use_gds"}
    ),
    "checkpoint": frozenset(
        {
            "tag_validation",
            "load_universal",
            "use_node_local_storage",
            "parallel_write",
            "writer",
            "checkpoint_serialization",
        }
    ),
}

_KINDS: dict[str, tuple[type, ...]] = {
    "whole number": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "text": (str,),
}

#: Top-level keys that are no sections, with the kind of value that they take.
_SCALARS: dict[str, str] = {
    "train_batch_size": "whole number",
    "train_micro_batch_size_per_gpu": "whole number",
    "gradient_accumulation_steps": "whole number",
    "managed_gradient_accumulation": "boolean",
    "gradient_clipping": "number",
    "gradient_predivide_factor": "number",
    "gradient_allreduce_op": "text",
    "prescale_gradients": "boolean",
    "communication_data_type": "text",
    "seq_parallel_communication_data_type": "text",
    "sequence_parallel_size": "whole number",
    "steps_per_print": "whole number",
    "wall_clock_breakdown": "boolean",
    "memory_breakdown": "boolean",
    "dump_state": "boolean",
    "disable_allgather": "boolean",
    "disable_python_gc": "boolean",
    "dataloader_drop_last": "boolean",
    "log_level": "text",
    "vocabulary_size": "whole number",
    "zero_allow_untested_optimizer": "boolean",
    "zero_force_ds_cpu_optimizer": "boolean",
    "use_data_before_expert_parallelism": "boolean",
}

#: Sections without a list of keys here: DeepSpeed checks what is inside.
_OPEN_SECTIONS = frozenset(
    {"pipeline", "data_efficiency", "autotuning", "expert_parallel", "weight_quantization", "datastates_ckpt"}
)


def check_ds_config(config: Mapping[str, Any], num_ranks: int) -> None:
    """Check every key and value as far as the installed DeepSpeed can tell.

    Args:
        config: the whole configuration.
        num_ranks: ranks of the run.

    Raises:
        CaptureError: a key is unknown, a value has a wrong type, or DeepSpeed itself refuses the configuration.
    """
    check_keys(config)
    with _quiet_deepspeed():
        _let_deepspeed_check(config, num_ranks)


def check_keys(config: Mapping[str, Any]) -> None:
    """Check the keys of a part of a configuration, and the kinds of their values.

    Raises:
        CaptureError: a key is unknown, or a value has a wrong type.
    """
    with _quiet_deepspeed():
        for key, value in config.items():
            if key in _SCALARS:
                _check_scalar(key, value)
            elif key in known_top_level():
                _check_section(key, value)
            elif not _is_known_to_deepspeed(key):
                raise _unknown_key(key, "", known_top_level())


def _check_scalar(key: str, value: Any) -> None:
    kind = _SCALARS[key]
    # A bool is an int to Python, but not to a reader of the configuration.
    fits = isinstance(value, _KINDS[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not fits and value is not None:
        raise CaptureError(
            f"{key} is {value!r} in the DeepSpeed configuration; expected a {kind}.",
            code="ds_config_value",
            hint='Values are JSON: 5, 0.5, true, "text".',
        )


def _check_section(key: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise CaptureError(
            f"{key} is {value!r} in the DeepSpeed configuration; expected an object with keys.",
            code="ds_config_value",
            hint=f"Set one of its keys: {key}.KEY=VALUE.",
        )
    if key in SECTION_KEYS:
        for name in value:
            if name not in SECTION_KEYS[key]:
                raise _unknown_key(name, key, SECTION_KEYS[key])
    elif key in _SECTION_CLASSES and (fields := _section_fields(key)) is not None:
        _check_fields(key, value, fields)


def _check_fields(path: str, value: Mapping[str, Any], fields: Mapping[str, Any]) -> None:
    """Check the keys of a section against the fields of DeepSpeed's class, and of the classes of its fields."""
    names = set(fields) | {field.alias for field in fields.values() if field.alias}
    removed = _removed_keys(path)
    for name, item in value.items():
        if name in removed:
            continue
        if name not in names:
            raise _unknown_key(name, path, frozenset(names))
        if isinstance(item, dict) and name in fields:
            nested = _nested_fields(fields[name].annotation)
            if nested is not None:
                _check_fields(f"{path}.{name}", item, nested)


def _nested_fields(annotation: Any) -> Mapping[str, Any] | None:
    """The fields of the class in an annotation such as ``Optional[OffloadConfig]``; ``None`` where there is none."""
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        fields = getattr(candidate, "model_fields", None)
        if isinstance(fields, dict):
            return fields
    return None


def _section_fields(key: str) -> Mapping[str, Any] | None:
    module_name, class_name = _SECTION_CLASSES[key]
    try:
        section_class = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError):
        return None
    fields: Mapping[str, Any] = section_class.model_fields
    return fields


def _removed_keys(section: str) -> Mapping[str, str]:
    """Keys that this DeepSpeed has given up; it says so itself, with the reason."""
    config_module = importlib.import_module("deepspeed.runtime.config")
    removed = {"zero_optimization": "_REMOVED_ZERO_CONFIG_KEYS", "": "_REMOVED_TOP_LEVEL_CONFIG_KEYS"}.get(section)
    keys: Mapping[str, str] = getattr(config_module, removed, {}) if removed else {}
    return keys


def known_top_level() -> frozenset[str]:
    """Names at the top level of a configuration: sections, and keys that are none."""
    return frozenset({*_SCALARS, *_SECTION_CLASSES, *SECTION_KEYS, *_OPEN_SECTIONS})


def _is_known_to_deepspeed(key: str) -> bool:
    """Whether this DeepSpeed has a name for a key that the tables above lack (a newer version, for example)."""
    if key in _removed_keys(""):
        return True
    constants = vars(importlib.import_module("deepspeed.runtime.constants"))
    return any(name.isupper() and value == key for name, value in constants.items())


def _unknown_key(name: str, section: str, known: frozenset[str]) -> CaptureError:
    path = f"{section}.{name}" if section else name
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    if nearest:
        hint = f"Did you mean {f'{section}.' if section else ''}{nearest[0]}?"
    else:
        hint = f"{section or 'The top level'} has these keys: {', '.join(sorted(known))}."
    return CaptureError(
        f"DeepSpeed has no configuration key {path!r}.",
        code="ds_config_key_unknown",
        hint=hint,
    )


class _World:
    """Stands for the process group that DeepSpeed's own check asks for its size."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks

    def get_data_parallel_world_size(self) -> int:
        return self._num_ranks


def _let_deepspeed_check(config: Mapping[str, Any], num_ranks: int) -> None:
    """Build DeepSpeed's configuration object, which checks types, ranges and combinations."""
    from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError

    try:
        DeepSpeedConfig(dict(config), mpu=_World(num_ranks))
    except (DeepSpeedConfigError, ValueError, TypeError, AssertionError, KeyError) as error:
        # pydantic's ValidationError is a ValueError; it lists each field that does not fit.
        raise CaptureError(
            f"DeepSpeed refuses the configuration: {_describe(error)}",
            code="ds_config_invalid",
            hint="Change or leave out that key (--set, --ds-config).",
        ) from error


def _describe(error: Exception) -> str:
    fields = getattr(error, "errors", None)
    if callable(fields):
        return "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in fields())
    return str(error) or type(error).__name__


@contextlib.contextmanager
def _quiet_deepspeed() -> Iterator[None]:
    """Keep DeepSpeed's log of its own checks off the terminal, and off stdout for good.

    DeepSpeed logs to what ``sys.stdout`` is while it is imported; but stdout is for results.
    """
    with contextlib.redirect_stdout(io.StringIO()) as discarded:
        importlib.import_module("deepspeed")
        logger = logging.getLogger("DeepSpeed")
        for handler in logger.handlers:
            if isinstance(handler, logging.StreamHandler) and handler.stream is discarded:
                handler.setStream(sys.stderr)
        level = logger.level
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)
