"""Starts the ranks of a capture under torchrun, watches them, and ends them all."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from zerotrace.capture import failure
from zerotrace.capture.complete import CaptureResult, Completion
from zerotrace.capture.folder import CaptureFolder
from zerotrace.capture.handoff import SESSION_VARIABLE, SessionPlan, session_plan, write_json
from zerotrace.capture.machine import rank_environment
from zerotrace.capture.plan import CapturePlan
from zerotrace.capture.processes import end_processes
from zerotrace.capture.progress import RankProgress, read_progress
from zerotrace.capture.stopping import InterruptError, on_stop_signal, raise_interrupt
from zerotrace.capture.torchrun import program_command, torchrun_command
from zerotrace.errors import CaptureError

_POLL_S = 0.1

#: Called several times a second with the progress of all ranks.
ProgressCallback = Callable[[Sequence[RankProgress]], None]


def run_capture(
    plan: CapturePlan,
    folder: CaptureFolder,
    *,
    program: Path | None = None,
    program_args: Sequence[str] = (),
    on_progress: ProgressCallback | None = None,
) -> CaptureResult:
    """Run a capture to its end; of a run on several machines, the part of this one.

    Whatever happens, every process that was started has ended when this returns or raises. Only a complete capture
    gets its final name; anything else is kept under a name that the error says.

    Args:
        plan: what to do.
        folder: reserved folder for the result.
        program: training program that every rank runs, in the place of the plan's own.
        program_args: its arguments.
        on_progress: told about the ranks' progress while they run.

    Raises:
        CaptureError: a rank died, the time was up, or the launcher was interrupted. ``exit_code`` is the code of the
            rank that died first (128 + the signal's number if a signal ended it), 124 when the time was up, and
            130 or 143 after Ctrl-C or SIGTERM.
    """
    session_file = folder.work.resolve() / "session.json"
    environment = {**rank_environment(plan.device, plan.nodes), SESSION_VARIABLE: str(session_file)}
    completion = Completion(plan, folder, environment)
    try:
        with on_stop_signal(raise_interrupt):
            write_json(session_file, _session_plan(completion))
            own = [str(program), *program_args] if program else program_command(plan, folder.work)
            _run_ranks(torchrun_command(plan, folder.work, own), environment, completion, on_progress)
            return completion.complete()
    except InterruptError as stop:
        raise CaptureError(
            f"The capture was interrupted ({stop.signal.name}); all ranks have been ended.",
            code="interrupted",
            hint=completion.keep(),
            exit_code=128 + stop.signal,
        ) from None
    except failure.RunError as error:
        hint = " ".join(part for part in (error.hint, completion.keep()) if part)
        raise CaptureError(error.message, code=error.code, hint=hint, exit_code=error.exit_code) from None
    except OSError as error:
        raise CaptureError(
            f"The capture could not be written: {error.strerror or error}.",
            code="out_unwritable",
            hint=completion.keep(),
        ) from error
    finally:
        if folder.partial.exists():
            # Some other error: the name must not stay reserved.
            folder.keep_failed()
        completion.remove_local()


def _session_plan(completion: Completion) -> SessionPlan:
    """What every rank of this machine is told."""
    plan, folder = completion.plan, completion.folder
    return replace(
        session_plan(plan),
        trace_folder=str(folder.partial.resolve()),
        work_folder=str(folder.work.resolve()),
        num_nodes=plan.nodes.num_nodes,
        local_folder=str(completion.local or ""),
    )


def _run_ranks(
    command: Sequence[str],
    environment: Mapping[str, str],
    completion: Completion,
    on_progress: ProgressCallback | None,
) -> None:
    session_file = Path(environment[SESSION_VARIABLE])
    with (completion.folder.work / "torchrun.log").open("wb") as log:
        torchrun = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            # Ctrl-C in a terminal goes to the launcher alone, which then ends the ranks in order.
            start_new_session=True,
        )
        try:
            _watch(torchrun, completion, session_file, on_progress)
        finally:
            # A second Ctrl-C must not cut this short.
            with on_stop_signal(signal.SIG_IGN):
                end_processes(torchrun.pid, session_file)
                torchrun.wait()


def _watch(
    torchrun: subprocess.Popen[bytes],
    completion: Completion,
    session_file: Path,
    on_progress: ProgressCallback | None,
) -> None:
    plan, work = completion.plan, completion.folder.work
    deadline = time.monotonic() + plan.timeout_s
    while True:
        code = torchrun.poll()
        progress = read_progress(work, plan.num_ranks, plan.first_rank)
        if on_progress is not None:
            on_progress(progress)
        if code == 0:
            return
        if code is not None:
            raise failure.rank_died(work, progress, code)
        if time.monotonic() > deadline and not (completion.may_go_on and completion.is_possible):
            raise failure.time_is_up(work, plan, torchrun.pid, session_file)
        time.sleep(_POLL_S)
