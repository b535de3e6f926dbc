"""What workers are given to do in tests; they import it."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path


def die_once(folder: Path, number: int, victim: int) -> tuple[int, int]:
    """Is killed, the first time that it is the victim's turn."""
    mark = folder / f"died-{number}"
    if number == victim and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number, os.getpid()


def die_always(number: int, victim: int) -> int:
    """Is killed whenever it is the victim's turn."""
    if number == victim:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def fail_once(folder: Path, number: int) -> str:
    """Fails the first time, as what a file system does not give at once."""
    mark = folder / f"failed-{number}"
    if mark.exists():
        return "read"
    mark.touch()
    return "unreadable"


def process_of(number: int) -> tuple[int, int]:
    """Says where it ran."""
    return number, os.getpid()


def raise_at(number: int, victim: int) -> int:
    """Fails as a fault of ours would."""
    if number == victim:
        raise ZeroDivisionError("a fault")
    return number


def begin(folder: Path, number: int) -> int:
    """Leaves a mark, and takes its time."""
    (folder / f"began-{number}").touch()
    time.sleep(0.1)
    return number
