"""What ``--set`` says to an engine other than DeepSpeed, checked before anything starts."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from typing import Any

from zerotrace.capture.engines import EngineKind, EngineSetting
from zerotrace.errors import CaptureError

_WORDS = {bool: "true or false", int: "a whole number of 0 or more", float: "a number of 0 or more"}


def check_settings(kind: EngineKind, settings: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The settings of a runner, by name; the last value of each holds.

    Args:
        kind: the engine.
        settings: ``--set`` arguments as :func:`zerotrace.capture.ds_settings.parse_setting` reads them.

    Raises:
        CaptureError: the engine has no such setting, or the value is none for it.
    """
    known = {setting.name: setting for setting in kind.settings}
    for name, value in settings:
        if name not in known:
            raise _unknown(kind, name)
        if not _fits(known[name], value):
            raise CaptureError(
                f"--set {name}: the value is {value!r}; expected {_expected(known[name])}.",
                code="setting_value",
                hint=_default(known[name]),
            )
    return dict(settings)


def _expected(setting: EngineSetting) -> str:
    words = _WORDS[setting.type]
    return words if setting.most is None else words.replace("0 or more", f"0 to {setting.most}")


def _default(setting: EngineSetting) -> str:
    if setting.default is None:
        return "Leave it out for torch's own."
    return f"For example: --set {setting.name}={json.dumps(setting.default)}, the default."


def _fits(setting: EngineSetting, value: Any) -> bool:
    if setting.type is bool:
        return isinstance(value, bool)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    # No comparison with NaN is true; neither does infinity say anything.
    in_range = 0 <= value < float("inf") and (setting.most is None or value <= setting.most)
    return in_range and (setting.type is float or isinstance(value, int))


def _unknown(kind: EngineKind, name: str) -> CaptureError:
    names = [setting.name for setting in kind.settings]
    near = difflib.get_close_matches(name, names, 1)
    return CaptureError(
        f"--set {name}: the engine {kind.name} has no such setting.",
        code="setting_unknown",
        hint=f"Did you mean {near[0]}?" if near else f"It has: {', '.join(names)}.",
    )
