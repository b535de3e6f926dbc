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


def chance_of_sum(places: Int64Array, share: FloatArray, own: BoolArray) -> float:
    """The chance that the places that fall to one side add up to at least what its own do.

    Args:
        places: place of each thing by size, shape ``(n,)``; any positive whole numbers that rise with size.
        share: chance that it falls to the side, shape ``(n,)``.
        own: which of them are its own, shape ``(n,)``.

    Returns:
        The exact chance up to :data:`MOST_EXACT` things, that of a normal distribution of equal mean and variance
        beyond.
    """
    total = int(places[own].sum())
    if places.size > MOST_EXACT:
        mean, variance = float((share * places).sum()), float((share * (1 - share) * places**2).sum())
        return 0.5 * math.erfc((total - mean) / math.sqrt(2 * variance))
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
