"""A step taken apart, and the mean steps of ranks."""

from __future__ import annotations

from msgspec import Struct

from zerotrace.model.trust import FigureBounds

#: ``step`` of the one window that stands for a trace without ProfilerStep annotations.
STEP_ALL = -1


class StepWindow(Struct, frozen=True, kw_only=True):
    """The window of one step on one rank's host clock, half open."""

    rank: int
    step: int
    start_ns: int
    end_ns: int

    @property
    def span_ns(self) -> int:
        """Length of the window."""
        return self.end_ns - self.start_ns


class StepPartition(Struct, frozen=True, kw_only=True):
    """One step of one rank on one device, taken apart.

    ``span = compute + exposed + copy_only + idle`` and ``comm = overlapped + exposed``, to the
    nanosecond. All are ``None`` but the span where the window holds no device row: unknown, not idle.
    """

    rank: int
    device: int | None
    """Device index on the host; ``None`` in host mode."""
    step: int
    """Number of the ProfilerStep; :data:`STEP_ALL` for the window ``all``."""
    start_ns: int
    span_ns: int
    compute_ns: int | None
    comm_ns: int | None
    overlapped_ns: int | None
    exposed_ns: int | None
    copy_only_ns: int | None
    idle_ns: int | None
    exposed_transfer_ns: int | None = None
    """Exposed after the last member of the collective has started; ``None`` where peers are not in the run."""
    exposed_wait_ns: int | None = None
    """Exposed before that: waiting for a late rank."""
    blocking_queued_ns: int | None = None
    """Exposed with the next compute kernel launched already: the collective holds the device back."""
    blocking_sync_ns: int | None = None
    """Exposed with the next kernel's thread inside a synchronising call: the host waits for the device."""
    shadow_ns: int | None = None
    """Exposed with the host busy elsewhere: a faster collective wins nothing."""
    host_bound_ns: int | None = None
    """Idle until the launch call of the next row had returned."""
    stalled_ns: int | None = None
    """Idle after that: launched, but held back."""
    tail_ns: int | None = None
    """Idle after the window's last row."""
    unlinked_ns: int | None = None
    """Idle before rows whose launch is not in the trace."""
    other_idle_ns: int | None = None
    """``idle − host_bound``; all of it where causes are unknown."""
    overlap_ratio: float | None = None
    """``overlapped / comm``; ``None`` where there is no communication."""

    @property
    def known(self) -> bool:
        """Whether the window held any device row."""
        return self.compute_ns is not None

    @property
    def blocking_ns(self) -> int | None:
        """``queued + sync``: what faster communication could win."""
        if self.blocking_queued_ns is None or self.blocking_sync_ns is None:
            return None
        return self.blocking_queued_ns + self.blocking_sync_ns


class RankSummary(Struct, frozen=True, kw_only=True):
    """One rank's mean step over its known steps."""

    rank: int
    device: int | None
    num_steps: int
    span_ns: float
    compute_ns: float
    comm_ns: float
    overlapped_ns: float
    exposed_ns: float
    copy_only_ns: float
    idle_ns: float | None
    """``None`` when rows are attributed by launch."""
    overlap_ratio: float | None
    """Σ overlapped / Σ comm over the rank's steps."""
    exposed_transfer_ns: float | None = None
    exposed_wait_ns: float | None = None
    blocking_ns: float | None = None
    host_bound_ns: float | None = None
    other_idle_ns: float | None = None
    """``idle − host_bound``; all of it where causes are unknown."""
    bounds: FigureBounds | None = None
    """Where kernels of unknown class ran: the least and the most that figures can be; ``None`` without any."""
    outside_steps_ns: int
    """Device time of this rank that lies in no step window."""
