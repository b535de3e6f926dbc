"""Signals that ask a launcher to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class InterruptError(Exception):
    """A signal has asked this process to stop."""

    def __init__(self, sig: int) -> None:
        super().__init__(sig)
        self.signal = signal.Signals(sig)


def raise_interrupt(sig: int, _frame: FrameType | None) -> None:
    """A handler that raises :class:`InterruptError`."""
    raise InterruptError(sig)


@contextmanager
def on_stop_signal(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Have the signals that ask a process to stop handled in another way for a while. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    stopping = [signal.SIGINT, signal.SIGTERM]
    # A terminal or an ssh connection that is gone, and Ctrl-backslash: nohup and shells have them ignored.
    stopping += [sig for sig in (signal.SIGHUP, signal.SIGQUIT) if signal.getsignal(sig) != signal.SIG_IGN]
    before = {sig: signal.signal(sig, handler) for sig in stopping}
    try:
        yield
    finally:
        for sig, old in before.items():
            signal.signal(sig, old)
