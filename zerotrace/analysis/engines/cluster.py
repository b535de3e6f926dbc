"""What both kinds of clusters have in common: joblib hands out the tasks, and workers have to be like this process."""

from __future__ import annotations

import platform
import socket
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pkgutil import resolve_name
from typing import Any, TypeVar

from joblib import Parallel, delayed

from zerotrace.analysis.engines.spreading import Lost
from zerotrace.errors import EngineError

_T = TypeVar("_T")

#: Seconds in which a cluster has to answer.
PATIENCE_S = 10.0

_NAMED = 3

#: What is asked of each worker: of Python's own library alone, so that it can be asked where zerotrace is missing.
QUESTIONS: Mapping[str, tuple[Callable[..., str], tuple[str, ...]]] = {
    "zerotrace": (resolve_name, ("zerotrace.version:VERSION",)),
    "Python": (platform.python_version, ()),
    "numpy": (version, ("numpy",)),
    "pyarrow": (version, ("pyarrow",)),
}

# How many parts of a version have to be equal, for what crosses between processes to be read there.
_PARTS = {"zerotrace": None, "Python": 2, "numpy": 1, "pyarrow": 1}


class Cluster:
    """An engine on other machines, through a backend of joblib that gives what is lost as a :class:`Lost`."""

    is_elsewhere = True

    def __init__(self, parallel: Parallel, num_workers: int) -> None:
        self._parallel = parallel
        self._num_workers = num_workers

    @classmethod
    @contextmanager
    def through(cls, backend: Any, num_workers: int) -> Iterator[Cluster]:
        """An engine, for as long as the block lasts.

        Args:
            backend: one of joblib's.
            num_workers: tasks that run at the same time, at most.
        """
        # One alone would be run in this process.
        n_jobs = max(num_workers, 2)
        parallel = Parallel(n_jobs=n_jobs, backend=backend, return_as="generator_unordered", batch_size=1)
        with warnings.catch_warnings():
            # It warns of tasks that are given up, which is what closing the iterator is for.
            warnings.filterwarnings("ignore", module="joblib")
            with parallel:
                yield cls(parallel, num_workers)

    def run(
        self,
        task: Callable[..., _T],
        work: Sequence[tuple[Any, ...]],
        at_once: int | None = None,
        begun: Callable[[], None] | None = None,
    ) -> Generator[tuple[int, _T | Lost], None, None]:
        """See :class:`zerotrace.analysis.engines.Engine`."""
        if begun is not None:
            begun()
        # It hands out this many, and one more as one ends.
        self._parallel.pre_dispatch = min(self._num_workers, at_once or self._num_workers)
        yield from self._parallel(delayed(_numbered)(number, task, args) for number, args in enumerate(work))

    def run_apart(self, task: Callable[..., _T], args: tuple[Any, ...]) -> _T | Lost:
        """See :class:`zerotrace.analysis.engines.Engine`."""
        ((_, value),) = self.run(task, [args])
        return value


def number_of(batch: Any) -> int:
    """Which task a batch of joblib's is, of those that :class:`Cluster` hands out one by one."""
    ((_, (number, *_), _),) = batch.items
    assert isinstance(number, int)
    return number


def _numbered(number: int, task: Callable[..., _T], args: tuple[Any, ...]) -> tuple[int, _T]:
    return number, task(*args)


def require_answer(host: str, port: int, what: str, is_first_word: Callable[[bytes], bool]) -> None:
    """Checks that a service answers at an address, and that it begins as it should.

    Clients of both clusters wait for minutes, or for ever, where nobody answers.

    Args:
        host: its name or number.
        port: its port.
        what: the service in words.
        is_first_word: whether the first bytes that it sends by itself are of its kind.

    Raises:
        EngineError: ``engine_unreachable``.
    """
    try:
        with socket.create_connection((host, port), PATIENCE_S) as connection:
            connection.settimeout(PATIENCE_S)
            begin = connection.recv(_FIRST_BYTES)
    except OSError as error:
        reason = "nobody answers there" if isinstance(error, TimeoutError) else str(error.strerror or error)
        raise unreachable(f"{host}:{port}", what, reason) from error
    if not is_first_word(begin):
        raise unreachable(f"{host}:{port}", what, "what answers there is none")


_FIRST_BYTES = 16


def unreachable(address: str, what: str, reason: str) -> EngineError:
    """That no cluster can be reached."""
    return EngineError(
        f"{address}: no {what} to be reached: {reason}",
        code="engine_unreachable",
        hint="check the address, and that the cluster is up and can be reached from this machine",
    )


def no_workers(address: str, patience_s: float) -> EngineError:
    """That a cluster has nobody who works."""
    return EngineError(
        f"{address}: the cluster has no worker that took a task within {patience_s:.0f} s",
        code="engine_no_workers",
        hint="start workers first",
    )


def ask_here() -> dict[str, str]:
    """The answers of this process."""
    return {name: question(*args) for name, (question, args) in QUESTIONS.items()}


def require_alike(answers: Mapping[str, Mapping[str, object]]) -> None:
    """Checks that workers run what this process runs.

    Args:
        answers: of each worker, to :data:`QUESTIONS`; an exception where it has none.

    Raises:
        EngineError: ``engine_differs`` names the workers and what they have.
    """
    ours = ask_here()
    wrong = []
    for worker, theirs in answers.items():
        differ = [name for name, answer in theirs.items() if _differs(name, answer, ours[name])]
        if differ:
            said = ", ".join(f"{name} {theirs[name] if isinstance(theirs[name], str) else 'none'}" for name in differ)
            wrong.append((f"{worker} has {said}", differ))
    if not wrong:
        return
    needed = ", ".join(f"{name} {ours[name]}" for name in ours if any(name in differ for _, differ in wrong))
    named = "; ".join(said for said, _ in wrong[:_NAMED])
    raise EngineError(
        f"{len(wrong)} of {len(answers)} workers differ from this process, which has {needed}: {named}"
        + (" …" if len(wrong) > _NAMED else ""),
        code="engine_differs",
        hint="install the same zerotrace for the Python that the workers run, or start zerotrace from theirs",
    )


def _differs(name: str, theirs: object, ours: str) -> bool:
    parts = _PARTS[name]
    return not isinstance(theirs, str) or theirs.split(".")[:parts] != ours.split(".")[:parts]
