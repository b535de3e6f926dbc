"""How far a figure goes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Spread:
    """A figure over ranks and steps."""

    min: float
    median: float
    max: float
