"""Keeps a profiler of the training program's own out of the measured steps: torch has room for one at a time.

It would be in every step time that is said to be without a profiler, and ours would end it, or it ours.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.autograd.profiler
import torch.profiler

from zerotrace.capture.hooks import Function, Hooks
from zerotrace.errors import CaptureError

_starting = threading.local()


@contextmanager
def starting_ours() -> Iterator[None]:
    """The profiler that is started in the block is the capture's."""
    _starting.ours = True
    try:
        yield
    finally:
        _starting.ours = False


class ProfilerGuard:
    """Refuses, while it is in place, every other profiler.

    Args:
        describe: says where the run is, for the message.
    """

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe
        self._hooks = Hooks()
        self._error: CaptureError | None = None

    def install(self) -> None:
        """Refuse from now on what starts; what runs already is :meth:`check`'s to find."""
        if self._hooks.installed:
            return
        autograd = torch.autograd.profiler
        # Class attributes, which profilers that exist already look up too. The last marks steps of its own, even where
        # its schedule has it wait.
        for owner, name in (
            (autograd.profile, "_prepare_trace"),
            (autograd.profile, "_start_trace"),
            (autograd.emit_nvtx, "__enter__"),
            (autograd.emit_itt, "__enter__"),
            (torch.profiler.profile, "step"),
        ):
            self._hooks.wrap(name, owner, (name,), self._refusing)

    def check(self) -> None:
        """Refuse a profiler that is on.

        Raises:
            CaptureError: one is, or one was refused and the program has caught the error.
        """
        if self._error is None and torch._C._autograd._profiler_enabled():
            self._error = self._refusal()
        self.raise_refused()

    def raise_refused(self) -> None:
        """Refuse to go on, if a profiler was refused and the program has caught the error."""
        if self._error is not None:
            raise self._error

    def remove(self) -> None:
        """Put everything back."""
        self._hooks.remove()
        self._hooks = Hooks()

    def _refusing(self, original: Function) -> Function:
        def start(*args: Any, **kwargs: Any) -> Any:
            if getattr(_starting, "ours", False):
                return original(*args, **kwargs)
            self._error = self._error or self._refusal()
            raise self._error

        return start

    def _refusal(self) -> CaptureError:
        return CaptureError(
            f"The training program uses a torch profiler of its own, {self._describe()}: torch has room for one "
            "profiler, and step times would be those of a profiled run.",
            code="own_profiler",
            hint="Switch it off for the capture, or have it end within the warm-up steps (--warmup).",
        )
