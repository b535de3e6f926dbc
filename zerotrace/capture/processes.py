"""Ending every process that a capture has started, and no other."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil

from zerotrace.capture.handoff import SESSION_VARIABLE


def find_processes(root: int, session_file: Path) -> list[psutil.Process]:
    """The processes of one capture: the launcher's child, its descendants, and whoever carries the session's mark.

    torchrun puts each rank in a session of its own, and a rank whose parent has died is nobody's descendant; but all
    of them have inherited the environment variable that names this capture's session file.

    Args:
        root: process id of torchrun.
        session_file: what :data:`~zerotrace.capture.handoff.SESSION_VARIABLE` holds in this capture.
    """
    found: dict[int, psutil.Process] = {}
    try:
        process = psutil.Process(root)
        found = {child.pid: child for child in (process, *process.children(recursive=True))}
    except psutil.NoSuchProcess:
        pass
    for process in psutil.process_iter():
        if process.pid not in found and process.pid != os.getpid() and _carries_mark(process, session_file):
            found[process.pid] = process
    return list(found.values())


def end_processes(root: int, session_file: Path, *, grace_s: float = 3.0) -> None:
    """End all processes of a capture: SIGTERM, then SIGKILL for those that are left after the grace.

    Looks again after each round, because a process may have started another one in the meantime.
    """
    deadline = time.monotonic() + grace_s
    processes = find_processes(root, session_file)
    _signal_all(processes, signal.SIGTERM)
    psutil.wait_procs(processes, timeout=grace_s)
    while processes := _alive(find_processes(root, session_file)):
        _signal_all(processes, signal.SIGKILL)
        psutil.wait_procs(processes, timeout=1.0)
        if time.monotonic() > deadline + 10:
            # A process in uninterruptible sleep (a hung driver) goes when the kernel lets it.
            return


def _alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    alive = []
    for process in processes:
        try:
            if process.status() != psutil.STATUS_ZOMBIE:
                alive.append(process)
        except psutil.NoSuchProcess:
            continue
    return alive


def _signal_all(processes: list[psutil.Process], sig: signal.Signals) -> None:
    for process in processes:
        try:
            process.send_signal(sig)
        except psutil.NoSuchProcess:
            continue


def _carries_mark(process: psutil.Process, session_file: Path) -> bool:
    try:
        return bool(process.environ().get(SESSION_VARIABLE) == str(session_file))
    except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
        return False
