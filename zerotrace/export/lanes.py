"""Rows on tracks on which slices must nest: what would cross another goes on a track of its own beside it."""

from __future__ import annotations

import heapq

import numpy as np

from zerotrace.intervals import Int64Array


def lanes(start: Int64Array, end: Int64Array, *, nests: bool) -> list[Int64Array]:
    """Gives each row a lane, on each of which no two rows cross.

    Lane 0 takes all that it can. On it rows may nest where ``nests`` says so, as calls of a thread do; else they only
    follow each other, as kernels of a stream do. Rows that would cross one of lane 0 go to further lanes, where they
    only follow each other, on as few as possible.

    Args:
        start: shape ``(n,)``, nanoseconds.
        end: shape ``(n,)``, exclusive, no earlier than ``start``.
        nests: whether a row may lie inside another one of lane 0.

    Returns:
        The rows of each lane by their index, in the order in which they are to be written: by start, longest first.
    """
    order = np.lexsort((-end, start))
    if len(order) < 2 or (start[order][1:] >= end[order][:-1]).all():
        return [order] if len(order) else []
    first: list[int] = []
    others: list[list[int]] = []
    open_ends: list[int] = []
    free: list[tuple[int, int]] = []  # (end of its last row, lane among the others)
    for row, a, b in zip(order.tolist(), start[order].tolist(), end[order].tolist()):
        while open_ends and open_ends[-1] <= a:
            open_ends.pop()
        if not open_ends or (nests and b <= open_ends[-1]):
            open_ends.append(b)
            first.append(row)
        elif free and free[0][0] <= a:
            _, lane = heapq.heapreplace(free, (b, free[0][1]))
            others[lane].append(row)
        else:
            heapq.heappush(free, (b, len(others)))
            others.append([row])
    return [np.array(rows, dtype=np.int64) for rows in (first, *others)]
