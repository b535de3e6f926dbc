"""The first thing that runs in every rank of a capture: ``python -m zerotrace.capture.rank PROGRAM ARGS``.

Sets up what must hold even if the training program never gets to its first step (a log of its own, progress, stack
traces on request, no life after the launcher), then runs the program as Python itself would.
"""

from __future__ import annotations

import faulthandler
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from zerotrace.capture.failure import STACK_SIGNAL
from zerotrace.capture.handoff import SessionPlan
from zerotrace.capture.progress import FAILED, ProgressWriter, read_progress
from zerotrace.lifetime import die_with_parent


def main() -> None:
    """Run the training program given on the command line as this process's program."""
    die_with_parent(signal.SIGKILL)
    plan = SessionPlan.from_environment()
    if plan is None:
        raise SystemExit("zerotrace.capture.rank is started by `zerotrace capture`; it is no program of its own")
    rank = int(os.environ["RANK"])
    work = Path(plan.work_folder)
    _log_into(work / f"rank_{rank}.log")
    stack_file = (work / f"rank_{rank}.stack").open("w", encoding="utf-8")
    faulthandler.register(STACK_SIGNAL, file=stack_file, all_threads=True)
    progress = ProgressWriter(work, rank)
    progress.note("starting")
    program, *args = sys.argv[1:]
    sys.argv = [program, *args]
    sys.path[0] = str(Path(program).resolve().parent)
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as stop:
        if stop.code:
            _fail(progress, work, rank, stop)
    except BaseException as error:  # noqa: BLE001 - the border of the process
        _fail(progress, work, rank, error)
    progress.note("done")


def _fail(progress: ProgressWriter, work: Path, rank: int, error: BaseException) -> NoReturn:
    """Say why, and leave at once.

    An orderly exit would tear down the process group first, which can hang or abort while the peers are still inside
    a collective, and would put its own exit code in the place of the program's.
    """
    progress.note(FAILED, read_progress(work, rank + 1)[rank].step)
    code = 1
    if isinstance(error, SystemExit):
        code = error.code if isinstance(error.code, int) else 1
        if not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
    else:
        traceback.print_exception(type(error), error, _program_frames(error.__traceback__))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _program_frames(frames: TracebackType | None) -> TracebackType | None:
    """The traceback from the training program on, without this module and runpy."""
    own = {__file__, runpy.__file__, "<frozen runpy>"}
    while frames is not None and frames.tb_next is not None and frames.tb_frame.f_code.co_filename in own:
        frames = frames.tb_next
    return frames


def _log_into(path: Path) -> None:
    """Send stdout and stderr of this process, C libraries included, to a file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)


if __name__ == "__main__":
    main()
