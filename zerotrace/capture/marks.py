"""Writes labels into the profiler's record while a window records, and does next to nothing otherwise."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import record_function

from zerotrace.labels import Label, LabelEvent, Phase, format_label


class Marker:
    """Opens and closes labels. All hooks of a rank share one."""

    def __init__(self) -> None:
        self.recording = False
        """Whether labels are written. Each hook looks here first: outside of a recording it costs this look alone."""
        self.phase: Phase | None = None
        """The call of the engine that is running, while recording."""
        self._tokens = itertools.count()
        self._open: dict[int, Any] = {}
        self._enter, self._exit = _annotation_calls()

    def begin(self, name: str) -> int:
        """Open a label; returns what :meth:`end` closes it by, on whatever thread that happens."""
        token = next(self._tokens)
        self._open[token] = self._enter(name)
        return token

    def end(self, token: int) -> None:
        """Close a label, if it is still open."""
        handle = self._open.pop(token, None)
        if handle is not None:
            self._exit(handle)

    def end_all(self) -> None:
        """Close what is still open, innermost first: no label may outlive its step."""
        for token in sorted(self._open, reverse=True):
            self.end(token)

    @contextmanager
    def mark(self, name: str) -> Iterator[None]:
        """A label around a block."""
        token = self.begin(name)
        try:
            yield
        finally:
            self.end(token)

    @contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """A phase's label around a block, and the phase for all labels in it."""
        before, self.phase = self.phase, phase
        try:
            with self.mark(_PHASE_NAMES[phase]):
                yield
        finally:
            self.phase = before


_PHASE_NAMES = {phase: format_label(Label(event=LabelEvent.PHASE, phase=phase)) for phase in Phase}


def in_backward() -> bool:
    """Whether autograd is running on this thread: a forward in there is a recomputation."""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1


def _annotation_calls() -> tuple[Callable[[str], Any], Callable[[Any], None]]:
    """How to open and to close a user annotation.

    ``record_function`` goes through the dispatcher and costs five times as much as the two calls underneath, which
    torch keeps for itself: they are used where they exist.
    """
    inner = getattr(torch._C, "_autograd", None)
    enter = getattr(inner, "_record_function_with_args_enter", None)
    leave = getattr(inner, "_record_function_with_args_exit", None)
    if enter is not None and leave is not None:
        return enter, leave

    def enter_public(name: str) -> Any:
        annotation = record_function(name)
        annotation.__enter__()
        return annotation

    return enter_public, lambda annotation: annotation.__exit__(None, None, None)
