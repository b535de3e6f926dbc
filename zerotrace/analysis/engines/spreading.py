"""Many tasks of one kind, each tried twice where its process or machine was lost."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from zerotrace.errors import EngineError

_T = TypeVar("_T")

# How often a process that is starting anew is waited for, and seconds between two looks.
_STARTS = 10
_START_S = 0.5


class Lost(Struct, frozen=True):
    """What is left of a task that ended with the process or the machine that it ran on."""

    reason: str
    """In words, to follow a file's name and a colon."""
    starting: bool = False
    """Whether its process was starting anew, after another task took it along: nothing of this task was done."""


class Engine(Protocol):
    """A place where tasks run side by side."""

    is_elsewhere: bool
    """Whether tasks run on other machines, which may not see the files of this one."""

    def run(
        self,
        task: Callable[..., _T],
        work: Sequence[tuple[Any, ...]],
        at_once: int | None = None,
        begun: Callable[[], None] | None = None,
    ) -> Generator[tuple[int, _T | Lost], None, None]:
        """Runs a task for each tuple of arguments, and gives its position with its outcome as each ends.

        What a task raises is raised here, and tasks that have not begun are dropped. So they are if the iterator is
        closed before its end. No more tasks can be run then.

        Args:
            task: a function of a module; arguments and result cross to another process.
            work: the arguments.
            at_once: tasks that run at the same time, at most.
            begun: called once the processes of this machine are there that it needs.
        """
        ...

    def run_apart(self, task: Callable[..., _T], args: tuple[Any, ...]) -> _T | Lost:
        """Runs one task, with nothing of ours beside it, and never in this process."""
        ...


def spread(
    engine: Engine,
    task: Callable[..., _T],
    work: Sequence[tuple[Any, ...]],
    *,
    at_once: int | None = None,
    try_again: Callable[[_T], bool] = lambda _: False,
    begun: Callable[[], None] | None = None,
) -> Generator[tuple[int, _T | Lost], None, None]:
    """Runs a task for each tuple of arguments, as :meth:`Engine.run` does, and what fails by chance a second time.

    A task that was lost runs again by itself: one that takes all memory harms no other, and one that was only beside
    it succeeds.

    Args:
        engine: where.
        task: a function of a module.
        work: its arguments.
        at_once: tasks that run at the same time, at most.
        try_again: whether an outcome is a failure that may pass.
        begun: called once the processes of this machine are there that the engine needs.
    """
    lost: list[int] = []
    failed: list[int] = []
    with closing(engine.run(task, work, at_once, begun)) as outcomes:
        for number, value in outcomes:
            if isinstance(value, Lost):
                lost.append(number)
            elif try_again(value):
                failed.append(number)
            else:
                yield number, value
    if failed:
        with closing(engine.run(task, [work[number] for number in failed], at_once)) as outcomes:
            for place, value in outcomes:
                yield failed[place], value
    for number in lost:
        value = engine.run_apart(task, work[number])
        for _ in range(_STARTS):
            if not (isinstance(value, Lost) and value.starting):
                break
            time.sleep(_START_S)
            value = engine.run_apart(task, work[number])
        yield number, value


def require_visible(*paths: Path) -> None:
    """Checks in a task that its machine sees files and folders of the one that sent it.

    Raises:
        EngineError: ``folder_not_shared``.
    """
    for path in paths:
        if not path.exists():
            raise EngineError(
                f"the worker on {platform.node()} does not see {path}, which is there on the machine that sent it",
                code="folder_not_shared",
                hint="traces and result have to lie in a folder that all workers share, under the same path; or leave "
                "--engine out, and read them on this machine",
            )
