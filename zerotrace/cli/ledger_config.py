"""The DeepSpeed configuration that ``zerotrace ledger`` is asked about, and what in it cannot be meant."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import click
from msgspec import Struct

from zerotrace.errors import LedgerError, ZerotraceError

_MICRO_BATCH = "train_micro_batch_size_per_gpu"
_TRAIN_BATCH = "train_batch_size"
_ACCUMULATION = "gradient_accumulation_steps"
_DEFAULT_MICRO_BATCH = 4


class LedgerConfig(Struct, frozen=True, kw_only=True):
    """A configuration, and what was noticed in it."""

    content: Mapping[str, Any]
    stage: int | None
    """The one asked for, else the file's; ``None`` for all of them."""
    micro_batch: int
    warnings: tuple[str, ...]


def read_config(
    path: Path | None, texts: tuple[str, ...], stage: int | None, micro_batch: int | None, world: int
) -> LedgerConfig:
    """The study's configuration, or a file's, with single keys set.

    Args:
        path: ``--ds-config``.
        texts: ``--set``, each ``KEY=VALUE``.
        stage: ``--stage``.
        micro_batch: ``--micro-batch``.
        world: ``--world``.

    Raises:
        click.UsageError: what options say is no configuration, or contradicts the file or each other.
        ZerotraceError: the file cannot be read, or contradicts itself.
    """
    from zerotrace.capture.ds_config import read_ds_config, resolve_micro_batch
    from zerotrace.capture.ds_names import unknown_keys

    given = read_ds_config(path) if path is not None else {}
    _check(given, None)
    _check_batch(given, None, world)
    stated = _stated_stage(given)
    if stage is not None and stated not in (None, stage):
        raise click.UsageError(
            f"--stage is {stage}, but --ds-config sets zero_optimization.stage to {stated}: leave one of the two out."
        )
    try:
        wished = _with_settings(given, texts)
        config = _with_defaults(wished) if path is None else wished
        chosen = resolve_micro_batch(given, micro_batch, _DEFAULT_MICRO_BATCH)
        _check(config, stage)
        steps = _check_batch(wished, micro_batch, world)
    except ZerotraceError as error:
        raise as_usage_error(error) from error
    return LedgerConfig(
        content=config if steps is None else {**config, _ACCUMULATION: steps},
        stage=stated if stage is None else stage,
        micro_batch=chosen,
        warnings=tuple(unknown_keys(config)),
    )


def as_usage_error(error: ZerotraceError) -> click.UsageError:
    """The same in the words of the command line, which exits with 2 for it."""
    hint = f" {error.hint[0].upper()}{error.hint[1:].removesuffix('.')}." if error.hint else ""
    return click.UsageError(f"{str(error).removesuffix('.')}.{hint}")


def _with_settings(given: Mapping[str, Any], texts: tuple[str, ...]) -> dict[str, Any]:
    from zerotrace.capture.ds_config import refuse_option_key
    from zerotrace.capture.ds_settings import parse_setting, set_key

    wished = deepcopy(dict(given))
    for key, value in map(parse_setting, texts):
        refuse_option_key(key)
        set_key(wished, key, value)
    return wished


def _with_defaults(wished: Mapping[str, Any]) -> dict[str, Any]:
    """The study's keys, where nothing else is wished: of two half precisions the one that was asked for."""
    from zerotrace.capture.ds_config import default_ds_config

    defaults = default_ds_config(0, _DEFAULT_MICRO_BATCH)
    del defaults["zero_optimization"]["stage"]
    for half in ("fp16", "bfloat16"):
        section = wished.get(half)
        if "bf16" not in wished and isinstance(section, Mapping) and section.get("enabled") is True:
            defaults.pop("bf16", None)
    return _merged(defaults, wished)


def _merged(defaults: Mapping[str, Any], wished: Mapping[str, Any]) -> dict[str, Any]:
    config = dict(defaults)
    for key, value in wished.items():
        inner = config.get(key)
        if isinstance(inner, Mapping) and isinstance(value, Mapping):
            config[key] = _merged(inner, value)
        else:
            config[key] = value
    return config


def _check(config: Mapping[str, Any], stage: int | None) -> None:
    """Refuses values that mean nothing, and half precisions that exclude each other.

    Raises:
        ZerotraceError: there is one.
    """
    from zerotrace.capture.ds_config import refuse_odd_numbers
    from zerotrace.ledger import read_settings

    refuse_odd_numbers(config)
    read_settings(config, stage)


def _check_batch(config: Mapping[str, Any], micro_batch: int | None, world: int) -> int | None:
    """The micro-steps that follow from the batch sizes, where these are given and the micro-steps are not.

    Raises:
        LedgerError: a size is none, or they contradict each other.
    """
    sizes = {key: _size(config, key) for key in (_TRAIN_BATCH, _MICRO_BATCH, _ACCUMULATION)}
    batch, steps = sizes[_TRAIN_BATCH], sizes[_ACCUMULATION]
    micro = micro_batch if micro_batch is not None else sizes[_MICRO_BATCH]
    if batch is None or micro is None:
        return None
    if steps is None and batch % (micro * world) == 0:
        return batch // (micro * world)
    if steps is None or batch != micro * steps * world:
        found = f"{micro} a rank × {'any' if steps is None else steps} micro-steps × {world} ranks"
        raise LedgerError(
            f"{_TRAIN_BATCH} is {batch}, which {found} do not make.",
            code="ledger_config",
            hint=f"leave {_TRAIN_BATCH} out: it follows from the others",
        )
    return None


def _stated_stage(config: Mapping[str, Any]) -> int | None:
    from zerotrace.ledger import read_settings

    zero = config.get("zero_optimization")
    stated = zero.get("stage") if isinstance(zero, Mapping) else None
    return None if stated in (None, "auto") else read_settings(config).stage


def _size(config: Mapping[str, Any], key: str) -> int | None:
    value = config.get(key)
    if value is None or value == "auto":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise LedgerError(
            f"{key} is {value!r} in the DeepSpeed configuration; expected a whole number above 0.",
            code="ledger_config",
            hint="mend the value, or leave the key out",
        )
    return value
