"""The terminal, whatever it is: closed or full, an encoding that lacks signs, names that move cursors, signals."""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

from zerotrace.errors import OutputError
from zerotrace.texts import LONGEST_SHOWN, shortened, spelled_out

_PATIENCE_S = 10

# What the system says when standard output takes nothing more. A reader that has gone (EPIPE) is click's to handle.
_CANNOT_WRITE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF, errno.EFBIG})


def keep_stream_numbers() -> None:
    """Opens the null device in the place of closed standard streams, so that no file gets their numbers.

    Talk to a closed stderr goes nowhere; that stdout is closed is remembered, for :func:`print_data`.
    """
    for number, mode in enumerate((os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one.
            os.open(os.devnull, mode)
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - for good


def print_data(data: str | bytes) -> None:
    """Writes a result, which is what the command is for, to standard output.

    Raises:
        OutputError: standard output is closed.
    """
    if sys.stdout is None:
        raise OutputError(
            "standard output is closed, so that the result has nowhere to go",
            code="stdout_closed",
            hint="send it to a file or a pipe",
        )
    if isinstance(data, bytes):
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
    else:
        sys.stdout.write(data)
    # What is said on stderr afterwards is to come after it.
    sys.stdout.flush()


@contextmanager
def writing() -> Iterator[None]:
    """Makes one error of whatever keeps standard output from being written in the block, up to the last byte of it.

    Raises:
        OutputError: it could not be written.
    """
    try:
        yield
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in _CANNOT_WRITE:
            raise
        # What is left in the buffers must not fail once more at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise OutputError(
            f"standard output cannot be written: {error.strerror}",
            code="stdout_unwritable",
            hint="make room, or send it elsewhere",
        ) from error


def accept_any_encoding() -> None:
    """Spells out what the encoding of stdout or stderr lacks (``µ`` in ASCII), in place of failing on it."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def end_in_order() -> None:
    """Turns SIGTERM and SIGHUP into an orderly exit, so that what is half done is removed."""

    def leave(sig: int, _frame: FrameType | None) -> NoReturn:
        # Workers are ended first, since the exit would wait for them; and if it waits all the same, not for long.
        signal.alarm(_PATIENCE_S)
        # Nothing is imported here: the signal may have come in the middle of that import, and then there is no worker.
        workers = getattr(sys.modules.get("multiprocessing"), "active_children", None)
        for worker in workers() if workers is not None else ():
            worker.kill()
        raise SystemExit(128 + sig)

    for sig in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(sig, leave)


def shell_path(path: Path) -> str:
    """A path as a shell takes it, with control characters spelled out as in :func:`printable`."""
    import shlex

    return printable(shlex.quote(str(path)))


def printable(text: str, longest_line: int | None = LONGEST_SHOWN) -> str:
    """The text with every control character spelled out, so that none moves the cursor or sets a colour.

    Args:
        text: what may hold names out of a trace.
        longest_line: characters of a line that are shown; ``None`` for all.
    """
    lines = text.split("\n") if longest_line is None else [shortened(line, longest_line) for line in text.split("\n")]
    return "\n".join(map(spelled_out, lines))
