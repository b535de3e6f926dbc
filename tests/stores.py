"""A real S3 server on this machine, and runs that lie in it."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

#: The rights of a test; the secret must never be seen anywhere.
KEY, SECRET = "AKIATESTTESTTEST", "verysecretvalue0123456789"


@dataclass
class Server:
    """Where it listens, and what it was asked."""

    endpoint: str
    asked: list[str] = field(default_factory=list)
    """``GET /bucket/name`` ... in order."""

    def environment(self, **changes: str) -> dict[str, str]:
        """What makes s3fs find it."""
        return {
            **os.environ,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            **changes,
        }

    def requests(self, method: str, ending: str = "") -> list[str]:
        """Paths that were asked for by a method."""
        found = [line.split(" ", 1) for line in self.asked]
        return [path for verb, path in found if verb == method and path.partition("?")[0].endswith(ending)]


@dataclass
class Bucket:
    """A bucket of a test's own."""

    server: Server
    name: str
    fs: Any

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def upload(self, folder: Path, to: str) -> str:
        """Puts the files of a folder there, and says where."""
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "analysis" not in path.relative_to(folder).parts:
                self.fs.put_file(str(path), f"{self.name}/{to}/{path.relative_to(folder).as_posix()}")
        return f"{self.url}/{to}"

    def names(self, below: str) -> list[str]:
        """What lies below a folder, by path from there."""
        self.fs.invalidate_cache()
        root = f"{self.name}/{below}/"
        return sorted(name.removeprefix(root) for name in self.fs.find(root))

    def read(self, name: str) -> bytes:
        return bytes(self.fs.cat_file(f"{self.name}/{name}"))

    def write(self, name: str, data: bytes) -> None:
        self.fs.pipe_file(f"{self.name}/{name}", data)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[Server]:
    """An S3 server."""
    from moto.server import ThreadedMotoServer

    log = logging.getLogger("werkzeug")
    listener = _Listener()
    log.addHandler(listener)
    log.setLevel(logging.INFO)
    log.propagate = False
    started = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    started.start()
    host, port = started.get_host_and_port()
    server = Server(f"http://{host}:{port}")
    listener.server = server
    yield server
    started.stop()
    log.removeHandler(listener)


@pytest.fixture
def bucket(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """An empty bucket, which this process and its children reach without further options."""
    import fsspec

    for name, value in s3_server.environment().items():
        monkeypatch.setenv(name, value)
    fs = fsspec.filesystem("s3", endpoint_url=s3_server.endpoint, key=KEY, secret=SECRET, skip_instance_cache=True)
    name = f"bucket-{secrets.token_hex(4)}"
    fs.mkdir(name)
    s3_server.asked.clear()
    fsspec.filesystem("s3").clear_instance_cache()  # another server's, from another module
    return Bucket(s3_server, name, fs)


class _Listener(logging.Handler):
    server: Server | None = None

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r'"([A-Z]+) (\S+) HTTP', re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage()))
        if found and self.server is not None:
            self.server.asked.append(f"{found[1]} {found[2]}")
