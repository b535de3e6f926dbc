"""A Ray cluster."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

# How often Ray tries, half a minute each time, to reach a cluster that does not answer. Read when it is imported.
os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError
from ray.util.joblib.ray_backend import RayBackend
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from zerotrace.analysis.engines.cluster import (
    QUESTIONS,
    Cluster,
    no_workers,
    number_of,
    require_alike,
    require_answer,
    unreachable,
)
from zerotrace.analysis.engines.spreading import Lost
from zerotrace.errors import EngineError

_HEAD = "Ray cluster"

#: Seconds in which every node has to start a worker and answer.
NODES_S = 60.0

_AUTO = "auto"
_ADDRESS = re.compile(r"(?P<host>[^:/\s]+|\[[0-9A-Fa-f:]+\]):(?P<port>\d{1,5})")

# It speaks HTTP/2, and begins with a frame of settings: three bytes of length, then its type.
_SETTINGS = 4

# A process of the pool that is killed starts anew.
_REMOTE_ARGS = {"max_restarts": -1}


class _Backend(RayBackend):  # type: ignore[misc]
    """Ray's for joblib, which gives results as they come, and a task that Ray has given up as lost."""

    # It gives each to a callback at once; that of multiprocessing, which it is made of, is not trusted to.
    supports_return_generator = True

    def submit(self, func: Any, callback: Callable[[Any], None]) -> Any:
        number = number_of(func)

        def tell(out: Any) -> None:
            if isinstance(out, RayError):
                starting = isinstance(out, ActorUnavailableError)
                out = [(number, Lost(f"Ray gave it up: {_first_line(out)}", starting=starting))]
            callback(out)

        return super().submit(func, tell)


@contextmanager
def ray_engine(address: str, most: int | None) -> Iterator[Cluster]:
    """A Ray cluster, for as long as the block lasts; that to which this process is connected already, if it is.

    Args:
        address: ``HOST:PORT`` of its head node, or ``auto`` on a machine of the cluster.
        most: tasks that run at the same time, at most.

    Raises:
        EngineError: as :func:`zerotrace.analysis.engines.open_engine` has it.
    """
    # Its messages about processes that were lost go to stdout, which is for results.
    with redirect_stdout(sys.stderr), _connected(address):
        num_cores = int(ray.cluster_resources().get("CPU", 0))
        if num_cores < 2:
            raise EngineError(
                f"{address}: the cluster has {num_cores} CPUs; expected two or more",
                code="engine_no_workers",
                hint="add nodes, or leave --engine out and read the traces on this machine",
            )
        require_alike(_ask_nodes(address))
        with Cluster.through(_Backend(ray_remote_args=_REMOTE_ARGS), min(num_cores, most or num_cores)) as cluster:
            yield cluster


@contextmanager
def _connected(address: str) -> Iterator[None]:
    if ray.is_initialized():
        yield
        return
    _connect(address)
    try:
        yield
    finally:
        ray.shutdown()


def _connect(address: str) -> None:
    if address != _AUTO:
        parts = _ADDRESS.fullmatch(address)
        if parts is None:
            raise EngineError(
                f"{address!r} is no address of a Ray cluster",
                code="engine_address",
                hint="expected HOST:6379, as `ray start` prints it, or auto on a machine of the cluster; ray:// is for "
                "Ray's client, which cannot do this",
            )
        require_answer(parts["host"].strip("[]"), int(parts["port"]), _HEAD, _is_greeting)
    try:
        with _signals_kept(), warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            ray.init(address, log_to_driver=False, logging_level="ERROR")
    except (OSError, ValueError, RuntimeError) as error:
        raise unreachable(address, _HEAD, _first_line(error)) from error


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Has signals mean afterwards what they meant before: Ray takes SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ask_nodes(address: str) -> dict[str, dict[str, object]]:
    alive = [node for node in ray.nodes() if node["Alive"]]
    nodes = {node["NodeID"]: f"{node['NodeManagerHostname']} ({node['NodeID'][:8]})" for node in alive}
    answers: dict[str, dict[str, object]] = {name: {} for name in nodes.values()}
    # One question after another: a node then needs a single process for them.
    for what, (question, args) in QUESTIONS.items():
        asked = {
            name: ray.remote(
                num_cpus=0, max_retries=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            )(question).remote(*args)
            for node, name in nodes.items()
        }
        for name, reference in asked.items():
            try:
                answers[name][what] = ray.get(reference, timeout=NODES_S)
            except GetTimeoutError as error:
                raise no_workers(address, NODES_S) from error
            except RayError as error:
                answers[name][what] = error
    return answers


def _is_greeting(begin: bytes) -> bool:
    return len(begin) > 3 and begin[3] == _SETTINGS


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
