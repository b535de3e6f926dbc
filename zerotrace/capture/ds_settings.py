"""Single keys of a DeepSpeed configuration, as ``--set`` gives them, and configurations as programs pass them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from zerotrace.capture.scrub import scrub_text, scrub_value
from zerotrace.errors import CaptureError


def parse_setting(text: str) -> tuple[str, Any]:
    """One ``--set`` argument, ``dotted.key=value``, with the value as JSON, else as plain text.

    Whole numbers may be written like ``5e7``.

    Raises:
        CaptureError: there is no ``=``, no key, or the value is Python's spelling of a JSON literal.
    """
    key, separator, value_text = text.partition("=")
    if not separator or not all(key.split(".")):
        raise CaptureError(
            f"--set {text!r} is not of the form KEY=VALUE.",
            code="setting_invalid",
            hint="For example: --set zero_optimization.reduce_bucket_size=5e7",
        )
    literals = {"True": "true", "False": "false", "None": "null"}
    if value_text in literals:
        raise CaptureError(
            f"--set {key}={value_text}: values are JSON, which spells this {literals[value_text]}.",
            code="setting_invalid",
            hint=f"Pass --set {key}={literals[value_text]}",
        )
    try:
        value = json.loads(value_text)
    except json.JSONDecodeError:
        return key, value_text
    if isinstance(value, float) and value.is_integer() and "e" in value_text.lower():
        value = int(value)
    return key, value


def set_key(config: dict[str, Any], key: str, value: Any) -> None:
    """Set one key of a configuration, dotted.

    Raises:
        CaptureError: something on the way is no section.
    """
    *parents, leaf = key.split(".")
    section = config
    for depth, name in enumerate(parents):
        child = section.setdefault(name, {})
        if not isinstance(child, dict):
            raise CaptureError(
                f"--set {key}: {'.'.join(parents[: depth + 1])} is {child!r}, which has no keys.",
                code="setting_invalid",
                hint="Check the dots in the key.",
            )
        section = child
    section[leaf] = value


def plain_config(value: Any, name: str = "") -> Any:
    """A configuration as strict JSON has it, without the paths, hosts and secrets that it may hold.

    Programs pass what their JSON file could not hold: HuggingFace's Trainer sets ``steps_per_print`` to infinity.

    Args:
        value: the configuration, or a part of it.
        name: key of the part.
    """
    if isinstance(value, Mapping):
        return {str(key): plain_config(item, str(key)) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_config(item, name) for item in value]
    if isinstance(value, str):
        return scrub_value(name, value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value if value is None or isinstance(value, (bool, int)) else scrub_text(str(value))
