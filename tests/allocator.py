"""A caching allocator as small as it can be, so that a test shows what was allocated and what must come out.

    memory = TinyAllocator()
    params = memory.allocate(25 * MIB, stack=INIT)
    memory.record()                      # the history begins
    memory.free(memory.allocate(3 * MIB, stack=FORWARD), stack=BACKWARD)
    memory.write(folder / "rank_0.snapshot.pickle.gz")

It follows the rules of torch's: small and large segments, best fit, splitting, merging of neighbours.
"""

from __future__ import annotations

import gzip
import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MIB = 1 << 20
Stack = tuple[tuple[str, str, int], ...]


@dataclass
class Block:
    address: int
    size: int
    requested: int = 0
    live: bool = False
    stack: Stack = ()


@dataclass
class Segment:
    address: int
    size: int
    small: bool
    blocks: list[Block] = field(default_factory=list)


class TinyAllocator:
    """One device's memory."""

    def __init__(self, device: int = 0) -> None:
        self.device = device
        self.segments: list[Segment] = []
        self.events: list[dict[str, Any]] | None = None
        self.allocated = 0
        self.peak = 0
        self._frames: dict[Stack, list[dict[str, Any]]] = {}
        self._next = 0x7F00_0000_0000
        self._time_us = 1_790_000_000_000_000

    def record(self) -> None:
        """Begin the history, and the gauge of the peak."""
        self.events = []
        self.peak = self.allocated

    def allocate(self, requested: int, stack: Stack = ()) -> int:
        """Give a block; returns its address."""
        size = max(-(-requested // 512), 1) * 512
        small = size <= MIB
        fits = [(b.size, b.address, s) for s in self.segments if s.small == small for b in s.blocks
                if not b.live and b.size >= size]  # fmt: skip
        _, address, segment = min(fits, key=lambda fit: fit[:2]) if fits else (0, 0, self._segment(size, small))
        block = next(b for b in segment.blocks if b.address == address) if fits else segment.blocks[0]
        rest = block.size - size
        if rest >= 512 if small else rest > MIB:
            segment.blocks.insert(segment.blocks.index(block) + 1, Block(block.address + size, rest))
            block.size = size
        block.live, block.requested, block.stack = True, requested, stack
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        self._note("alloc", block.address, requested, stack)
        return block.address

    def free(self, address: int, stack: Stack = ()) -> None:
        """Take a block back and merge it with free neighbours."""
        segment = next(s for s in self.segments if s.address <= address < s.address + s.size)
        block = next(b for b in segment.blocks if b.address == address)
        self._note("free_requested", address, block.requested, stack)
        self._note("free_completed", address, block.requested, stack)
        self.allocated -= block.size
        block.live = False
        merged: list[Block] = []
        for other in segment.blocks:
            if merged and not merged[-1].live and not other.live:
                merged[-1].size += other.size
            else:
                merged.append(other)
        segment.blocks = merged

    def block(self, address: int) -> Block:
        """The block at an address."""
        return next(b for s in self.segments for b in s.blocks if b.address == address)

    def snapshot(self) -> dict[str, Any]:
        """What ``torch.cuda.memory._snapshot()`` would return."""
        segments = [
            {"device": self.device, "address": segment.address, "total_size": segment.size, "is_expandable": False,
             "segment_type": "small" if segment.small else "large", "segment_pool_id": (0, 0),
             "blocks": [{"address": block.address, "size": block.size, "requested_size": block.requested,
                         "state": "active_allocated" if block.live else "inactive",
                         "frames": self._as_frames(block.stack if self.events is not None else ())}
                        for block in segment.blocks]}
            for segment in self.segments
        ]  # fmt: skip
        traces: list[list[dict[str, Any]]] = [[] for _ in range(self.device + 1)]
        traces[self.device] = self.events or []
        return {"segments": segments, "device_traces": traces, "allocator_settings": {"max_split_size": -1}}

    def write(self, path: Path) -> Path:
        """Write the snapshot as a gzipped pickle."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(pickle.dumps(self.snapshot(), 4)))
        return path

    def _segment(self, size: int, small: bool) -> Segment:
        total = 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        segment = Segment(self._next, total, small, [Block(self._next, total)])
        self._next += total + 64 * MIB
        self.segments.append(segment)
        self._note("segment_alloc", segment.address, total, ())
        return segment

    def _note(self, action: str, address: int, size: int, stack: Stack) -> None:
        self._time_us += 10
        if self.events is not None:
            self.events.append({"action": action, "addr": address, "size": size, "stream": 0,
                                "time_us": self._time_us, "frames": self._as_frames(stack)})  # fmt: skip

    def _as_frames(self, stack: Stack) -> list[dict[str, Any]]:
        if stack not in self._frames:
            self._frames[stack] = [{"filename": f, "name": n, "line": line} for f, n, line in stack]
        return self._frames[stack]
