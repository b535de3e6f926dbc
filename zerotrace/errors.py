"""Errors that a user can act on: each says what was found, what was expected and what to do."""

from __future__ import annotations

from enum import IntEnum
from typing import Any


class ExitCode(IntEnum):
    """Exit codes of the command line, as documented in the README."""

    OK = 0
    FAILURE = 1
    USAGE = 2
    GATE = 3


class ZerotraceError(Exception):
    """An expected failure: shown as one message, without a traceback.

    Attributes:
        code: short stable identifier, for example ``"json_invalid"``.
        hint: what the user can do about it; shown on a line of its own.
        exit_code: exit code of the command that meets this error.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str,
        hint: str | None = None,
        exit_code: int = ExitCode.FAILURE,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.hint = hint
        self.exit_code = int(exit_code)

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors cross process borders, and the default would lose the keyword arguments.
        return _rebuild, (type(self), str(self), self.code, self.hint, self.exit_code)


class TraceError(ZerotraceError):
    """A trace file that cannot be read, or that holds nothing to analyse."""


class SnapshotError(ZerotraceError):
    """An allocator snapshot, or the owners file beside it, that cannot be read or is refused."""


class WeakResultError(ZerotraceError):
    """A result that was written, with warnings, where only one without was wanted."""


class StoreError(ZerotraceError):
    """A run folder, a manifest or a table that is missing, newer, taken or damaged."""


class LedgerError(ZerotraceError):
    """A ledger that cannot be drawn up: a size, a configuration or a file of shapes that means nothing."""


class ComparisonError(ZerotraceError):
    """Runs that cannot be held against each other."""


class EngineError(ZerotraceError):
    """A cluster that cannot be used: it does not answer, its workers differ, or they do not see the files."""


class OutputError(ZerotraceError):
    """Output that cannot be written where it is to go."""


class RanksError(ZerotraceError):
    """Ranks that were asked for, and that a page cannot show."""


class CaptureError(ZerotraceError):
    """A capture that cannot start, or a rank that died or hung."""


def _rebuild(kind: type[ZerotraceError], message: str, code: str, hint: str | None, exit_code: int) -> ZerotraceError:
    return kind(message, code=code, hint=hint, exit_code=exit_code)
