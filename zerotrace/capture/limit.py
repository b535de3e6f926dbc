"""The time limit of a rank that no launcher watches, as in a torchrun or Slurm job: it ends itself."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType

from zerotrace.capture.failure import TIMEOUT_EXIT_CODE, without_machine
from zerotrace.capture.handoff import Deadline

# The thread of the limit cannot run while a C function holds the interpreter's lock.
_PATIENCE_S = 10.0

_NUM_FRAMES = 10


class TimeLimit:
    """Ends this process when a deadline has passed, wherever its main thread is."""

    def __init__(self, rank: int, deadline: Deadline) -> None:
        self._rank = rank
        self._deadline = deadline
        self._lifted = threading.Event()
        self._before_end: list[Callable[[], str]] = []

    def start(self) -> None:
        """Begin to watch."""
        left = max(0.0, self._deadline.at_s - time.monotonic())
        threading.Thread(target=self._watch, args=(left,), name="zerotrace-limit", daemon=True).start()
        faulthandler.dump_traceback_later(left + _PATIENCE_S, exit=True)

    def lift(self) -> None:
        """The limit no longer holds."""
        self._lifted.set()
        faulthandler.cancel_dump_traceback_later()

    def before_end(self, keep: Callable[[], str]) -> None:
        """Have a function called before the process is ended: it keeps what there is, and says where."""
        self._before_end.append(keep)

    def _watch(self, left: float) -> None:
        if self._lifted.wait(left):
            return
        stack = _describe_stack(sys._current_frames().get(threading.main_thread().ident or 0))
        lines = [
            f"zerotrace: Rank {self._rank} was not done after {self._deadline.limit_s:g} s (--timeout), and has ended "
            "itself. What it waited for may be another rank: see what the others say.",
            *(f"  {sentence}" for keep in self._before_end if (sentence := keep())),
            *(f"  at {frame}" for frame in stack),
        ]
        sys.stderr.write("\n".join(lines) + "\n")
        sys.stderr.flush()
        os._exit(TIMEOUT_EXIT_CODE)


def _describe_stack(frame: FrameType | None) -> list[str]:
    """The innermost frames, first of all the one that runs."""
    frames = [
        f"{without_machine(entry.filename)}:{entry.lineno} in {entry.name}"
        for entry in traceback.extract_stack(frame)
        if not entry.filename.startswith("<frozen")
    ]
    return frames[: -_NUM_FRAMES - 1 : -1]


_limit: TimeLimit | None = None


def limit_this_process(rank: int, deadline: Deadline) -> None:
    """Set the time limit of this process."""
    global _limit
    _limit = TimeLimit(rank, deadline)
    _limit.start()


def current_limit() -> TimeLimit | None:
    """The time limit of this process, if it has one."""
    return _limit
