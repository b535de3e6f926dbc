"""A trace file as blocks of JSON text, read once, and the digest of its bytes."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from zerotrace.errors import TraceError
from zerotrace.ingest.files import name_of, unreadable
from zerotrace.ingest.unpack import BadGzipError, TooLargeError, UnpackLimits, unpacked
from zerotrace.units import format_bytes

_BLOCK = 1 << 20


class TraceText:
    """The JSON text of one trace file.

    Args:
        path: the file, gzip or plain.
        limits: how large it may be; by default as :class:`~zerotrace.ingest.unpack.UnpackLimits` says.
    """

    def __init__(self, path: Path, limits: UnpackLimits | None = None) -> None:
        self.path = path
        self.digest = ""
        """BLAKE2b-128 of the file as it lies on disk, in hexadecimal; known once all blocks were taken."""
        self._stream: _Digesting | None = None
        self._limits = limits or UnpackLimits()

    @property
    def num_bytes(self) -> int:
        """Bytes of the file as it lies on disk, as far as they were read."""
        return self._stream.num_bytes if self._stream is not None else 0

    def blocks(self) -> Iterator[bytes]:
        """The text, gunzipped if it is gzip, in blocks of a few MiB.

        Raises:
            TraceError: ``unreadable`` if the system refuses, ``trace_truncated`` or ``gzip_invalid`` for broken gzip,
                ``trace_too_large`` for what goes over a limit.
        """
        try:
            with self.path.open("rb") as file:
                self._refuse_large(self.path.stat().st_size)
                stream = self._stream = _Digesting(file)
                yield from unpacked(cast("BinaryIO", stream), self._limits)
                while stream.read(_BLOCK):
                    pass
                self.digest = stream.hexdigest()
        except OSError as error:
            raise unreadable(self.path, error) from error
        except EOFError as error:
            raise TraceError(
                f"{name_of(self.path)}: truncated: the gzip stream ends after {self.num_bytes} bytes without its end "
                "mark",
                code="trace_truncated",
                hint="the writer was stopped before it finished; capture this rank again",
            ) from error
        except BadGzipError as error:
            raise TraceError(
                f"{name_of(self.path)}: not a sound gzip file: {error}",
                code="gzip_invalid",
                hint="the file was altered or not copied whole; copy it anew, or capture this rank again",
            ) from error
        except TooLargeError as error:
            raise _too_large(self.path, str(error)) from error

    def whole(self) -> bytes:
        """All blocks as one text."""
        return b"".join(self.blocks())

    def _refuse_large(self, size: int) -> None:
        limit = self._limits.unpacked_bytes
        if size > limit:
            raise _too_large(self.path, f"it has {format_bytes(size)}, more than {format_bytes(limit)}")


class _Digesting:
    """A file that digests what is read of it, each byte once: gunzip reads some of them again."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.blake2b(digest_size=16)
        self._position = 0
        self.num_bytes = 0

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        self._position += len(data)
        new = self._position - self.num_bytes
        if new > 0:
            self._digest.update(memoryview(data)[-new:])
            self.num_bytes = self._position
        return data

    def seek(self, offset: int, whence: int = io.SEEK_CUR) -> int:
        self._position = self._file.seek(offset, whence)
        return self._position

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


def _too_large(path: Path, what: str) -> TraceError:
    return TraceError(
        f"{name_of(path)}: too large for a trace: {what}",
        code="trace_too_large",
        hint="if you trust it, say how large it may be: --max-trace-size 64GiB",
    )
