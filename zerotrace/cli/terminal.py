"""The terminal, whatever it is: an encoding that lacks signs, names that move cursors, signals that end us."""

from __future__ import annotations

import signal
import sys
from types import FrameType
from typing import NoReturn

_PATIENCE_S = 10


def accept_any_encoding() -> None:
    """Spells out what the encoding of stdout or stderr lacks (``µ`` in ASCII), in place of failing on it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def end_in_order() -> None:
    """Turns SIGTERM and SIGHUP into an orderly exit, so that what is half done is removed."""

    def leave(sig: int, _frame: FrameType | None) -> NoReturn:
        import multiprocessing

        # Workers are ended first, since the exit would wait for them; and if it waits all the same, not for long.
        for worker in multiprocessing.active_children():
            worker.kill()
        signal.alarm(_PATIENCE_S)
        raise SystemExit(128 + sig)

    for sig in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, leave)


def printable(text: str) -> str:
    """The text with every control character spelled out, so that none moves the cursor or sets a colour."""
    return "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )
