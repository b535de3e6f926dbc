"""The first thing that runs in every rank of a capture: ``python -m zerotrace.capture.rank PROGRAM ARGS``.

Sets up what must hold even if the training program never gets to its first step (a log of its own, progress, stack
traces on request, no life after the launcher), then runs the program as Python itself would.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import runpy
import signal
import sys
import traceback
from pathlib import Path
from types import TracebackType
from typing import NoReturn

from zerotrace.capture.attach import Attachment
from zerotrace.capture.failure import STACK_SIGNAL, problem_of
from zerotrace.capture.handoff import SessionPlan, problem_path, write_problem
from zerotrace.capture.limit import limit_this_process
from zerotrace.capture.progress import DONE, FAILED, ProgressWriter, read_progress
from zerotrace.errors import ZerotraceError
from zerotrace.lifetime import die_with_parent


def main() -> None:
    """Run the training program given on the command line as this process's program."""
    die_with_parent(signal.SIGKILL)
    plan = SessionPlan.from_environment()
    if plan is None:
        raise SystemExit("zerotrace.capture.rank is started by `zerotrace capture`; it is no program of its own")
    rank = int(os.environ["RANK"])
    watch = _Watch(Path(plan.work_folder), rank) if plan.work_folder else None
    if plan.own is not None and plan.own.deadline is not None:
        limit_this_process(rank, plan.own.deadline)
    program, *args = sys.argv[1:]
    # Programs that DeepSpeed's own launcher starts are told their local rank on the command line.
    args = [arg.replace("{local_rank}", os.environ["LOCAL_RANK"]) for arg in args] if plan.attach else args
    sys.argv = [program, *args]
    sys.path[0] = str(Path(program).resolve().parent)
    try:
        _run(program, plan, watch)
    except SystemExit as stop:
        if _exit_status(stop):
            _fail(watch, stop)
    except BaseException as error:  # noqa: BLE001 - the border of the process
        _fail(watch, error)
    else:
        # A program that has left by sys.exit(0) may have done so anywhere: its progress says where.
        if watch is not None:
            watch.progress.note(DONE)


class _Watch:
    """What the launcher sees of this rank: its log, its stack on request, its progress."""

    def __init__(self, work: Path, rank: int) -> None:
        self._work = work
        self._rank = rank
        _log_into(work / f"rank_{rank}.log")
        stack_file = (work / f"rank_{rank}.stack").open("w", encoding="utf-8")
        faulthandler.register(STACK_SIGNAL, file=stack_file, all_threads=True)
        self.progress = ProgressWriter(work, rank)
        self.progress.note("starting")

    def note_failure(self, error: BaseException) -> None:
        """Tell the launcher that the program has failed, and why if that is known."""
        self.progress.note(FAILED, read_progress(self._work, 1, first=self._rank)[0].step)
        if problem := problem_of(self._rank, error):
            # On a full disk even this may find no room; the log has it too, as far as there is room.
            with contextlib.suppress(OSError):
                write_problem(problem_path(self._work, self._rank), problem)


def _run(program: str, plan: SessionPlan, watch: _Watch | None) -> None:
    if plan.attach is None:
        runpy.run_path(program, run_name="__main__")
        return

    def leave() -> NoReturn:
        if watch is not None:
            watch.progress.note(DONE)
        sys.stdout.flush()
        sys.stderr.flush()
        # Not by an exception: the program could catch it, or save a checkpoint on its way out.
        os._exit(0)

    attachment = Attachment(plan, plan.attach, leave)
    attachment.install()
    try:
        try:
            runpy.run_path(program, run_name="__main__")
        except SystemExit as stop:
            if _exit_status(stop):
                raise
        attachment.check_ended(Path(program).name)
    finally:
        attachment.let_go()


def _fail(watch: _Watch | None, error: BaseException) -> NoReturn:
    """Say why, and leave at once.

    An orderly exit would tear down the process group first, which can hang or abort while the peers are still inside
    a collective, and would put its own exit code in the place of the program's.
    """
    if watch is not None:
        watch.note_failure(error)
    code = 1
    if isinstance(error, ZerotraceError):
        sys.stderr.write(f"zerotrace: {error}\n  {error.hint or ''}\n")
    elif isinstance(error, SystemExit):
        code = _exit_status(error)
        if not isinstance(error.code, int):
            sys.stderr.write(f"{error.code}\n")
    else:
        traceback.print_exception(type(error), error, _program_frames(error.__traceback__))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_status(stop: SystemExit) -> int:
    """The exit status that a shell would see: eight bits of a number, 0 for ``None``, 1 for anything else."""
    if stop.code is None or isinstance(stop.code, int):
        return (stop.code or 0) & 0xFF
    return 1


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
