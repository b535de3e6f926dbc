"""Where a capture goes: a name is reserved first, filled under a hidden name, and renamed when all is there."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import unicodedata
from pathlib import Path

from zerotrace.errors import CaptureError

#: Inside the folder of a running capture: progress, logs and reports of the ranks. Not part of the result.
WORK = "ranks"


class CaptureFolder:
    """A folder name that belongs to one capture from the moment it is reserved.

    The reservation is the hidden sibling ``.NAME.partial``, made exclusively: two captures that are started at once
    cannot get the same name.
    """

    def __init__(self, path: Path, partial: Path) -> None:
        self.path = path
        """The folder under its final name; it exists only once the capture is complete."""
        self.partial = partial
        """The folder while it is being filled."""

    @property
    def work(self) -> Path:
        """Folder for what only the running capture needs."""
        return self.partial / WORK

    def publish(self) -> None:
        """Give the complete folder its final name.

        Raises:
            CaptureError: something else has taken the name in the meantime; the result stays where it is.
        """
        try:
            if self.path.exists():
                raise FileExistsError
            self.partial.rename(self.path)
        except OSError as error:
            kept = self.keep_failed()
            raise CaptureError(
                f"{self.path} has appeared while the capture was running, so that it could not get its name.",
                code="out_exists",
                hint=f"The complete capture is in {kept}; rename it.",
            ) from error

    def discard(self) -> None:
        """Give up the reservation, if nothing has come of it: no capture has been written there."""
        with contextlib.suppress(OSError):
            self.work.rmdir()
            self.partial.rmdir()

    def keep_failed(self) -> Path:
        """Give an incomplete folder a visible name, ``NAME.failed`` or the next free one, and return it.

        Where even that fails (a full disk, a folder that is gone) it keeps its hidden name.
        """
        for number in itertools.count(1):
            suffix = ".failed" if number == 1 else f".failed-{number}"
            kept = self.path.with_name(self.path.name + suffix)
            # mkdir takes the name exclusively; rename then replaces the empty folder in one step.
            try:
                kept.mkdir()
                self.partial.rename(kept)
            except FileExistsError:
                continue
            except OSError:
                return self.partial
            return kept
        raise AssertionError("unreachable: the numbers do not end")


def reserve_folder(out: Path | None, name: str, *, node_rank: int = 0) -> CaptureFolder:
    """Reserve the folder of a capture.

    Args:
        out: the folder asked for; ``None`` stands for ``traces/NAME``, or ``traces/NAME-2`` and so on where that is
            taken.
        name: the default name, for example ``stage3``.
        node_rank: which machine of the run this is. All of them may see the same folder, so that each has a hidden
            name of its own.

    Raises:
        CaptureError: the folder exists, or cannot be made.
    """
    if out is not None:
        return _reserve_asked(out, node_rank)
    for number in itertools.count(1):
        folder = Path("traces") / (name if number == 1 else f"{name}-{number}")
        if not folder.exists() and (reserved := _reserve(folder, node_rank)) is not None:
            return reserved
    raise AssertionError("unreachable: the numbers do not end")


def move_files(source: Path, target: Path) -> None:
    """Move files, over the border of a file system too; each appears whole, and none takes the place of another."""
    for path in sorted(source.iterdir()):
        if path.is_dir():
            (target / path.name).mkdir(exist_ok=True)
            move_files(path, target / path.name)
            continue
        partial = target / f"{path.name}.partial"
        with path.open("rb") as reader, partial.open("xb") as writer:
            shutil.copyfileobj(reader, writer, 1 << 20)
        # Takes the name exclusively, on a network file system too.
        (target / path.name).touch(exist_ok=False)
        partial.replace(target / path.name)
        path.unlink()
    source.rmdir()


def status_of(path: Path) -> os.stat_result | None:
    """What the system says of a path; ``None`` where it says nothing, also for a name that is too long for it."""
    try:
        return path.stat()
    except (OSError, ValueError):
        return None


def check_out(out: Path | None) -> None:
    """Refuse a folder that exists, or that can have no name of its own, early, before anything is imported.

    Raises:
        CaptureError: it does.
    """
    if out is None:
        return
    if out.name == "..":
        raise CaptureError(
            f"The folder {out} ends with '..', which is no name that a new folder can have.",
            code="out_unwritable",
            hint="Pass the --out of a new folder by its own name.",
        )
    if any(unicodedata.category(char) == "Cc" for char in str(out)):
        raise CaptureError(
            f"The folder {str(out)!r} has a control character in its name, which would break every message about it.",
            code="out_unwritable",
            hint="Pass an --out without it.",
        )
    try:
        # Not Path.exists, which passes over some errors, and not the same ones in every Python.
        out.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise _unwritable(out, error) from error
    raise CaptureError(
        f"The folder {out} exists already.",
        code="out_exists",
        hint="Pass another --out; nothing is overwritten.",
    )


def _reserve_asked(out: Path, node_rank: int) -> CaptureFolder:
    check_out(out)
    reserved = _reserve(out, node_rank)
    if reserved is None:
        raise CaptureError(
            f"Another capture is writing {out}, or one was killed: {_partial(out, node_rank)} exists.",
            code="out_taken",
            hint="Wait for it, pass another --out, or remove that folder if no capture is running.",
        )
    return reserved


def _reserve(folder: Path, node_rank: int) -> CaptureFolder | None:
    partial = _partial(folder, node_rank)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        partial.mkdir()
        (partial / WORK).mkdir()
    except FileExistsError:
        if folder.parent.is_dir():
            return None
        raise CaptureError(
            f"{folder.parent} is no folder, so that {folder} cannot be made.",
            code="out_unwritable",
            hint="Pass an --out inside of a folder.",
        ) from None
    except OSError as error:
        raise _unwritable(folder, error) from error
    return CaptureFolder(folder, partial)


def _unwritable(folder: Path, error: OSError) -> CaptureError:
    return CaptureError(
        f"{folder} cannot be written: {error.strerror}.",
        code="out_unwritable",
        hint="Pass an --out in a place where you can write.",
    )


def _partial(folder: Path, node_rank: int) -> Path:
    node = f".node{node_rank}" if node_rank else ""
    return folder.with_name(f".{folder.name}{node}.partial")
