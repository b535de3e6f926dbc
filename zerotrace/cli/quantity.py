"""Amounts on the command line, as people write them."""

from __future__ import annotations

from typing import Any

import click


class Quantity(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A count of parameters (``name="count"``), or a size of memory or of a file."""

    def __init__(self, name: str) -> None:
        self.name = name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The amount as a whole number; a usage error if it is none."""
        from zerotrace.units import parse_bytes, parse_count

        if isinstance(value, int):
            return value
        try:
            return (parse_count if self.name == "count" else parse_bytes)(value)
        except ValueError as error:
            self.fail(f"{error}.", param, ctx)
