"""Freed memory: kept while pieces of a trace come and go, and given back between the phases of reading one."""

from __future__ import annotations

import ctypes

import pyarrow as pa

_LIBC = ctypes.CDLL(None)

# What is made of fewer rows is soon needed again, and then takes longer to get than it is worth.
_FEW_ROWS = 1 << 18


# Parameters of glibc's mallopt.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3


def keep_freed_memory() -> None:
    """Has the C library keep what is freed for what is asked for next, in this process and in copies of it.

    By default it returns each piece of text and each column to the system at once, which hands out empty pages again
    a moment later: up to a quarter of the time of an analysis. Where it is not glibc, nothing is changed.
    """
    mallopt = getattr(_LIBC, "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, 1 << 25)
        mallopt(_M_TRIM_THRESHOLD, 1 << 27)


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
