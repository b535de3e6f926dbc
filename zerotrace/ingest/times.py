"""Decimal microseconds, as Kineto writes them, to int64 nanoseconds without losing one."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt

from zerotrace.intervals import Int64Array

#: A float64 resolves a thousandth up to here (its spacing is below 0.001); Kineto's relative times stay below.
FLOAT_EXACT_BELOW_US = float(1 << 43)

#: Nothing real lies further from the epoch than this (year 2041), and nothing lasts longer than a year. Together with
#: the base, times within these limits never leave int64 nanoseconds.
MAX_US = float(1 << 51)
MAX_DURATION_US = 366 * 86400e6
MAX_BASE_NS = 1 << 62


def floats_to_ns(microseconds: npt.NDArray[np.float64]) -> Int64Array:
    """Nanoseconds of floats that were parsed from decimal text with up to three decimals.

    ``round(us * 1000)`` is one nanosecond off in 0.3 % of cases, because the product is rounded once more;
    the whole part and the fraction are therefore scaled apart.

    Args:
        microseconds: shape ``(n,)``, each below :data:`FLOAT_EXACT_BELOW_US`.

    Returns:
        Shape ``(n,)``, int64 nanoseconds.
    """
    whole = np.floor(microseconds)
    fraction = np.rint((microseconds - whole) * 1000.0)
    return whole.astype(np.int64) * 1000 + fraction.astype(np.int64)


def text_to_ns(text: str) -> int:
    """Nanoseconds of one decimal number of microseconds, exact at any size.

    Raises:
        ValueError: if the text is not a finite number in range.
    """
    try:
        value = Decimal(text)
    except InvalidOperation as error:
        raise ValueError(f"not a number: {text!r}") from error
    if not value.is_finite() or abs(value) > MAX_US:
        raise ValueError(f"out of range: {text!r}")
    return round(value * 1000)


def to_microseconds(values: Sequence[Any]) -> npt.NDArray[np.float64]:
    """Numbers as float64; NaN for whatever is not a finite number in range.

    Args:
        values: what the JSON held: int, float, numeric text, or anything else.
    """
    try:
        # One pass in C for the usual case; bool and None would slip through as numbers or NaN, which is harmless.
        numbers = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.fromiter((_number(value) for value in values), np.float64, len(values))
    if numbers.shape != (len(values),):  # lists in the place of numbers
        numbers = np.fromiter((_number(value) for value in values), np.float64, len(values))
    numbers[~(np.abs(numbers) <= MAX_US)] = np.nan
    return numbers


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
