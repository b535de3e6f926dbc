"""torchrun, made to end with the launcher: ``python -m zerotrace.capture.agent TORCHRUN-ARGS``."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path

from zerotrace.capture.folder import move_files
from zerotrace.capture.handoff import SessionPlan
from zerotrace.lifetime import die_with_parent

_POLL_S = 0.5
_GRACE_S = 10.0


def main() -> None:
    """Run torchrun; if the launcher is killed in the meantime, do what it has left undone."""
    launcher = os.getppid()
    # torchrun ends its workers when it is told to terminate.
    die_with_parent(signal.SIGTERM)
    threading.Thread(target=_end_after, args=(launcher,), daemon=True).start()
    # Until torchrun has handlers of its own; its import takes seconds.
    signal.signal(signal.SIGTERM, lambda sig, _frame: sys.exit(128 + sig))
    try:
        from torch.distributed.run import main as torchrun

        torchrun()
    finally:
        if os.getppid() != launcher:
            _keep_local_files()


def _end_after(launcher: int) -> None:
    """End this process some time after the launcher, whatever it is at.

    While torchrun waits for other machines, in a function of C++, it does not hear the signal.
    """
    while os.getppid() == launcher:
        time.sleep(_POLL_S)
    time.sleep(_GRACE_S)
    _keep_local_files()
    # The ranks die with their parent.
    os._exit(128 + signal.SIGTERM)


def _keep_local_files() -> None:
    """Move what the ranks of one of several machines have finished to where the rest of the capture lies.

    Nobody else knows of the folder in the temporary folder, once the launcher is gone.
    """
    plan = SessionPlan.from_environment()
    if plan is None or not plan.local_folder:
        return
    local = Path(plan.local_folder)
    with contextlib.suppress(OSError):
        for folder in sorted(local.iterdir()):
            move_files(folder, Path(plan.trace_folder))
    shutil.rmtree(local, ignore_errors=True)


if __name__ == "__main__":
    main()
