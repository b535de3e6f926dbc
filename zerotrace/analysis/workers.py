"""Processes that read the files of ranks side by side."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from zerotrace.lifetime import die_with_parent

_STOPPING = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})


def worker_count(num_tasks: int, jobs: int | None) -> int:
    """How many processes to use: one a core, at most one a task, unless ``jobs`` says less or more."""
    return min(num_tasks, jobs or os.cpu_count() or 1)


def start_method() -> str:
    """How workers begin: as copies of this process where that is safe, since their imports cost a quarter second."""
    return "fork" if sys.platform == "linux" and threading.active_count() == 1 else "spawn"


@contextmanager
def signals_later() -> Iterator[None]:
    """Holds signals back while workers are made, that is while the first task is handed to a pool.

    An exception in one of the functions that run around a fork is only printed, and what they were about to do is left
    undone: the run would go on after Ctrl-C, or its new worker hang.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def begin_worker(parent: int) -> None:
    """What each worker does first.

    Args:
        parent: the process that made it.
    """
    die_with_parent(signal.SIGKILL, parent)
    # Ctrl-C reaches the whole group; the parent alone decides what it means. A copy of it must not act on SIGTERM
    # as the parent does.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for sig in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, signal.SIG_DFL)
    # It has begun with them held back.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPPING)
