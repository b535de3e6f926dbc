"""Gunzips under limits: a small file may unpack to more than the machine has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from isal import isal_zlib
from isal.igzip_lib import IsalError

from zerotrace.units import format_bytes

#: What isal raises for bytes that are no sound gzip; its own stubs do not say that it is an exception.
BadGzipError = cast("type[Exception]", IsalError)

#: How a gzip file begins.
GZIP_MAGIC = b"\x1f\x8b"

_GZIP_WINDOW = 16 + 15  # zlib's way to ask for the gzip format

# What is unpacked before anyone looks: 64 MiB, or what a real trace of that size on disk holds, which reading costs
# several times over. All of a real trace is thus unpacked at once; joining pieces would take as long as unpacking.
_UNSEEN_BYTES = 1 << 26
_UNSEEN_RATIO = 32

# What is left behind the end of a member is copied: a million small ones must not copy the rest of the file each.
_SMALLEST_INPUT = 1 << 12
_LARGEST_INPUT = 1 << 23


@dataclass(frozen=True, kw_only=True)
class UnpackLimits:
    """How much a file may unpack to. Kineto's JSON packs 15 to 22 times, with stacks 70 times; deflate can 1032."""

    unpacked_bytes: int = 1 << 34
    """Size of the whole, gzipped or not."""
    ratio: int | None = 200
    """Unpacked bytes for each packed one, where a file unpacks to more than 64 MiB; ``None`` for any."""


class TooLargeError(Exception):
    """A file goes over a limit; the message says over which."""


def gunzip(data: bytes, limits: UnpackLimits) -> bytes:
    """All members of a gzip file.

    Args:
        data: the file; whatever stands behind the last member is left out.
        limits: how much it may unpack to. When one is met, no more than 32 times the file's size, or 64 MiB, was
            unpacked beyond what the limits allow.

    Raises:
        TooLargeError: a limit is met.
        EOFError: the last member has no end.
        BadGzipError: a member is damaged.
    """
    view = memoryview(data)
    pieces: list[bytes] = []
    position, size, unpacked = 0, len(data), 0
    while view[position : position + 2] == GZIP_MAGIC:
        member = isal_zlib.decompressobj(wbits=_GZIP_WINDOW)
        begin, waiting, more = position, b"", False
        while not member.eof:
            packed = waiting or view[position : position + size]
            if not packed and not more:
                raise EOFError
            if not waiting:
                position += len(packed)
                size = min(4 * size, _LARGEST_INPUT)
            wanted = min(max(_UNSEEN_BYTES, _UNSEEN_RATIO * len(packed)), limits.unpacked_bytes - unpacked + 1)
            pieces.append(member.decompress(packed, wanted))
            more = len(pieces[-1]) == wanted
            unpacked += len(pieces[-1])
            waiting = member.unconsumed_tail
            _check(unpacked, position - len(waiting) - len(member.unused_data), limits)
        position -= len(member.unused_data)
        size = min(max(2 * (position - begin), _SMALLEST_INPUT), _LARGEST_INPUT)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check(unpacked: int, taken: int, limits: UnpackLimits) -> None:
    if unpacked > limits.unpacked_bytes:
        raise TooLargeError(f"it unpacks to more than {format_bytes(limits.unpacked_bytes)}")
    if limits.ratio is not None and unpacked >= _UNSEEN_BYTES and unpacked > limits.ratio * taken:
        raise TooLargeError(
            f"its first {taken:,} bytes unpack to {format_bytes(unpacked)}, more than {limits.ratio} times as much"
        )
