"""Conditions on one figure, as people write them: ``exposed_ns > 20ms``, ``peak_bytes >= 13GiB``."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from decimal import Decimal

from msgspec import Struct

from zerotrace.model import Unit

OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}

#: What a value may end with, by the unit of its figure, and how many of that unit it is. Without any it is in the unit.
SUFFIXES: Mapping[Unit, Mapping[str, Decimal]] = {
    Unit.NS: {
        "ns": Decimal(1),
        "us": Decimal(10**3),
        "µs": Decimal(10**3),  # micro sign
        "μs": Decimal(10**3),  # Greek mu
        "ms": Decimal(10**6),
        "s": Decimal(10**9),
    },
    Unit.BYTES: {
        "B": Decimal(1),
        **{f"{prefix}iB": Decimal(1024**power) for power, prefix in enumerate("KMGT", 1)},
        **{f"{prefix}B": Decimal(1000**power) for power, prefix in enumerate("kMGT", 1)},
    },
    Unit.RATIO: {"%": Decimal("0.01")},
    Unit.COUNT: {},
    Unit.PER_S: {},
}

_CONDITION = re.compile(
    r"\s*(?P<name>[A-Za-z][A-Za-z0-9_.]*)\s*(?P<operator>>=|<=|==|!=|>|<)"
    r"\s*(?P<number>[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,4})?)\s*(?P<suffix>[^\s0-9.]*)\s*"
)


class ConditionError(ValueError):
    """A condition that means nothing.

    Attributes:
        figure: the name in it, where there is no figure of that name.
    """

    def __init__(self, message: str, figure: str | None = None) -> None:
        super().__init__(message)
        self.figure = figure


class Condition(Struct, frozen=True, kw_only=True):
    """``figure operator threshold``."""

    text: str
    """As it was written, without blanks around it."""
    figure: str
    operator: str
    threshold: float
    """In the unit of the figure."""

    def holds(self, value: float) -> bool:
        """Whether it is true of a value."""
        return OPERATORS[self.operator](value, self.threshold)


def parse_condition(text: str, units: Mapping[str, Unit]) -> Condition:
    """Reads a condition.

    Args:
        text: a name, one of ``> >= < <= == !=``, and a number with or without a suffix (``ms``, ``GiB``, ``%``).
        units: the unit of every figure that there is, by its name.

    Raises:
        ConditionError: the text is no condition, names no figure, or its value is in no unit of the figure.
    """
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise ConditionError(f"{text!r} is no condition; write a figure, > or <, and a value: exposed_ns > 20ms")
    name = found["name"]
    unit = units.get(name)
    if unit is None:
        raise ConditionError(f"there is no figure {name!r}", figure=name)
    return Condition(
        text=text.strip(),
        figure=name,
        operator=found["operator"],
        threshold=_threshold(found["number"], found["suffix"], name, unit),
    )


def _threshold(number: str, suffix: str, name: str, unit: Unit) -> float:
    known = {key.casefold(): scale for key, scale in SUFFIXES[unit].items()}
    scale = known.get(suffix.casefold()) if suffix else Decimal(1)
    if scale is None:
        words = f"one of {', '.join(SUFFIXES[unit])}, or nothing" if known else "nothing"
        raise ConditionError(f"{number}{suffix}: {name} is in {unit.value}, so that the number is followed by {words}")
    # The nearest float of the exact product, as a literal of that value would be.
    value = float(Decimal(number) * scale)
    if not math.isfinite(value):
        raise ConditionError(f"{number}{suffix} is too large a number")
    return value
