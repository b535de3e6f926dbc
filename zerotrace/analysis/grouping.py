"""Numbers for groups of rows: one key for each combination of columns, positions, extremes and medians by key."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from zerotrace.intervals import Int64Array

_Integers = npt.NDArray[np.integer[Any]]

# Keys are put together by arithmetic as long as they fit.
_LIMIT = 1 << 62


def combined(*columns: _Integers) -> Int64Array:
    """One number for each distinct combination; ordered as the combinations are. All have shape ``(n,)``."""
    key = np.zeros(columns[0].size, dtype=np.int64)
    width = 1
    for column in columns:
        if not column.size:
            return key
        low = int(column.min())
        span = int(column.max()) - low + 1
        if span > _LIMIT // width:
            key, width = numbered(key)
            if span > _LIMIT // width:
                column, span = numbered(column)
                low = 0
        key = key * span + (column - low)
        width *= span
    return key


def ordinal(key: Int64Array) -> Int64Array:
    """Position of each entry among the entries of its key, in their order, from 0 on."""
    order = np.argsort(key, kind="stable")
    begin = np.maximum.accumulate(np.where(is_first(key[order]), np.arange(key.size), 0))
    position = np.empty(key.size, dtype=np.int64)
    position[order] = np.arange(key.size) - begin
    return position


def is_first(ordered: _Integers) -> npt.NDArray[np.bool_]:
    """Where a run of equal entries begins."""
    first = np.ones(ordered.size, dtype=bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return first


def numbered(key: _Integers) -> tuple[Int64Array, int]:
    """The number of each entry's key, in the order of the keys, and how many there are."""
    distinct, which = np.unique(key, return_inverse=True)
    return which.reshape(-1).astype(np.int64), int(distinct.size)


def extremes(which: Int64Array, values: Int64Array, count: int) -> tuple[Int64Array, Int64Array]:
    """The smallest and the largest value of each group.

    Args:
        which: group of each entry, from 0 on.
        values: as many entries.
        count: number of groups.
    """
    low = np.full(count, np.iinfo(np.int64).max, dtype=np.int64)
    high = np.full(count, np.iinfo(np.int64).min, dtype=np.int64)
    np.minimum.at(low, which, values)
    np.maximum.at(high, which, values)
    return low, high


def medians(which: Int64Array, values: Int64Array, count: int) -> npt.NDArray[np.float64]:
    """The median of each group; NaN for empty ones. Arguments as in :func:`extremes`."""
    order = np.lexsort((values, which))
    ordered = values[order].astype(np.float64)
    size = np.bincount(which, minlength=count)
    begin = np.cumsum(size) - size
    found = np.full(count, np.nan)
    some = np.flatnonzero(size)
    low, high = begin[some] + (size[some] - 1) // 2, begin[some] + size[some] // 2
    found[some] = (ordered[low] + ordered[high]) / 2
    return found
