"""Columns that grow piece by piece: in memory while they are small, in files without a name once they are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

from zerotrace.errors import TraceError
from zerotrace.ingest.columns import Ints

Scalar = TypeVar("Scalar", bound=np.generic)

# Bytes of one column that stay in memory: there are half a hundred of them.
_IN_MEMORY = 1 << 20


class Spool:
    """Columns by name, each of one type, that are appended to and read back in any order.

    Args:
        folder: where the files go; the system's own place for temporary files by default.

    Use as a context manager: what it holds is gone behind it, also when the process is killed.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for file in self._files.values():
            # Closing writes what is left, for which there may be no room: nobody will read it.
            with suppress(OSError):
                file.close()
        self._files.clear()

    def append(self, name: str, values: npt.NDArray[Any]) -> None:
        """Adds to a column.

        Raises:
            OSError: there is no room in the folder.
            TraceError: ``no_room`` in the system's own place for temporary files.
        """
        with room_in(self._folder):
            file = self._files.get(name)
            if file is None:
                folder = None if self._folder is None else str(self._folder)
                file = SpooledTemporaryFile(_IN_MEMORY, dir=folder)  # noqa: SIM115 - closed by __exit__
                self._files[name] = file
            file.write(values.tobytes())

    def append_ints(self, name: str, column: Ints) -> None:
        """Adds to a column of which some values are unknown."""
        self.append(name, column.values)
        self.append(f"{name}?", column.present)

    def load(self, name: str, dtype: type[Scalar], begin: int = 0, count: int | None = None) -> npt.NDArray[Scalar]:
        """A column, or ``count`` of its values from ``begin`` on; empty if nothing was ever added to it.

        Raises:
            OSError: as :meth:`append`.
            TraceError: likewise.
        """
        file = self._files.get(name)
        if file is None:
            return np.empty(0, dtype=dtype)
        width = np.dtype(dtype).itemsize
        with room_in(self._folder):  # what was written last may only now get to the disk
            end = file.seek(0, 2)
            file.seek(begin * width)
            # by its size: without one, a file is read into what grows
            data = file.read(end - begin * width if count is None else count * width)
            file.seek(end)
        return np.frombuffer(data, dtype=dtype)

    def count(self, name: str, dtype: type[Scalar]) -> int:
        """How many values a column has."""
        file = self._files.get(name)
        return 0 if file is None else file.seek(0, 2) // np.dtype(dtype).itemsize

    def load_ints(self, name: str, begin: int = 0, count: int | None = None) -> Ints:
        """A column of which some values are unknown, or a part of it."""
        return Ints(self.load(name, np.int64, begin, count), self.load(f"{name}?", np.bool_, begin, count))


@contextmanager
def room_in(folder: Path | None) -> Iterator[None]:
    """Says where there is no room, if something that is written in the block finds none.

    Args:
        folder: where it is written; ``None`` for the system's own place for temporary files.

    Raises:
        OSError: there is no room in the folder.
        TraceError: ``no_room`` in the system's own place.
    """
    try:
        yield
    except OSError as error:
        if folder is not None:
            raise
        raise TraceError(
            f"the folder for temporary files has no room for the columns of a trace: {error.strerror}",
            code="no_room",
            hint="make room there, or set TMPDIR to another folder where the trace is read",
        ) from error
