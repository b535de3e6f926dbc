"""Where the files of a run lie: on this machine, or elsewhere and fetched by whoever reads them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from zerotrace import remote
from zerotrace.remote import OnBytes, RemoteFile


class SiteFile(Struct, frozen=True, kw_only=True):
    """A file of a run; workers get it in place of a path, on whatever machine they are."""

    path: Path
    """Where it lies on the machine that began; what it is called everywhere."""
    source: RemoteFile | None = None
    """Where the whole of it lies, if that is elsewhere."""

    @property
    def num_bytes(self) -> int | None:
        """Its size; ``None`` where nobody says."""
        if self.source is not None:
            return self.source.num_bytes
        try:
            return self.path.stat().st_size
        except OSError:
            return None  # whoever reads it says so

    @contextmanager
    def whole(self, told: OnBytes | None = None) -> Iterator[Path]:
        """The whole file on this machine, for as long as the block runs.

        Args:
            told: is told of bytes that arrive, where they must.

        Raises:
            StoreError: it cannot be fetched.
        """
        if self.source is None:
            yield self.path
            return
        # Beside the mirror, which the process that began removes, whatever becomes of this one; else on a disk here.
        beside = self.path.parent if self.path.parent.is_dir() else None
        with tempfile.TemporaryDirectory(prefix=".fetched-", dir=beside) as folder:
            target = Path(folder) / self.path.name
            remote.fetch(self.source, target, told)
            yield target


class Site:
    """Where the files of a run lie, and where its result goes: on this machine."""

    def file(self, path: Path) -> SiteFile:
        """One of its files."""
        return SiteFile(path=path)

    def mark(self, path: Path) -> str | None:  # noqa: ARG002
        """What the store says of a file that changes when the file does; ``None`` where there is no store."""
        return None

    def claim(self) -> None:
        """Called once it is known that there is work to do, before it begins.

        Raises:
            StoreError: the result could not be written.
        """
