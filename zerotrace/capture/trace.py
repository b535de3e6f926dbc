"""torch's profiler as a capture uses it: what it records, and how its trace becomes a file."""

from __future__ import annotations

import errno
import gzip
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch.profiler import ProfilerActivity, profile

from zerotrace.capture import device

_HOST_NAME = re.compile(rb'"host_name":\s*"(?:[^"\\]|\\.)*"')
_TRACE_NAME = re.compile(rb'"traceName":\s*"(?:[^"\\]|\\.)*"')

#: The path at the end of a trace lies in these bytes, however long it is.
_TAIL_BYTES = 1 << 16


class Activities(Enum):
    """What a profiler records."""

    DEVICE = "device"
    HOST_AND_DEVICE = "host_and_device"


def new_profiler(activities: Activities) -> profile:
    """A torch profiler. On a CPU there is no device to record."""
    if activities is Activities.DEVICE:
        return profile(activities=[ProfilerActivity.CUDA])
    if not device.is_cuda():
        return profile(activities=[ProfilerActivity.CPU])
    return profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], experimental_config=_sync_events())


def write_trace(profiler: profile, path: Path, host: str) -> None:
    """Write the trace of a profiler that has stopped, gzipped; the file appears whole or not at all.

    Args:
        profiler: the profiler.
        path: where the trace goes.
        host: what the trace calls this machine, in the place of its name.

    Raises:
        OSError: it could not be written; what there was of it is gone, so that there is room to say so.
    """
    plain = path.with_suffix("")
    partial = path.with_name(path.name + ".partial")
    try:
        with _plain_path(plain) as name:
            profiler.export_chrome_trace(name)
        _check_complete(plain)
        with plain.open("rb") as source, gzip.open(partial, "wb", compresslevel=6) as target:
            _copy_without_names(source, target, plain.name, host)
        partial.rename(path)
    finally:
        # Kineto writes to a name of its own first. If that fails it leaves the file there, and even keeps it open, so
        # that removing it alone would free no space.
        for left in (plain, plain.with_name(plain.name + ".tmp"), partial):
            if left.exists():
                os.truncate(left, 0)
                left.unlink()


def _copy_without_names(source: BinaryIO, target: gzip.GzipFile, name: str, host: str) -> None:
    """Copy a trace as Kineto has written it, but for what names the machine.

    These are ``host_name``, in the metadata before the events, and the path in ``traceName``, the last member of all.
    """
    for line in source:
        target.write(_HOST_NAME.sub(f'"host_name": "{host}"'.encode(), line))
        if b'"traceEvents"' in line:
            break
    size = os.fstat(source.fileno()).st_size
    while (middle := size - _TAIL_BYTES - source.tell()) > 0:
        target.write(source.read(min(middle, 1 << 20)))
    tail = source.read()
    end = tail.rfind(b'"traceName"')
    if end >= 0:
        tail = tail[:end] + _TRACE_NAME.sub(f'"traceName": "{name}"'.encode(), tail[end:])
    target.write(tail)


def _check_complete(path: Path) -> None:
    """Make sure that Kineto has written all of a trace: it says nothing when the disk is full."""
    end = b""
    if path.is_file():
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 64))
            end = file.read().rstrip()
    if not end.endswith(b"}"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path.name)


def _sync_events() -> Any:
    """Has Kineto record what waits for what on the device; ``None`` where this torch cannot ask for it."""
    try:
        return torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)
    except (AttributeError, TypeError):
        return None


@contextmanager
def _plain_path(path: Path) -> Iterator[str]:
    """Another path to the same place, for a moment: short, ASCII, and good also where a folder on the way is moved.

    Kineto writes the path that it is given into the trace, unescaped.
    """
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        link = Path("/proc/self/fd") / str(folder)
        yield str(link / path.name if link.exists() else path)
    finally:
        os.close(folder)
