"""The clocks of a run's hosts, as its collectives show them."""

from __future__ import annotations

from msgspec import Struct


class HostClock(Struct, frozen=True, kw_only=True):
    """The clock of one host beside that of the first host, which is the lowest rank's."""

    host: str | None
    """As the traces name it, else ``host N`` of the manifest; ``None`` where neither does."""
    ranks: tuple[int, ...]
    offset_ns: int | None
    """How far it is ahead: what is taken from the times of its ranks where ranks are compared. ``None`` where no
    collective connects the host with the others: its times are compared as they are."""
    num_ends: int
    """Ends of matched collectives on this host that the two figures below are of."""
    residual_median_ns: float | None
    """Median of the absolute differences that are left between ends here and ends of the same collectives on their
    lowest ranks; ``None`` without any."""
    residual_worst_ns: int | None
    """The largest of them."""


class ClockReport(Struct, frozen=True, kw_only=True):
    """How well the ends of matched collectives agree, once offsets between hosts are taken off."""

    hosts: tuple[HostClock, ...]
    num_ends: int
    """Ends that were compared: of collectives that end on all members at one moment, the lowest ranks' not counted."""
    residual_median_ns: float | None
    """Median absolute difference to the lowest rank's end; ``None`` without any."""
    residual_worst_ns: int | None

    def offset_of(self, rank: int) -> int:
        """What is taken from a rank's times to compare them with other ranks', nanoseconds; 0 where unknown."""
        return next((clock.offset_ns or 0 for clock in self.hosts if rank in clock.ranks), 0)
