"""A child process that does not outlive its parent, however that ends."""

from __future__ import annotations

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(sig: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent dies, however that dies. Linux only."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes  # only children need it, and it is slow to import

    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(sig), 0, 0, 0)
    if os.getppid() != parent:
        # It died between the two calls.
        os.kill(os.getpid(), sig)
