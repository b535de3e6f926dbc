"""The memory window: what lives where after a step, and how it came there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from zerotrace.capture import device
from zerotrace.capture.handoff import write_json
from zerotrace.capture.owners import OwnersFile, find_owners, find_unlocated
from zerotrace.capture.snapshot import start_history, take_snapshot, write_snapshot
from zerotrace.capture.windows import Window
from zerotrace.model import WindowKind


class MemoryWindow(Window):
    """Steps with the allocator's history on; then, with the device idle, the owner of every storage and a snapshot.

    On a CPU, torch's allocator keeps no history: there it is the owners alone.

    Args:
        num_steps: its steps.
        engine: what trains.
        owners_path: where the owners go.
        snapshot_path: where the snapshot goes.
    """

    phase = "memory"
    kind = WindowKind.MEMORY
    writes = True

    def __init__(self, num_steps: int, engine: Any, owners_path: Path, snapshot_path: Path) -> None:
        super().__init__(num_steps)
        self._engine = engine
        self._owners_path = owners_path
        self._snapshot_path = snapshot_path
        self._workspace_bytes: int | None = None
        self._step = -1

    def start(self) -> None:
        """Line the ranks up and start recording."""
        torch.distributed.barrier()
        device.synchronize()
        if device.is_cuda():
            self._workspace_bytes = start_history()
        device.reset_peak_memory()

    def begin_step(self, step: int) -> None:
        """Note which step it is."""
        self._step = step

    def finish(self) -> None:
        """Find the owners, take the snapshot, and write both."""
        gauges = device.read_memory()
        snapshot = take_snapshot() if device.is_cuda() else None
        storages = find_owners(self._engine)
        owners = OwnersFile(
            rank=torch.distributed.get_rank(),
            step=self._step,
            device=str(device.current()),
            allocated_bytes=gauges.resident_bytes if gauges else None,
            peak_bytes=gauges.peak_bytes if gauges else None,
            reserved_bytes=gauges.reserved_bytes if gauges else None,
            workspace_bytes=self._workspace_bytes,
            storages=storages,
            unlocated=find_unlocated(self._engine, str(device.current())),
        )
        write_json(self._owners_path, owners)
        self.files["owners_file"] = self._owners_path.name
        if snapshot is not None:
            write_snapshot(snapshot, self._snapshot_path)
            self.files["snapshot_file"] = self._snapshot_path.name
