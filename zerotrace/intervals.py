"""Unions of half-open intervals on the int64 nanosecond axis, and their algebra.

An :class:`Intervals` is a set of points: sorted, disjoint, with no empty and no touching members. So its
length is a sum, and every figure that zerotrace prints is the length of one such set.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Int64Array = npt.NDArray[np.int64]

# Membership of a point in (a, b) is coded as a + 2·b; each operator keeps some of the four codes.
_IN_BOTH = np.array([False, False, False, True])
_IN_EITHER = np.array([False, True, True, True])
_IN_FIRST_ONLY = np.array([False, True, False, False])


class Intervals(Struct, frozen=True, eq=False):
    """A union of half-open intervals ``[start, end)``.

    Attributes:
        starts: shape ``(n,)``, int64 nanoseconds, strictly increasing.
        ends: shape ``(n,)``, int64 nanoseconds, with ``starts < ends`` and ``ends[:-1] < starts[1:]``.
    """

    starts: Int64Array
    ends: Int64Array

    @classmethod
    def union(cls, starts: npt.ArrayLike, ends: npt.ArrayLike) -> Intervals:
        """The union of any intervals, in any order, overlapping or not.

        Args:
            starts: shape ``(n,)``, nanoseconds.
            ends: shape ``(n,)``, nanoseconds. Intervals with ``end <= start`` hold no point and vanish.

        Raises:
            ValueError: if the two differ in length.
        """
        first = np.asarray(starts, dtype=np.int64)
        last = np.asarray(ends, dtype=np.int64)
        if first.shape != last.shape or first.ndim != 1:
            raise ValueError(
                f"starts and ends must be one-dimensional and equally long, got {first.shape}, {last.shape}"
            )
        solid = last > first
        first, last = first[solid], last[solid]
        if first.size == 0:
            return cls.empty()
        order = np.argsort(first, kind="stable")
        first = first[order]
        reach = np.maximum.accumulate(last[order])
        # A new member begins where a start lies beyond everything before it; touching is the same member.
        fresh = np.flatnonzero(first[1:] > reach[:-1]) + 1
        return cls(first[np.concatenate(([0], fresh))], reach[np.concatenate((fresh - 1, [first.size - 1]))])

    @classmethod
    def empty(cls) -> Intervals:
        """The set without a point."""
        nothing = np.empty(0, dtype=np.int64)
        return cls(nothing, nothing)

    @classmethod
    def single(cls, start: int, end: int) -> Intervals:
        """One interval; the empty set if ``end <= start``."""
        return cls.union([start], [end])

    def __len__(self) -> int:
        """Number of disjoint members."""
        return int(self.starts.size)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Intervals):
            return NotImplemented
        return np.array_equal(self.starts, other.starts) and np.array_equal(self.ends, other.ends)

    __hash__ = None  # type: ignore[assignment]

    @property
    def length(self) -> int:
        """Total length in nanoseconds."""
        return int((self.ends - self.starts).sum())

    def __and__(self, other: Intervals) -> Intervals:
        return self._combine(other, _IN_BOTH)

    def __or__(self, other: Intervals) -> Intervals:
        return self._combine(other, _IN_EITHER)

    def __sub__(self, other: Intervals) -> Intervals:
        return self._combine(other, _IN_FIRST_ONLY)

    def clip(self, start: int, end: int) -> Intervals:
        """The part inside ``[start, end)``."""
        if end <= start:
            return self.empty()
        low = int(np.searchsorted(self.ends, start, side="right"))
        high = int(np.searchsorted(self.starts, end, side="left"))
        if low >= high:
            return self.empty()
        starts, ends = self.starts[low:high].copy(), self.ends[low:high].copy()
        starts[0] = max(int(starts[0]), start)
        ends[-1] = min(int(ends[-1]), end)
        return Intervals(starts, ends)

    def around(self, other: Intervals) -> Intervals:
        """The part within the hull of another set: all of it that can meet that set."""
        return self.clip(int(other.starts[0]), int(other.ends[-1])) if len(other) else self.empty()

    def length_before(self, times: Int64Array) -> Int64Array:
        """How much of the set lies before each time.

        Args:
            times: shape ``(n,)``, nanoseconds, in any order.

        Returns:
            Shape ``(n,)``. The length within ``[a, b)`` is the difference of two of them.
        """
        if not len(self):
            return np.zeros(times.shape, dtype=np.int64)
        lengths = self.ends - self.starts
        before = np.concatenate(([0], np.cumsum(lengths)))
        member = np.searchsorted(self.starts, times, side="right") - 1
        reached = np.minimum(times - self.starts[member], lengths[member])
        return np.where(member < 0, 0, before[member] + reached)

    def within(self, begins: Int64Array, ends: Int64Array) -> Int64Array:
        """How much of the set lies in each window ``[begin, end)``; shape ``(n,)``, for ``n`` windows in any order."""
        return self.length_before(ends) - self.length_before(begins)

    def holds(self, points: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether each point lies in the set; shape ``(n,)``."""
        member = np.searchsorted(self.starts, points, side="right") - 1
        return np.asarray((member >= 0) & (points < np.append(self.ends, 0)[member]), dtype=bool)

    def _combine(self, other: Intervals, keep: npt.NDArray[np.bool_]) -> Intervals:
        """Sweeps over all borders; keeps the stretches whose membership code is in ``keep``."""
        borders = np.concatenate((self.starts, self.ends, other.starts, other.ends))
        if borders.size == 0:
            return self.empty()
        steps = np.repeat(np.array([1, -1, 2, -2], dtype=np.int8), [len(self), len(self), len(other), len(other)])
        order = np.argsort(borders, kind="stable")
        borders = borders[order]
        inside = keep[np.cumsum(steps[order], dtype=np.int64)]
        # Between two equal borders the code is transient, but that stretch has no length, so it is dropped.
        kept = np.flatnonzero(inside[:-1] & (borders[1:] > borders[:-1]))
        return Intervals.union(borders[kept], borders[kept + 1])


def unions_of_groups(
    starts: Int64Array, ends: Int64Array, groups: Int64Array
) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The union of the intervals of each group, all at once.

    Args:
        starts: shape ``(n,)``, nanoseconds.
        ends: shape ``(n,)``. Intervals with ``end <= start`` vanish.
        groups: shape ``(n,)``, at least 0.

    Returns:
        Starts and ends of the disjoint members, and the group of each; sorted by group, then start.
    """
    solid = ends > starts
    starts, ends, groups = starts[solid], ends[solid], groups[solid]
    if not starts.size:
        return starts, ends, groups
    order = np.lexsort((starts, groups))
    starts, ends, groups = starts[order], ends[order], groups[order]
    # How far a group reaches, by the rank of its ends: ranks leave room for the group's number above them.
    distinct, rank = np.unique(ends, return_inverse=True)
    reach = distinct[np.maximum.accumulate(groups * distinct.size + rank) - groups * distinct.size]
    fresh = np.flatnonzero((starts[1:] > reach[:-1]) | (groups[1:] != groups[:-1])) + 1
    first, last = np.concatenate(([0], fresh)), np.concatenate((fresh - 1, [starts.size - 1]))
    return starts[first], reach[last], groups[first]
