"""How many bytes torch's caching allocator gives for a tensor that it has not given before.

Constants and rules: ``c10/cuda/CUDACachingAllocator.cpp`` of torch 2.4 to 2.13. A tensor that takes a place which
another has left can get up to 1 MiB more or less than this: a block is not split if no more than that would remain.
"""

from __future__ import annotations

from collections.abc import Iterable

_MIN_BLOCK = 512
_SMALL = 1 << 20
_LARGE_SEGMENT = 20 << 20
_MIN_LARGE_SEGMENT = 10 << 20
_SEGMENT_STEP = 2 << 20


def given_bytes(size: int) -> float:
    """Bytes that a tensor takes in a fresh segment; the mean where several of its size share one.

    Up to 1 MiB: rounded up to 512 bytes. Up to 10 MiB: from a segment of 20 MiB. Above: from a segment of its own,
    rounded up to 2 MiB. What remains of a segment belongs to its last block if it is no more than 1 MiB.

    Args:
        size: of the tensor's storage.
    """
    if size <= 0:
        return 0
    block = -(-size // _MIN_BLOCK) * _MIN_BLOCK
    if block <= _SMALL:
        return block
    if block < _MIN_LARGE_SEGMENT:
        count = _LARGE_SEGMENT // block
        rest = _LARGE_SEGMENT - count * block
        return block + (rest / count if rest <= _SMALL else 0)
    rest = -(-block // _SEGMENT_STEP) * _SEGMENT_STEP - block
    return block + (rest if rest <= _SMALL else 0)


def rounding_bytes(sizes: Iterable[int]) -> int:
    """What the allocator gives beyond the sizes of these tensors, all in fresh segments."""
    return round(sum(given_bytes(size) - size for size in sizes))
