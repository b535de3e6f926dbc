"""Where each rank is: a few bytes a rank, written often, read by the process that watches the run.

One record of fixed length is overwritten in place, so that a write costs microseconds (it happens between steps,
never inside a measured one) and a reader never sees half of it.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from msgspec import Struct

_RECORD_LENGTH = 96

#: Phases of a rank in the order in which they run; a window's phase has the window's name.
PHASES = (
    "launched", "starting", "warmup", "timed", "labelled", "light-settle", "light", "light-writing", "detailed-settle",
    "detailed", "detailed-writing", "memory", "memory-writing", "ingesting", "waiting", "done",
)  # fmt: skip
#: The training program has come to its end.
DONE = PHASES[-1]
FAILED = "failed"

#: The phases in which a rank has not come to its session yet.
BEFORE_STEPS = PHASES[:2]


class RankProgress(Struct, frozen=True, kw_only=True):
    """What one rank last said about itself."""

    rank: int
    pid: int | None = None
    phase: str = PHASES[0]
    """One of :data:`PHASES`, or :data:`FAILED` once an exception has left the training program."""
    step: int = -1
    """Optimizer step that the rank is in; -1 outside of steps."""
    time_ns: int = 0
    """When it said so, nanoseconds since the Unix epoch."""

    @property
    def position(self) -> tuple[int, int]:
        """Sorts ranks by how far they have come."""
        phase = PHASES.index(self.phase) if self.phase in PHASES else len(PHASES)
        return phase, self.step

    def describe(self) -> str:
        """The phase in words: ``in step 7 (timed)``."""
        if self.phase == "launched":
            return "before the training program"
        if self.phase == "starting":
            return "before its first step (imports, process group, deepspeed.initialize)"
        if self.phase == FAILED:
            return "on an exception" + (f" in step {self.step}" if self.step >= 0 else "")
        if self.step >= 0:
            return f"in step {self.step} ({self.phase})"
        return self.phase


class ProgressWriter:
    """Writes one rank's progress."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = os.open(_path(folder, rank), os.O_WRONLY | os.O_CREAT, 0o644)

    def note(self, phase: str, step: int = -1) -> None:
        """Record that this rank has entered a phase or a step."""
        text = f"{os.getpid()} {phase} {step} {time.time_ns()}"
        os.pwrite(self._file, text.ljust(_RECORD_LENGTH).encode(), 0)

    def close(self) -> None:
        """Close the file; what was noted stays."""
        os.close(self._file)


def read_progress(folder: Path, num_ranks: int, first: int = 0) -> list[RankProgress]:
    """The progress of the ranks of one machine, from the first one on; one that has written nothing is ``launched``."""
    return [_read(folder, rank) for rank in range(first, first + num_ranks)]


def _read(folder: Path, rank: int) -> RankProgress:
    try:
        fields = _path(folder, rank).read_text(encoding="ascii").split()
    except FileNotFoundError:
        fields = []
    if len(fields) != 4:
        return RankProgress(rank=rank)
    pid, phase, step, time_ns = fields
    return RankProgress(rank=rank, pid=int(pid), phase=phase, step=int(step), time_ns=int(time_ns))


def _path(folder: Path, rank: int) -> Path:
    return folder / f"rank_{rank}.progress"
