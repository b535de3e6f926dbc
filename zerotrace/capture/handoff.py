"""What passes between the process that launches a capture and its ranks, as JSON files."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from zerotrace.model import RankRecord, WindowKind, WindowRecord

#: Names the file that holds a rank's :class:`SessionPlan`; set only inside a capture, and unique to it.
SESSION_VARIABLE = "ZEROTRACE_SESSION"


@dataclass(frozen=True, kw_only=True)
class SessionPlan:
    """What every rank of a capture has to do."""

    trace_folder: str
    """Where traces go; the launcher renames this folder once the whole capture is there."""
    work_folder: str
    """Where progress, logs and rank records go."""
    num_warmup: int
    num_timed: int
    num_profiled: int

    @classmethod
    def from_environment(cls) -> SessionPlan | None:
        """The plan of the capture that this process is a rank of; ``None`` outside of a capture."""
        path = os.environ.get(SESSION_VARIABLE)
        return cls(**json.loads(Path(path).read_text(encoding="utf-8"))) if path else None


@dataclass(frozen=True, kw_only=True)
class RankReport:
    """All that one rank hands back."""

    record: RankRecord
    num_params: int
    """Ψ as counted on the engine's model, over all ranks."""
    losses: tuple[float, ...]
    versions: Mapping[str, str] = field(default_factory=dict)


def write_json(path: Path, value: Any) -> None:
    """Write a dataclass or a plain value; the file appears whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(_plain(value), indent=1, allow_nan=False) + "\n", encoding="utf-8")
    partial.rename(path)


def report_path(work_folder: Path, rank: int) -> Path:
    """Where a rank leaves its report."""
    return work_folder / f"rank_{rank}.json"


def read_report(path: Path) -> RankReport:
    """The report that a rank has left."""
    content = json.loads(path.read_text(encoding="utf-8"))
    record = content.pop("record")
    windows = tuple(
        WindowRecord(kind=WindowKind(w["kind"]), first_step=w["first_step"], step_ns=tuple(w["step_ns"]))
        for w in record.pop("windows")
    )
    losses = tuple(content.pop("losses"))
    return RankReport(record=RankRecord(windows=windows, **record), losses=losses, **content)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
