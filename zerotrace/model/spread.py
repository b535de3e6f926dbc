"""How far a figure goes."""

from __future__ import annotations

from msgspec import Struct


class Spread(Struct, frozen=True, kw_only=True):
    """A figure over ranks and steps."""

    min: float
    median: float
    max: float
