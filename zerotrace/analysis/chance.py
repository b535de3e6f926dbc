"""How often chance puts as much on one side as was seen.

Things of different size fall to a side with a known chance each. They are ranked by size, 1 for the smallest, and the
places of those on the side are added up: a sum that no single large one dominates, and in which small ones count for
little. Where the chance is one half each, its distribution is that of Wilcoxon's signed-rank test.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray

FloatArray = npt.NDArray[np.float64]

#: What chance gives in at most this part of runs is not called chance.
SIGNIFICANCE = 0.01

#: Things up to which chances are worked out exactly.
MOST_EXACT = 200

# Where the saddlepoint is looked for.
_MOST_TILT = 600.0
_HALVINGS = 50


def chance_of_sum(places: Int64Array, share: FloatArray, own: BoolArray) -> float:
    """The chance that the places that fall to one side add up to at least what its own do.

    Args:
        places: place of each thing by size, shape ``(n,)``; any positive whole numbers that rise with size.
        share: chance that it falls to the side, shape ``(n,)``.
        own: which of them are its own, shape ``(n,)``.

    Returns:
        The exact chance up to :data:`MOST_EXACT` things, within a few per cent of it beyond.
    """
    total = int(places[own].sum())
    if places.size > MOST_EXACT:
        return _tail(places, share, total)
    if not total:
        return 1.0
    below, reached = np.zeros(total), 0.0  # chances of the sums below the total; that of having reached it
    below[0] = 1
    for place, one in zip(places.tolist(), share.tolist()):
        reached += one * float(below[max(total - place, 0) :].sum())
        moved = one * below[: max(total - place, 0)]
        below *= 1 - one
        below[place:] += moved
    return min(1.0, reached)


def _tail(places: Int64Array, share: FloatArray, total: int) -> float:
    """The chance of a sum of at least ``total`` by its saddlepoint (Lugannani and Rice, 1980).

    A normal distribution would make far too little of the tail where the shares are small.
    """
    total -= int(places[share >= 1].sum())
    open_ = (share > 0) & (share < 1)
    places, share = places[open_], share[open_]
    most = int(places.sum())
    if total <= 0 or total > most:
        return float(total <= 0)
    if total == most:
        return float(np.exp(np.log(share).sum()))
    weight, goal = places / places.max(), total / int(places.max())
    odds = np.log(share) - np.log1p(-share)
    mean, variance = float((share * weight).sum()), float((share * (1 - share) * weight**2).sum())
    if goal - mean < 0.01 * math.sqrt(variance):
        return 0.5 * math.erfc((goal - mean) / math.sqrt(2 * variance))
    low, high = 0.0, 1.0
    while _tilted_mean(weight, odds, high) < goal and high < _MOST_TILT:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _tilted_mean(weight, odds, middle) < goal else (low, middle)
    tilted = 1 / (1 + np.exp(-np.clip(odds + high * weight, -_MOST_TILT, _MOST_TILT)))
    generated = float(np.logaddexp(np.log1p(-share), np.log(share) + high * weight).sum())
    root = math.sqrt(max(2 * (high * goal - generated), 0.0))
    slope = high * math.sqrt(float((tilted * (1 - tilted) * weight**2).sum()))
    if not root or not slope:
        return 0.5
    density = math.exp(-(root**2) / 2) / math.sqrt(2 * math.pi)
    return min(1.0, max(0.0, 0.5 * math.erfc(root / math.sqrt(2)) + density * (1 / slope - 1 / root)))


def _tilted_mean(weight: FloatArray, odds: FloatArray, tilt: float) -> float:
    return float((weight / (1 + np.exp(-np.clip(odds + tilt * weight, -_MOST_TILT, _MOST_TILT)))).sum())


def largest(sizes: Int64Array) -> Int64Array:
    """Which of these are the :data:`MOST_EXACT` largest, in their order: of them chances are exact."""
    return np.sort(np.argsort(-sizes, kind="stable")[:MOST_EXACT])


def places_of(sizes: Int64Array) -> Int64Array:
    """Twice the place of each by size, from 1 on; equal ones share the mean of their places. Shape as ``sizes``."""
    _, which, count = np.unique(sizes, return_inverse=True, return_counts=True)
    before = np.cumsum(count) - count
    return np.asarray((2 * before + count + 1)[which.ravel()], dtype=np.int64)


def log_num_sets(size: int, chosen: int) -> float:
    """Logarithm of the number of sets of ``chosen`` among ``size``."""
    return math.lgamma(size + 1) - math.lgamma(chosen + 1) - math.lgamma(size - chosen + 1)
