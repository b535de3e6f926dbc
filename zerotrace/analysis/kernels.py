"""The kernels on which a rank spends most time, by name."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.intervals import Int64Array
from zerotrace.model import Category, KernelTime
from zerotrace.tables import BoolArray, codes_and_names, equals, ints

_TOP_KERNELS = 12


class KernelTotals(Struct, frozen=True, eq=False):
    """How often and how long rows of each name run. Columns have one entry a category and name.

    Attributes:
        count: shape ``(num_categories, num_names)``.
        total: nanoseconds, of the same shape.
        names: the names.
    """

    count: Int64Array
    total: Int64Array
    names: list[str]

    def __add__(self, other: KernelTotals) -> KernelTotals:
        """Those of both, whose names have the same codes."""
        return KernelTotals(self.count + other.count, self.total + other.total, self.names)


def kernel_totals(events: pa.Table, counted: BoolArray) -> KernelTotals:
    """Sums up rows by category and name.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        counted: which of the rows are looked at; shape ``(num_rows,)``.
    """
    dur = ints(events, "dur_ns")
    codes, names = codes_and_names(events, "name")
    count, total = np.zeros((2, len(Category), len(names)), dtype=np.int64)
    for number, category in enumerate(Category):
        rows = np.flatnonzero(equals(events, "category", category.value) & counted)
        count[number] = np.bincount(codes[rows], minlength=len(names))
        np.add.at(total[number], codes[rows], dur[rows])
    return KernelTotals(count, total, names)


def top_kernels(rank: int, totals: KernelTotals) -> list[KernelTime]:
    """Those that take most time, the longest first.

    Args:
        rank: global rank.
        totals: all rows of the rank.
    """
    found = []
    for category, count, total in zip(Category, totals.count, totals.total):
        found += [
            KernelTime(rank=rank, name=totals.names[i], category=category, count=int(count[i]), total_ns=int(total[i]))
            for i in np.argsort(-total, kind="stable")[:_TOP_KERNELS].tolist()
            if count[i]
        ]
    return sorted(found, key=lambda kernel: -kernel.total_ns)[:_TOP_KERNELS]
