"""Replaces functions of DeepSpeed and torch by wrappers, puts them back, and keeps account of what was not there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

Function = Callable[..., Any]

_ABSENT = object()


class Outermost:
    """A replacement of a function that stays outside of all hooks: these go around what it calls.

    Args:
        inner: the function that it replaces.
        call: does its work, given that function and the arguments.
    """

    def __init__(self, inner: Function, call: Function) -> None:
        functools.update_wrapper(self, inner)
        self.inner = inner
        self._call = call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Do its work."""
        return self._call(self.inner, *args, **kwargs)


class Hooks:
    """The hooks that are in place, each with a name of ours, and those that this engine has no place for."""

    def __init__(self) -> None:
        self.installed: list[str] = []
        self.missing: dict[str, str] = {}
        """Hook -> why it is not in place."""
        self._undo: list[Callable[[], None]] = []

    def wrap(self, hook: str, owner: Any, names: Sequence[str], make: Callable[[Function], Function]) -> None:
        """Replace a function of an object, class or module.

        Args:
            hook: our name of the hook.
            owner: what has the function.
            names: the function's name in the versions that are known, latest first.
            make: given the original, makes the wrapper.
        """
        for name in names:
            original = getattr(owner, name, None)
            if not callable(original):
                continue
            if isinstance(original, Outermost):
                owner, name, original = original, "inner", original.inner
            before = vars(owner).get(name, _ABSENT)
            wrapper = functools.wraps(original)(make(original))
            is_static = isinstance(before, staticmethod)
            setattr(owner, name, staticmethod(wrapper) if is_static else wrapper)
            self._undo.append(functools.partial(_restore, owner, name, before))
            self.installed.append(hook)
            return
        kind = owner.__name__ if hasattr(owner, "__name__") else type(owner).__name__
        self.lack(hook, f"{kind} has no {' or '.join(name.rpartition('__')[2] or name for name in names)}")

    def add(self, hook: str, undo: Callable[[], None]) -> None:
        """A hook that was put in place by other means."""
        self.installed.append(hook)
        self._undo.append(undo)

    def lack(self, hook: str, reason: str) -> None:
        """A hook that cannot be put in place."""
        self.missing[hook] = reason

    def remove(self) -> None:
        """Put everything back, last first. What was installed and missing stays on record."""
        while self._undo:
            self._undo.pop()()


def _restore(owner: Any, name: str, before: Any) -> None:
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
