"""torch's profiler as a capture uses it: what it records, and how its trace becomes a file."""

from __future__ import annotations

import errno
import gzip
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from zerotrace.capture import device


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


def write_trace(profiler: profile, path: Path) -> None:
    """Write the trace of a profiler that has stopped, gzipped; the file appears whole or not at all.

    Raises:
        OSError: it could not be written; what there was of it is gone, so that there is room to say so.
    """
    plain = path.with_suffix("")
    partial = path.with_name(path.name + ".partial")
    try:
        with _working_in(path.parent):
            profiler.export_chrome_trace(plain.name)
        _check_complete(plain)
        with plain.open("rb") as source, gzip.open(partial, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        partial.rename(path)
    finally:
        # Kineto writes to a name of its own first. If that fails it leaves the file there, and even keeps it open, so
        # that removing it alone would free no space.
        for left in (plain, plain.with_name(plain.name + ".tmp"), partial):
            if left.exists():
                os.truncate(left, 0)
                left.unlink()


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
def _working_in(folder: Path) -> Iterator[None]:
    """Makes ``folder`` the working folder for a moment.

    Kineto writes the path that it is given into the trace (``traceName``): a bare file name says nothing about the
    machine.
    """
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
