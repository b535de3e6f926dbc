"""The DeepSpeed configuration of a capture: the study's defaults, a file, single keys, in this order."""

from __future__ import annotations

import base64
import copy
import importlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from zerotrace.capture.ds_settings import set_key
from zerotrace.capture.folder import status_of
from zerotrace.errors import CaptureError

_ZERO = "zero_optimization"
_MICRO_BATCH = "train_micro_batch_size_per_gpu"
_TRAIN_BATCH = "train_batch_size"
_ACCUMULATION = "gradient_accumulation_steps"

#: Keys that have an option of their own, and that option.
_OPTIONS = {_MICRO_BATCH: "--micro-batch", f"{_ZERO}.stage": "--stage"}

#: Sections that a capture refuses, and why.
_REFUSED = {
    "comms_logger": "it synchronises the device after each collective and counts all-reduce bandwidth twice, "
    "so that the trace would show another run",
    "optimizer": "the training program brings its own, a torch AdamW, and DeepSpeed would ignore this section",
}


def default_ds_config(stage: int, micro_batch: int) -> dict[str, Any]:
    """The study's configuration: bf16, ``overlap_comm``, all else as DeepSpeed has it.

    The last two keys let a torch optimizer through as it is, so that nothing has to be compiled.
    """
    return {
        _MICRO_BATCH: micro_batch,
        _ACCUMULATION: 1,
        "bf16": {"enabled": True},
        _ZERO: {"stage": stage, "overlap_comm": True},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }


def read_ds_config(path: Path) -> dict[str, Any]:
    """A DeepSpeed configuration from a JSON file.

    Raises:
        CaptureError: the file cannot be read, or is no JSON object.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_refusing_duplicates(path))
    except OSError as error:
        raise CaptureError(
            f"The DeepSpeed configuration {path} cannot be read: {error.strerror}.",
            code="ds_config_unreadable",
            hint="Check the path given with --ds-config.",
        ) from error
    except UnicodeDecodeError as error:
        raise CaptureError(
            f"The DeepSpeed configuration {path} is no UTF-8 text (byte {error.start}).",
            code="ds_config_json_invalid",
            hint="Pass a JSON file to --ds-config.",
        ) from error
    except RecursionError as error:
        raise CaptureError(
            f"The DeepSpeed configuration {path} is nested too deeply.",
            code="ds_config_json_invalid",
            hint="Pass a DeepSpeed configuration to --ds-config.",
        ) from error
    except json.JSONDecodeError as error:
        raise CaptureError(
            f"The DeepSpeed configuration {path} is no valid JSON (line {error.lineno}, column {error.colno}): "
            f"{error.msg}.",
            code="ds_config_json_invalid",
            hint="Mend the file; `python -m json.tool FILE` finds the place too.",
        ) from error
    if not isinstance(content, dict):
        raise CaptureError(
            f"The DeepSpeed configuration {path} holds a JSON {type(content).__name__}; expected an object.",
            code="ds_config_json_invalid",
            hint="A DeepSpeed configuration starts with '{'.",
        )
    return content


def read_program_config(given: Mapping[str, Any] | str | os.PathLike[str]) -> dict[str, Any]:
    """A configuration in any of the forms that ``deepspeed.initialize`` takes: a dict, a Hjson file, base64 of Hjson.

    ``"zero_optimization": true`` is an old way to write stage 1, which DeepSpeed still reads.

    Raises:
        CaptureError: there is no such file, or what it holds is no configuration.
    """
    config = dict(given) if isinstance(given, Mapping) else _read_hjson(os.fspath(given))
    zero = config.get(_ZERO, {})
    if isinstance(zero, bool):
        zero = {"stage": int(zero)}
        if "allgather_size" in config:
            zero["allgather_bucket_size"] = config["allgather_size"]
        config[_ZERO] = zero
    if not isinstance(zero, Mapping):
        raise CaptureError(
            f"{_ZERO} is {zero!r} in the DeepSpeed configuration of the program; expected an object.",
            code="ds_config_value",
            hint=f'Write "{_ZERO}": {{"stage": 0}}, or leave it out.',
        )
    return config


def _read_hjson(given: str) -> dict[str, Any]:
    hjson = importlib.import_module("hjson")
    is_file = status_of(Path(given)) is not None
    what = f"The DeepSpeed configuration {given!r}, which the program passes to deepspeed.initialize,"
    try:
        text = Path(given).read_text(encoding="utf-8") if is_file else base64.urlsafe_b64decode(given).decode()
        config = hjson.loads(text, object_pairs_hook=_refusing_duplicates(given if is_file else "of the program"))
    except OSError as error:
        raise CaptureError(
            f"{what} cannot be read: {error.strerror}.",
            code="ds_config_unreadable",
            hint="Check the path in the program or its arguments.",
        ) from error
    except (ValueError, RecursionError) as error:
        # Also of base64 and of UTF-8: what was meant for a path is rarely either.
        raise CaptureError(
            f"{what} is no valid Hjson." if is_file else f"{what} does not exist.",
            code="ds_config_json_invalid" if is_file else "ds_config_unreadable",
            hint="Mend the file." if is_file else "Check the path in the program or its arguments.",
        ) from error
    if not isinstance(config, dict):
        raise CaptureError(
            f"{what} holds no object." if is_file else f"{what} does not exist.",
            code="ds_config_json_invalid" if is_file else "ds_config_unreadable",
            hint="A DeepSpeed configuration is an object; check the path in the program or its arguments.",
        )
    return config


def resolve_micro_batch(file_config: Mapping[str, Any], option: int | None, default: int) -> int:
    """The micro-batch: the option, else the file's, else the default.

    Raises:
        CaptureError: option and file disagree, or the file's value is no positive number.
    """
    from_file = file_config.get(_MICRO_BATCH, "auto")
    if from_file == "auto":
        return default if option is None else option
    if isinstance(from_file, bool) or not isinstance(from_file, int) or from_file < 1:
        raise CaptureError(
            f"{_MICRO_BATCH} is {from_file!r} in the DeepSpeed configuration; expected a whole number above 0.",
            code="ds_config_value",
            hint="Mend the value, or leave the key out and pass --micro-batch.",
        )
    if option is not None and option != from_file:
        raise CaptureError(
            f"--micro-batch is {option}, but the DeepSpeed configuration sets {_MICRO_BATCH} to {from_file}.",
            code="ds_config_conflict",
            hint="Leave one of the two out.",
        )
    return from_file


def build_ds_config(
    *,
    stage: int,
    micro_batch: int,
    num_ranks: int,
    file_config: Mapping[str, Any] | None = None,
    settings: Iterable[tuple[str, Any]] = (),
) -> dict[str, Any]:
    """The whole configuration of a capture. Needs no DeepSpeed; see :mod:`zerotrace.capture.ds_keys` for its checks.

    Args:
        stage: ZeRO stage of the run.
        micro_batch: sequences a rank and micro-step, as :func:`resolve_micro_batch` gives it.
        num_ranks: ranks of the run.
        file_config: content of ``--ds-config``; ``"auto"`` values stand for the default.
        settings: parsed ``--set`` arguments; the last one of a key holds.

    Raises:
        CaptureError: a key belongs to an option, contradicts one, or is refused in a capture.
    """
    given = _without_auto(file_config or {})
    _check_stage(given, stage)
    wished: dict[str, Any] = {}
    _merge(wished, given)
    for key, value in settings:
        refuse_option_key(key)
        set_key(wished, key, value)
    config = default_ds_config(stage, micro_batch)
    if any(_section(wished, half).get("enabled") for half in ("fp16", "bfloat16")):
        # DeepSpeed refuses two half precisions at once, and only one of them was asked for.
        del config["bf16"]
    _merge(config, wished)
    refuse_odd_numbers(config)
    refuse_comms_logger(config)
    if "optimizer" in config:
        raise _refused("optimizer")
    _check_train_batch(config, micro_batch, num_ranks)
    return config


def refuse_odd_numbers(config: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse what Python's JSON accepts and nobody else's: NaN, Infinity, whole numbers beyond 64 bits.

    Raises:
        CaptureError: there is one.
    """
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            refuse_odd_numbers(value, f"{name}.")
        elif isinstance(value, float) and not math.isfinite(value):
            raise CaptureError(
                f"{name} is {value} in the DeepSpeed configuration; expected a finite number.",
                code="ds_config_value",
                hint="Correct it in --ds-config or --set.",
            )
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise CaptureError(
                f"{name} is {value} in the DeepSpeed configuration, which no number of 64 bits holds.",
                code="ds_config_value",
                hint="Correct it in --ds-config or --set.",
            )


def list_caveats(ds_config: Mapping[str, Any]) -> list[str]:
    """What a user should know about keys that are accepted: one sentence each."""
    caveats = [
        f"{key} synchronises the device inside of steps: times and overlap are not those of a run without it."
        for key in ("wall_clock_breakdown", "memory_breakdown", "flops_profiler")
        if (ds_config.get(key) is True or _section(ds_config, key).get("enabled"))
    ]
    if ds_config.get("activation_checkpointing"):
        caveats.append("activation_checkpointing has no effect: the GPT-2 of runners/ does not checkpoint activations.")
    return caveats


def _check_stage(given: Mapping[str, Any], stage: int) -> None:
    zero = given.get(_ZERO, {})
    if not isinstance(zero, dict):
        raise CaptureError(
            f"{_ZERO} is {zero!r} in the DeepSpeed configuration; expected an object.",
            code="ds_config_value",
            hint=f'Write "{_ZERO}": {{"stage": {stage}}}, or leave it out.',
        )
    given_stage = zero.get("stage", stage)
    if isinstance(given_stage, bool) or not isinstance(given_stage, int):
        raise CaptureError(
            f"{_ZERO}.stage is {given_stage!r} in the DeepSpeed configuration; expected a whole number.",
            code="ds_config_value",
            hint=f"Write {stage}, without quotes, or leave the key out of the file.",
        )
    if given_stage != stage:
        raise CaptureError(
            f"--stage is {stage}, but the DeepSpeed configuration sets {_ZERO}.stage to {given_stage}.",
            code="ds_config_conflict",
            hint=f"Pass --stage {given_stage}, or leave the key out of the file.",
        )


def refuse_option_key(key: str) -> None:
    """Refuse ``--set`` of a key that has an option of its own.

    Raises:
        CaptureError: it has one.
    """
    if key in _OPTIONS:
        raise CaptureError(
            f"{key} is set by {_OPTIONS[key]}.",
            code="ds_config_protected",
            hint=f"Pass {_OPTIONS[key]} instead of --set {key}=...",
        )


def refuse_comms_logger(config: dict[str, Any]) -> None:
    """Refuse DeepSpeed's logger of collectives; leaves the section out where it is switched off.

    Raises:
        CaptureError: it is switched on.
    """
    section = config.get("comms_logger")
    if isinstance(section, dict) and not section.get("enabled"):
        # DeepSpeed takes the mere presence of the section for a wish to configure it.
        del config["comms_logger"]
    elif section is not None:
        raise _refused("comms_logger")


def _refused(name: str) -> CaptureError:
    return CaptureError(
        f"The DeepSpeed configuration has {name}: {_REFUSED[name]}.",
        code="ds_config_refused",
        hint=f"Leave {name} out of the configuration of a capture.",
    )


def _check_train_batch(config: Mapping[str, Any], micro_batch: int, num_ranks: int) -> None:
    accumulation = config[_ACCUMULATION]
    if isinstance(accumulation, bool) or not isinstance(accumulation, int) or accumulation < 1:
        raise CaptureError(
            f"{_ACCUMULATION} is {accumulation!r}; expected a whole number above 0.",
            code="ds_config_value",
            hint="1 stands for no accumulation.",
        )
    product = micro_batch * accumulation * num_ranks
    if config.get(_TRAIN_BATCH, product) != product:
        raise CaptureError(
            f"{_TRAIN_BATCH} is {config[_TRAIN_BATCH]!r}, but {micro_batch} a rank x {accumulation} micro-steps "
            f"x {num_ranks} ranks make {product}.",
            code="ds_config_conflict",
            hint=f"Leave {_TRAIN_BATCH} out: it follows from the others.",
        )


def _merge(config: dict[str, Any], given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if isinstance(value, dict) and isinstance(config.get(key), dict):
            _merge(config[key], value)
        else:
            config[key] = copy.deepcopy(value)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = config.get(name)
    return section if isinstance(section, dict) else {}


def _without_auto(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out ``"auto"``, which other programs (HuggingFace's Trainer) put where they fill in a value."""
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            kept[key] = _without_auto(value)
        elif value != "auto":
            kept[key] = value
    return kept


def _refusing_duplicates(where: Path | str) -> Callable[[list[tuple[str, Any]]], dict[str, Any]]:
    def content_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key, value in pairs:
            if key in content:
                raise CaptureError(
                    f"The key {key!r} stands twice in one object of the DeepSpeed configuration {where}.",
                    code="ds_config_json_invalid",
                    hint="Leave one of the two out.",
                )
            content[key] = value
        return content

    return content_of
