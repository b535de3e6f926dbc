"""A second witness of what holds compute back: the waits that streams and threads were given."""

from __future__ import annotations

from msgspec import Struct


class BlockingEvidence(Struct, frozen=True, kw_only=True):
    """Blocking time of one step of one rank on one device, and how much of it the ``cuda_sync`` rows confirm.

    ``blocking_queued`` and ``blocking_sync`` of the partition are told by launches. Where the trace has
    ``cuda_sync`` rows, they say which stream was made to wait and which call waited for what: time that these rows
    confirm really waited for a collective. What is left of each is the difference of the two readings.
    """

    rank: int
    device: int
    step: int
    queued_ns: int
    """Queued by launches, as in the partition."""
    queued_confirmed_ns: int
    """Of it, with a running collective that the kernel had to wait for: on its own stream, or through a wait of its
    stream."""
    sync_ns: int
    """Sync by launches, as in the partition."""
    sync_confirmed_ns: int
    """Of it, with a running collective for whose end the call had to wait."""
    sync_unrecorded_ns: int
    """Of it, inside calls for which CUDA writes no synchronisation row: asynchronous copies, allocation, freeing."""

    @property
    def blocking_ns(self) -> int:
        """Blocking by launches."""
        return self.queued_ns + self.sync_ns

    @property
    def confirmed_ns(self) -> int:
        """Blocking that the waits confirm."""
        return self.queued_confirmed_ns + self.sync_confirmed_ns

    @property
    def queued_free_ns(self) -> int:
        """Queued behind no collective: launch latency, or a copy or set ahead of it in its own stream."""
        return self.queued_ns - self.queued_confirmed_ns

    @property
    def sync_elsewhere_ns(self) -> int:
        """In a call that waited for something else than a running collective."""
        return self.sync_ns - self.sync_confirmed_ns - self.sync_unrecorded_ns


class BlockingCheck(Struct, frozen=True, kw_only=True):
    """Both readings of blocking time side by side."""

    sentence: str
    """What the comparison says."""
    num_waits: int
    """Waits of a stream for an event in the traces."""
    num_named_waits: int
    """Of these, with the stream that they wait for. CUDA from 12.9 on leaves it out under today's profilers; then
    a wait may be for any work that was launched before it, as far as times allow."""
    confirmed_ratio: float | None
    """Confirmed / blocking by launches; ``None`` where nothing blocks."""
    steps: tuple[BlockingEvidence, ...]
