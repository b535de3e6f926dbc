"""Processes of this machine."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from zerotrace.analysis.engines.spreading import Lost
from zerotrace.analysis.workers import begin_worker, signals_later, start_method, worker_count

_T = TypeVar("_T")

_LOST = Lost("the process that read it was ended from outside")


class Processes:
    """Runs tasks in processes of their own, or in this one if one at a time is enough."""

    is_elsewhere = False

    def __init__(self, jobs: int | None = None) -> None:
        """An engine.

        Args:
            jobs: processes that work at once; by default one a core.
        """
        self._jobs = jobs

    def run(
        self,
        task: Callable[..., _T],
        work: Sequence[tuple[Any, ...]],
        at_once: int | None = None,
        begun: Callable[[], None] | None = None,
    ) -> Generator[tuple[int, _T | Lost], None, None]:
        """See :class:`zerotrace.analysis.engines.Engine`."""
        count = worker_count(len(work) if at_once is None else min(len(work), at_once), self._jobs)
        if count > 1:
            yield from _in_pools(task, work, count, begun)
            return
        if begun is not None:
            begun()
        for number, args in enumerate(work):
            yield number, task(*args)

    def run_apart(self, task: Callable[..., _T], args: tuple[Any, ...]) -> _T | Lost:
        """See :class:`zerotrace.analysis.engines.Engine`."""
        ((_, value),) = _in_pools(task, [args], 1)
        return value


def _in_pools(
    task: Callable[..., _T],
    work: Sequence[tuple[Any, ...]],
    count: int,
    begun: Callable[[], None] | None = None,
) -> Generator[tuple[int, _T | Lost], None, None]:
    """Runs tasks in a pool, and in another after it if one of its processes is lost, which is the end of a pool.

    Which task it was cannot be told: every one that was handed out is lost. So no more are than keep all processes
    at work.
    """
    left = deque(range(len(work)))
    context, parent = get_context(start_method()), os.getpid()
    while left:
        out: dict[Future[_T], int] = {}
        processes = min(count, len(left))
        with ProcessPoolExecutor(processes, mp_context=context, initializer=begin_worker, initargs=(parent,)) as pool:
            try:
                while left or out:
                    with signals_later():
                        while left and len(out) < 2 * processes:
                            out[pool.submit(task, *work[left[0]])] = left[0]
                            left.popleft()
                    if begun is not None:
                        begun()
                        begun = None
                    for future in wait(out, return_when=FIRST_COMPLETED).done:
                        yield out[future], future.result()
                        del out[future]
            except BrokenProcessPool:
                pass
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
        for future, number in out.items():
            yield number, _LOST if isinstance(future.exception(), BrokenProcessPool) else future.result()
