"""How many bytes a collective moves, and how fast.

S is the output of gathers and the input of everything else. algbw = S / transfer; busbw = algbw × 2(n−1)/n for
all-reduce, (n−1)/n for all-gather, reduce-scatter and all-to-all, 1 for broadcast, reduce, send and receive. GB is
10⁹ bytes. Source: nccl-tests, doc/PERFORMANCE.md.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.intervals import Int64Array
from zerotrace.model import Diagnostic, Level
from zerotrace.tables import BoolArray

#: Bytes of an element. A type that is not here has no size that could be known.
ELEMENT_BYTES = {
    "Byte": 1, "Char": 1, "Bool": 1, "Short": 2, "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
    "UInt16": 2, "UInt32": 4, "UInt64": 8, "ComplexFloat": 8, "ComplexDouble": 16,
    "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Float8_e4m3fnuz": 1, "Float8_e5m2fnuz": 1, "Float8_e8m0fnu": 1,
}  # fmt: skip


def bytes_moved(rows: CollectiveRows) -> Int64Array:
    """S of each row; absent where elements or element type are unknown. Shape ``(num_rows,)``."""
    # one entry more, which the code -1 finds
    widths = np.array([*(ELEMENT_BYTES.get(text, ABSENT) for text in rows.dtype.distinct), ABSENT], dtype=np.int64)
    width = widths[rows.dtype.codes]
    elements = np.where(rows.name.where(_is_gather), rows.out_elements, rows.in_elements)
    return np.where((width == ABSENT) | (elements == ABSENT), ABSENT, elements * width)


def unknown_types(rows: CollectiveRows) -> Iterator[Diagnostic]:
    """Says which element types have no size that could be known, so that bytes and bandwidths are null."""
    for code, text in enumerate(rows.dtype.distinct):
        if text in ELEMENT_BYTES:
            continue
        count = int((rows.dtype.codes == code).sum())
        yield Diagnostic(
            code="unknown_dtype",
            level=Level.WARNING,
            count=count,
            event=int(rows.event[rows.dtype.codes == code][0]),
            message=f"{count} rows of communication are of element type {text}, whose size is not known: their bytes "
            "and bandwidths are null",
        )


def bandwidths(
    rows: CollectiveRows, size: Int64Array, transfer_ns: Int64Array, known: BoolArray
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Algbw and busbw of each row in GB/s; NaN where bytes, time or group size are unknown or zero.

    Args:
        rows: rows of communication.
        size: S of each, bytes.
        transfer_ns: transfer time of each row's collective.
        known: rows that have one.
    """
    sound = known & (size > 0) & (transfer_ns > 0)
    algbw = np.full(len(rows), np.nan)
    algbw[sound] = size[sound] / transfer_ns[sound]
    n = rows.size.astype(np.float64)
    shared = np.where(n > 0, (n - 1) / np.where(n > 0, n, 1), np.nan)
    weight = np.array([*map(_bus_weight, rows.name.distinct), 0])[rows.name.codes]
    factor = np.where(weight == 0, 1.0, weight * shared)
    return algbw, algbw * factor


def _is_gather(name: str) -> bool:
    return "gather" in name.lower()


def _bus_weight(name: str) -> int:
    """2 for all-reduce, 1 for the gather and scatter family, 0 for a factor of one."""
    lower = name.lower().replace("_", "")
    if "allreduce" in lower:
        return 2
    return 1 if any(part in lower for part in ("gather", "scatter", "alltoall")) else 0
