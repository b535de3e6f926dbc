"""Has a rank read its own trace once all windows are over, in a process of its own: a rank imports torch alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

#: Seconds that it may take: the other ranks wait, and process groups do not wait for ever.
LIMIT_S = 300.0

_MODULE = "zerotrace.ingest.own_tables"
_LONGEST_REASON = 300


def write_own_tables(trace: Path, until_s: float | None) -> str | None:
    """Writes the tables of a trace beside it.

    Args:
        trace: the trace of this rank.
        until_s: when it has to be over, by :func:`time.monotonic`; ``None`` if nothing but :data:`LIMIT_S` says.

    Returns:
        Why there are none, in words; ``None`` if there are. It costs the capture nothing else.
    """
    left_s = LIMIT_S if until_s is None else min(LIMIT_S, until_s - time.monotonic())
    if left_s < 1:
        return "there was no time left within --timeout"
    # The training program may have gone to another folder, and zerotrace may lie in the one where it began.
    package = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            [sys.executable, "-m", _MODULE, str(trace), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
            timeout=left_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {left_s:.0f} s"
    except OSError as error:
        return f"no process for it could be started: {error.strerror}"
    if done.returncode == 0:
        return None
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1][:_LONGEST_REASON] if lines else f"its process ended with {done.returncode}"
