"""Columns of whole numbers as bytes that a page reads: byte planes, one behind the other."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from zerotrace.report.rows import Ints


class Column(Struct, frozen=True):
    """Where one column lies in the blob."""

    offset: int
    width: int
    """Bytes a value, one plane each, lowest first."""
    count: int


class Blob:
    """Bytes that grow, and the positions of what was put in."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0

    def append(self, values: Ints, width: int) -> Column:
        """Puts in numbers of ``width`` bytes each, none below zero."""
        little = values.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :width]
        return self.append_bytes(np.ascontiguousarray(little.T).tobytes(), width)

    def append_bytes(self, data: bytes, width: int = 1) -> Column:
        """Puts in bytes as they are."""
        column = Column(self._size, width, len(data) // width)
        self._parts.append(data)
        self._size += len(data)
        return column

    def getvalue(self) -> bytes:
        """All of it."""
        return b"".join(self._parts)
