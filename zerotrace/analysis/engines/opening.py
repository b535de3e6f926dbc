"""The engine that was asked for, ready for tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from importlib.util import find_spec

from zerotrace.analysis.engines.processes import Processes
from zerotrace.analysis.engines.spreading import Engine
from zerotrace.errors import EngineError


class EngineKind(str, Enum):
    """Where the files of ranks are read."""

    PROCESSES = "processes"
    DASK = "dask"
    RAY = "ray"


# What each needs beside zerotrace itself: the extra of its name brings it.
_NEEDED = {EngineKind.DASK: ("joblib", "distributed"), EngineKind.RAY: ("joblib", "ray")}


@contextmanager
def open_engine(
    kind: EngineKind, address: str | None = None, jobs: int | None = None, num_tasks: int | None = None
) -> Iterator[Engine]:
    """An engine, for as long as the block lasts.

    Args:
        kind: which.
        address: of the cluster; ``None`` for processes.
        jobs: tasks that run at the same time, at most; by default as many as there are cores.
        num_tasks: how many there will be, at most; no cluster is asked for more places than that.

    Raises:
        EngineError: ``engine_missing`` without its packages, ``engine_address`` for no address or one that cannot be,
            ``engine_unreachable`` if no cluster answers there in time, ``engine_no_workers`` if it has none,
            ``engine_differs`` if its workers have another zerotrace or Python, or none.
    """
    if kind is EngineKind.PROCESSES:
        yield Processes(jobs)
        return
    missing = [name for name in _NEEDED[kind] if find_spec(name) is None]
    if missing:
        are = "are" if missing[1:] else "is"
        raise EngineError(
            f"--engine {kind.value} needs {' and '.join(missing)}, which {are} not installed",
            code="engine_missing",
            hint=f"pip install 'zerotrace[{kind.value}]'",
        )
    if not address:
        raise EngineError(
            f"--engine {kind.value} needs the address of a cluster",
            code="engine_address",
            hint="give --address tcp://HOST:8786, as the scheduler prints it"
            if kind is EngineKind.DASK
            else "give --address HOST:6379, as `ray start` prints it, or --address auto on a machine of the cluster",
        )
    most = min(filter(None, (jobs, num_tasks)), default=None)
    if kind is EngineKind.DASK:
        from zerotrace.analysis.engines.dask import dask_engine

        with dask_engine(address, most) as engine:
            yield engine
    else:
        from zerotrace.analysis.engines.ray import ray_engine

        with ray_engine(address, most) as engine:
            yield engine
