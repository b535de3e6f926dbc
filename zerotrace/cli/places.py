"""Folders and files of the command line that may lie elsewhere: brought here for as long as a command runs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zerotrace.address import Url, parse_place
from zerotrace.cli.terminal import end_in_order, printable, shell_path
from zerotrace.errors import TraceError, ZerotraceError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zerotrace.mirror import Mirror


class Place(click.ParamType):  # type: ignore[type-arg]
    """A path, or an address such as ``s3://bucket/run``."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | Url:  # noqa: ARG002
        """Tells them apart."""
        return parse_place(value) if isinstance(value, str) else value


class Places:
    """What stands for the places of a command while it runs."""

    def __init__(self) -> None:
        self._mirror: Mirror | None = None

    @property
    def has_any(self) -> bool:
        """Whether anything of the command lies elsewhere."""
        return self._mirror is not None

    @property
    def mirror(self) -> Mirror:
        """Made when the first address is met."""
        if self._mirror is None:
            from zerotrace.mirror import Mirror

            end_in_order()
            self._mirror = Mirror(Path(tempfile.mkdtemp(prefix="zerotrace-")).resolve())
        return self._mirror

    def analysis(self, place: Path | Url, *, tables: bool = False) -> Path:
        """A run or analysis folder to read; as far as it was analysed, if it lies elsewhere.

        Raises:
            StoreError: it cannot be brought.
        """
        return place if isinstance(place, Path) else self.mirror.bring_analysis(place, tables=tables)

    def to_analyse(
        self, inputs: Sequence[Path | Url], out: Path | Url | None
    ) -> tuple[list[Path], Path | None, Mirror | None]:
        """The inputs and the place of an analysis.

        Returns:
            Both as paths, and where the files lie, if not all are here.

        Raises:
            StoreError: one of them cannot be brought, or the result not be written there.
            TraceError: ``not_one_run`` for inputs here and elsewhere.
        """
        urls = [place for place in inputs if isinstance(place, Url)]
        paths = [place for place in inputs if isinstance(place, Path)]
        if urls and paths:
            raise TraceError(
                f"{urls[0]} and {paths[0]}: traces of several places; expected one run",
                code="not_one_run",
                hint="give one folder, or files of one folder",
            )
        if urls:
            paths = self.mirror.bring_run(urls)
            if out is None:
                from zerotrace.store import ANALYSIS_FOLDER

                run = urls[0] if paths[0].is_dir() else urls[0].parent or urls[0]
                out = run / ANALYSIS_FOLDER
        return paths, self.mirror.bring_result(out) if isinstance(out, Url) else out, self._mirror

    def send_result(self, folder: Path) -> None:
        """Writes a result to where it goes, if that is elsewhere.

        Raises:
            StoreError: it cannot be written there.
        """
        if self._mirror is not None and self._mirror.has_result:
            self._mirror.send_result(folder)

    def name(self, path: Path) -> str:
        """A path as a shell takes it, or the address that it stands for."""
        return self.words(shell_path(path)) if self._mirror is not None else shell_path(path)

    def words(self, text: str) -> str:
        """A text with addresses in place of the folders that stand for them."""
        return self._mirror.shown(text) if self._mirror is not None else text

    def close(self) -> None:
        """Removes what was brought, and says what could not be."""
        if self._mirror is None:
            return
        for note in self._mirror.notes:
            click.echo(printable(f"Note: {note}"), err=True)
        try:
            with suppress(ZerotraceError):
                self._mirror.release()
        finally:
            shutil.rmtree(self._mirror.root, ignore_errors=True)


@contextmanager
def at_hand() -> Iterator[Places]:
    """Brings places here, and speaks of them by their addresses where something fails.

    Raises:
        ZerotraceError: as the block raised it, in words that name the address.
    """
    places = Places()
    try:
        yield places
    except ZerotraceError as error:
        if not places.has_any:
            raise
        hint = places.words(error.hint) if error.hint is not None else None
        text = places.words(str(error))
        raise type(error)(text, code=error.code, hint=hint, exit_code=error.exit_code) from error
    finally:
        places.close()
