"""The reduction of gradients in a step of one rank."""

from __future__ import annotations

from msgspec import Struct


class ReductionStep(Struct, frozen=True, kw_only=True):
    """Buckets of gradients that a rank reduces in one step."""

    rank: int
    step: int
    num_reductions: int
    largest_bytes: int | None
    """S of the largest bucket; ``None`` where the trace does not say."""
    reduce_ns: int
    """Time in which any of them runs, waiting for other ranks included."""
    exposed_ns: int
    """Of it, with no compute running."""
    blocking_queued_ns: int | None
    """Of the exposed time: the next compute kernel had been launched. ``None`` in host mode."""
    blocking_sync_ns: int | None
    """Of it: the host was inside a synchronising call."""

    @property
    def blocking_ns(self) -> int | None:
        """What the reduction holds compute back."""
        if self.blocking_queued_ns is None or self.blocking_sync_ns is None:
            return None
        return self.blocking_queued_ns + self.blocking_sync_ns
