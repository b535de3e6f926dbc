"""Freed memory goes back to the system."""

from __future__ import annotations

import ctypes

import pyarrow as pa

_LIBC = ctypes.CDLL(None)

# What is made of fewer rows is soon needed again, and then takes longer to get than it is worth.
_FEW_ROWS = 1 << 18


def give_back_memory(num_rows: int) -> None:
    """Gives back what was freed. The allocators of numpy and pyarrow keep it for what may be asked for next.

    The columns of a trace are large and of many sizes, so that between two phases of reading one more may be kept than
    is in use. Where the C library is not glibc, its allocator does as it does.

    Args:
        num_rows: rows of the table that is worked on; nothing is done for few.
    """
    if num_rows <= _FEW_ROWS:
        return
    pa.default_memory_pool().release_unused()
    trim = getattr(_LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)
