"""Gunzips block by block and under limits: a small file may unpack to more than the machine has."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import BinaryIO, cast

from isal import isal_zlib
from isal.igzip_lib import IsalError
from msgspec import Struct

from zerotrace.units import format_bytes

#: What isal raises for bytes that are no sound gzip; its own stubs do not say that it is an exception.
BadGzipError = cast("type[Exception]", IsalError)

#: How a gzip file begins.
GZIP_MAGIC = b"\x1f\x8b"

_GZIP_WINDOW = 16 + 15  # zlib's way to ask for the gzip format

# What is unpacked before anyone looks at the ratio.
_UNSEEN_BYTES = 1 << 26

# Bytes of a block, unpacked; and of a file, packed, at a time: what is left behind the end of a member is read again,
# and a million small ones must not read much again each.
_BLOCK = 1 << 21
_SMALLEST_INPUT = 1 << 12
_LARGEST_INPUT = 1 << 18


class UnpackLimits(Struct, frozen=True, kw_only=True):
    """How much a file may unpack to. Kineto's JSON packs 15 to 22 times, with stacks 70 times; deflate can 1032."""

    unpacked_bytes: int = 1 << 34
    """Size of the whole, gzipped or not."""
    ratio: int | None = 200
    """Unpacked bytes for each packed one, where a file unpacks to more than 64 MiB; ``None`` for any."""


class TooLargeError(Exception):
    """A file goes over a limit; the message says over which."""


def gunzip(data: bytes, limits: UnpackLimits) -> bytes:
    """All members of a gzip file in memory, as :func:`unpacked` gives them."""
    return b"".join(unpacked(io.BytesIO(data), limits)) if data.startswith(GZIP_MAGIC) else b""


def unpacked(stream: BinaryIO, limits: UnpackLimits) -> Iterator[bytes]:
    """The content of a file, gunzipped where it is gzip, in blocks of at most 2 MiB.

    Args:
        stream: the file at its beginning; it must be able to seek. Whatever stands behind the last member of a gzip
            file is left out.
        limits: how much it may unpack to. When one is met, at most a block was unpacked beyond it, or 64 MiB where it
            is that of the ratio.

    Raises:
        TooLargeError: a limit is met.
        EOFError: the last member has no end.
        BadGzipError: a member is damaged.
    """
    if _begins_like_gzip(stream):
        yield from _members(stream, limits)
        return
    size = 0
    while block := stream.read(_BLOCK):
        size += len(block)
        _check(size, size, limits)
        yield block


def _members(stream: BinaryIO, limits: UnpackLimits) -> Iterator[bytes]:
    size, taken, total = _LARGEST_INPUT, 0, 0
    while _begins_like_gzip(stream):
        member = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        begin, waiting, more = taken, b"", False
        while not member.eof:
            packed = waiting or stream.read(size)
            if not packed and not more:
                raise EOFError
            if not waiting:
                taken += len(packed)
                size = min(4 * size, _LARGEST_INPUT)
            wanted = min(_BLOCK, limits.unpacked_bytes - total + 1)
            block = member.decompress(packed, wanted)
            more = len(block) == wanted
            total += len(block)
            waiting = member.unconsumed_tail
            _check(total, taken - len(waiting) - len(member.unused_data), limits)
            if block:
                yield block
        behind = len(member.unused_data)
        stream.seek(-behind, io.SEEK_CUR)
        taken -= behind
        size = min(max(2 * (taken - begin), _SMALLEST_INPUT), _LARGEST_INPUT)


def _begins_like_gzip(stream: BinaryIO) -> bool:
    magic = stream.read(len(GZIP_MAGIC))
    stream.seek(-len(magic), io.SEEK_CUR)
    return magic == GZIP_MAGIC


def _check(unpacked_bytes: int, taken: int, limits: UnpackLimits) -> None:
    if unpacked_bytes > limits.unpacked_bytes:
        raise TooLargeError(f"it unpacks to more than {format_bytes(limits.unpacked_bytes)}")
    if limits.ratio is not None and unpacked_bytes >= _UNSEEN_BYTES and unpacked_bytes > limits.ratio * taken:
        raise TooLargeError(
            f"its first {taken:,} bytes unpack to {format_bytes(unpacked_bytes)}, more than {limits.ratio} times as "
            "much"
        )
