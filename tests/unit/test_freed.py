"""Freed memory stays with the process while it is worked with."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_PIECES = """
import resource
from zerotrace.freed import keep_freed_memory
{first}
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(100):
    pieces = [b"x" * (2 << 20) for _ in range(4)]
    del pieces
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(first: str) -> int:
    """Pages that the system hands out for four pieces of two MiB, made and freed a hundred times."""
    code = _PIECES.format(first=first)
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc's allocator is told what to keep")
def test_pieces_that_come_and_go_take_no_new_pages() -> None:
    once = 4 * (2 << 20) // 4096
    assert faults("keep_freed_memory()") < 2 * once
    assert faults("") > 20 * once
