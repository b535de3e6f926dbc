"""A child process that does not outlive its parent, however that ends."""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(sig: signal.Signals, parent: int | None = None) -> None:
    """Have the kernel send this process a signal when its parent dies, however that dies. Linux only.

    Args:
        sig: the signal.
        parent: the parent's process id, from the parent itself: it may be dead before this is called. Without it, a
            parent that died by then is not noticed.
    """
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # only children need it, and it is slow to import

    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
    if os.getppid() != parent:
        # It died before the kernel was told.
        os.kill(os.getpid(), sig)
