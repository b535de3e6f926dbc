"""What a figure of the comparison is: a chart, and a table with a column a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from zerotrace.model import ComparedRun
from zerotrace.report.charts import Chart
from zerotrace.report.method import signed
from zerotrace.report.summary import UNKNOWN
from zerotrace.report.words import joined, tell


class TableRow(Struct, frozen=True):
    """One line of a table with a column a run."""

    key: str
    """In the CSV."""
    name: str
    values: tuple[float | None, ...]
    text: Callable[[float | None], str]
    role: str | None = None
    whole: bool = False
    """Whether it is a sum, or a figure beside the parts above it."""


class Figure(Struct, frozen=True):
    """A chart, ``None`` where there is nothing to draw, and its table."""

    chart: Chart | None
    rows: tuple[TableRow, ...]


def row(
    key: str,
    name: str,
    runs: Iterable[ComparedRun],
    figure: Callable[[ComparedRun], float | None],
    text: Callable[[float | None], str],
    whole: bool = False,
) -> TableRow:
    """One line: a figure of every run."""
    return TableRow(key, name, tuple(figure(run) for run in runs), text, whole=whole)


def two_digits(value: float | None) -> str:
    """A ratio as ``0.38``."""
    return UNKNOWN if value is None else signed(f"{value:.2f}")


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return names[0] if len(names) == 1 else tell("{} and {}", joined(", ", names[:-1]), names[-1])
