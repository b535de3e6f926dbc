"""The engines of ``zerotrace capture`` in words."""

from __future__ import annotations

import json
from collections.abc import Iterator

from zerotrace.capture.engines import ENGINES, EngineKind


def engine_lines() -> str:
    """A paragraph of help: each engine but DeepSpeed, and what ``--set`` knows there, with the defaults."""
    return "\n".join(["\b", *(line for kind in ENGINES.values() if not kind.has_stages for line in _lines(kind))])


def _lines(kind: EngineKind) -> Iterator[str]:
    yield f"  {kind.name:14} {kind.means}"
    if kind.settings:
        known = ", ".join(
            setting.name if setting.default is None else f"{setting.name}={json.dumps(setting.default)}"
            for setting in kind.settings
        )
        yield f"  {'':14} {known}"
