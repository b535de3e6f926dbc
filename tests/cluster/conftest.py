"""A Dask and a Ray cluster on this machine, two workers each, for all tests here."""

from __future__ import annotations

import logging
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Ray reads these when it is imported. It listens beyond loopback: whoever does not know the token cannot use it.
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")


@contextmanager
def dask_cluster() -> Iterator[str]:
    """A Dask cluster of its own."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        silence_logs=logging.CRITICAL,
    ) as cluster:
        yield cluster.scheduler_address


@pytest.fixture(scope="session")
def dask_address() -> Iterator[str]:
    with dask_cluster() as address:
        yield address


_RAY = """
import sys, ray
context = ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, log_to_driver=False)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    pytest.importorskip("joblib")
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", _RAY]
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.communicate("")


@pytest.fixture(params=["dask", "ray"])
def cluster(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Kind and address of a cluster."""
    return request.param, request.getfixturevalue(f"{request.param}_address")
