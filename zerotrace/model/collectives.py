"""Collectives in figures: by kind, who comes last, and how duration goes with size."""

from __future__ import annotations

from msgspec import Struct

from zerotrace.model.wire import CollectiveKind


class CollectiveFigures(Struct, frozen=True, kw_only=True):
    """All collectives of one name, phase, element type and group size.

    Sums are the mean of a step and rank, medians are over single collectives. ``None`` is unknown: wait and transfer
    where a collective was matched on no other rank, bytes where elements or their type are not in the trace.
    """

    name: str
    """As the trace spells it."""
    kind: CollectiveKind
    phase: str | None
    """``forward``, ``backward`` or ``step``; ``None`` where no label says."""
    dtype: str | None
    group: str | None
    """Member ranks and group name; ``None`` where the trace does not say, or where there are several."""
    group_size: int | None
    num_groups: int
    """Groups of that size."""
    num_calls: float
    """Collectives that a rank takes part in, a step."""
    num_unmatched: int
    """Rows, over all steps and ranks, without a partner on another rank."""
    size_bytes: float | None
    """S, a step."""
    duration_ns: float
    """From start to end on each rank, waiting included, a step."""
    transfer_ns: float | None
    """Shortest duration over the members, a step."""
    wait_ns: float | None
    """Until the last member arrives, a step."""
    exposed_ns: float
    """Of the duration, with no compute running, a step. Two that run at once count twice."""
    exposed_ratio: float | None
    """Its part of that of all collectives."""
    median_size_bytes: float | None
    median_transfer_ns: float | None
    median_skew_ns: float | None
    median_algbw_gbps: float | None
    median_busbw_gbps: float | None


class StepArrivals(Struct, frozen=True, kw_only=True):
    """How one rank arrives at the collectives of one step."""

    rank: int
    step: int
    num_collectives: int
    """Matched collectives that it takes part in."""
    num_last: int
    """Of these, at which it alone came last."""
    caused_wait_ns: int
    """What the other members of those waited, summed over members; not what they waited for its profiler to start."""


class CollectiveSample(Struct, frozen=True, kw_only=True):
    """Single collectives, for a picture: size and time of each. All columns have one entry a collective."""

    num_all: int
    """Matched collectives of known size and some duration, of which these are a part, or all."""
    figures: tuple[int, ...]
    """Index into the figures of the kinds."""
    size_bytes: tuple[int, ...]
    transfer_ns: tuple[int, ...]
    skew_ns: tuple[int, ...]
    step: tuple[int, ...]
    rank: tuple[int, ...]
    """The lowest rank that takes part; where the collective lies on its clock, nanoseconds since the Unix epoch:"""
    start_ns: tuple[int, ...]
    end_ns: tuple[int, ...]


class Collectives(Struct, frozen=True, kw_only=True):
    """What the collectives of a run's steps are, in figures."""

    num_steps: int
    """Steps that the means are over."""
    num_matched: int
    """Collectives that were found on more than one rank."""
    num_unmatched: int
    """Rows without a partner."""
    kinds: tuple[CollectiveFigures, ...]
    """The one with the most exposed time first."""
    arrivals: tuple[StepArrivals, ...]
    """By rank and step; empty where nothing was matched."""
    sample: CollectiveSample
