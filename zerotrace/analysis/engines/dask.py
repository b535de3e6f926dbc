"""A Dask cluster."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from distributed import Client
from distributed.security import Security
from joblib._dask import DaskDistributedBackend

from zerotrace.analysis.engines.cluster import (
    PATIENCE_S,
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

_SCHEDULER = "Dask scheduler"

#: Seconds in which a worker has to take a first task: some clusters start workers only when there is one.
WORKERS_S = 60.0

# Its messages begin with their length, little-endian: the first one is short.
_LENGTH_BYTES = 8
_LONGEST_GREETING = 1 << 20


class _Backend(DaskDistributedBackend):  # type: ignore[misc]
    """joblib's, which waits for ever for a task that Dask has given up (as of joblib 1.6)."""

    def effective_n_jobs(self, n_jobs: int) -> int:
        # It gives the cores of the cluster. One alone would have the tasks run in this process.
        return max(int(super().effective_n_jobs(n_jobs)), 2)

    def submit(self, func: Any, callback: Callable[[Any], None]) -> Any:
        number = number_of(func)

        def tell(ended: Future[Any]) -> None:
            error = ended.exception()
            if error is not None:
                callback([(number, Lost(f"Dask gave it up: {error}"))])

        future = super().submit(func, callback)
        future.add_done_callback(tell)
        return future


@contextmanager
def dask_engine(address: str, most: int | None) -> Iterator[Cluster]:
    """A Dask cluster, for as long as the block lasts.

    Args:
        address: of its scheduler, ``tcp://HOST:PORT`` or ``HOST:PORT``.
        most: tasks that run at the same time, at most.

    Raises:
        EngineError: as :func:`zerotrace.analysis.engines.open_engine` has it.
    """
    _check_address(address)
    # It tells on stderr what it makes of lost connections, whole tracebacks: what matters comes as an error.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        client = Client(address, timeout=PATIENCE_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise unreachable(address, _SCHEDULER, str(error)) from error
    try:
        try:
            # Whoever takes it: that somebody does.
            client.submit(os.getpid, pure=False).result(timeout=WORKERS_S)
        except TimeoutError as error:
            raise no_workers(address, WORKERS_S) from error
        answers: dict[str, dict[str, object]] = {}
        for name, (question, args) in QUESTIONS.items():
            for worker, answer in client.run(question, *args, on_error="return").items():
                answers.setdefault(worker, {})[name] = answer
        require_alike(answers)
        num_cores = sum(client.ncores().values())
        with Cluster.through(_Backend(client=client), min(num_cores, most or num_cores)) as cluster:
            yield cluster
    finally:
        client.close(timeout=PATIENCE_S)


def _check_address(address: str) -> None:
    parts = urlsplit(address if "://" in address else f"tcp://{address}")
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or not port or parts.scheme not in ("tcp", "tls"):
        raise EngineError(
            f"{address!r} is no address of a Dask scheduler",
            code="engine_address",
            hint="expected tcp://HOST:8786, as the scheduler prints it",
        )
    if parts.scheme == "tcp":
        require_answer(host, port, _SCHEDULER, _is_greeting)
        return
    # Here a scheduler waits for the client's word first; and without a certificate no word can be said.
    if Security().get_connection_args("client").get("ssl_context") is None:
        raise EngineError(
            f"{address} speaks TLS, and Dask's configuration here names no certificate",
            code="engine_address",
            hint="set distributed.comm.tls in Dask's configuration (ca-file, client.cert, client.key)",
        )


def _is_greeting(begin: bytes) -> bool:
    return len(begin) >= _LENGTH_BYTES and 0 < int.from_bytes(begin[:_LENGTH_BYTES], "little") < _LONGEST_GREETING
