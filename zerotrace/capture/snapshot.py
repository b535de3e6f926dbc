"""The CUDA allocator's history and snapshot: Python frames only, and nothing that names the machine."""

from __future__ import annotations

import functools
import gzip
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

_INSTALLED = ("site-packages/", "dist-packages/")


def start_history() -> int:
    """Have the allocator record each allocation with its Python stack.

    The workspaces of cuBLAS are given back first: the step then allocates them anew, and they too get a stack.

    Returns:
        Bytes of these workspaces.
    """
    before = torch.cuda.memory_allocated()
    clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
    if clear is not None:
        clear()
    workspace_bytes: int = before - torch.cuda.memory_allocated()
    torch.cuda.memory._record_memory_history(enabled="all", context="all", stacks="python")
    return workspace_bytes


def take_snapshot() -> dict[str, Any]:
    """The allocator's blocks and the recorded history, cleaned; ends the recording."""
    snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    return clean_snapshot(snapshot)


def clean_snapshot(snapshot: dict[str, Any]) -> dict[str, Any]:
    """Reduce the file names of all frames to what says nothing about the machine, in place.

    Frames are shared between entries, so each is met many times; a reduced name stays as it is.
    """
    entries = [entry for trace in snapshot.get("device_traces", ()) for entry in trace]
    for segment in snapshot.get("segments", ()):
        entries.append(segment)
        entries += segment.get("blocks", ())
    seen: set[int] = set()
    for entry in entries:
        frames = entry.get("frames")
        if not frames or id(frames) in seen:
            continue
        seen.add(id(frames))
        for frame in frames:
            frame["filename"] = source_name(frame["filename"])
    return snapshot


def write_snapshot(snapshot: Mapping[str, Any], path: Path) -> None:
    """Write a snapshot, gzipped; the file appears whole or not at all. It holds plain containers alone."""
    partial = path.with_name(path.name + ".partial")
    with gzip.open(partial, "wb", compresslevel=6) as target:
        pickle.dump(dict(snapshot), target, protocol=4)
    partial.rename(path)


@functools.cache
def source_name(path: str) -> str:
    """A source file's path from its package on (``torch/optim/adamw.py``), or its name alone."""
    if not path.startswith("/"):
        return path
    for mark in _INSTALLED:
        _, found, inside = path.rpartition(mark)
        if found:
            return inside
    source = Path(path)
    top = source.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return str(source.relative_to(top))
