"""Logs beside the traces: what DeepSpeed says there that a trace does not show."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from zerotrace.errors import TraceError
from zerotrace.ingest.files import name_of
from zerotrace.links import leads_out
from zerotrace.model import Diagnostic, Level

#: How files are called that are searched for what DeepSpeed says.
LOG_ENDINGS = (".log", ".txt", ".out", ".err")

# Progress bars write no line ends: of a longer line, pieces are looked at.
_LONGEST_LINE = 1 << 20

# Printed by rank 0 where `log_trace_cache_warnings` is on: runtime/zero/partitioned_param_coordinator.py.
_INVALIDATED = re.compile(rb"Invalidate trace cache[^\r\n]{0,200}")


def find_logs(inputs: Sequence[Path]) -> list[Path]:
    """Files in the folders among ``inputs`` that are called like logs, in the order of their names.

    Links that lead out of their folder are left out.
    """
    return [
        path
        for folder in inputs
        if folder.is_dir()
        for path in sorted(folder.iterdir())
        if path.suffix in LOG_ENDINGS and not path.name.startswith(".") and not leads_out(path) and path.is_file()
    ]


def log_notes(path: Path) -> list[Diagnostic]:
    """What a log says of the run.

    Raises:
        TraceError: ``unreadable`` if the system refuses.
    """
    first, count = b"", 0
    try:
        with path.open("rb") as stream:
            while line := stream.readline(_LONGEST_LINE):
                if found := _INVALIDATED.search(line):
                    first = first or found[0]
                    count += 1
    except OSError as error:
        raise TraceError(f"{name_of(path)}: cannot be read: {error.strerror}", code="unreadable") from error
    if not count:
        return []
    often = "once" if count == 1 else f"{count} times"
    return [
        Diagnostic(
            code="prefetch_cache_invalidated",
            level=Level.WARNING,
            file=name_of(path),
            count=count,
            message=f"{name_of(path)}: DeepSpeed threw its order of modules away {often}: "
            f"“{first.decode('utf-8', 'replace').strip()}”; until it is recorded anew nothing is prefetched, so "
            "steps without any prefetch stand apart",
            hint="let every step run the same modules in the same order; a dynamic graph gets no prefetch",
        )
    ]
