"""Starts the ranks of a capture under torchrun, watches them, and ends them all."""

from __future__ import annotations

import datetime
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from zerotrace.capture import failure
from zerotrace.capture.folder import CaptureFolder
from zerotrace.capture.handoff import SESSION_VARIABLE, RankReport, SessionPlan, read_report, report_path, write_json
from zerotrace.capture.machine import find_runner, rank_environment, recorded_environment
from zerotrace.capture.plan import CapturePlan
from zerotrace.capture.processes import end_processes
from zerotrace.capture.progress import RankProgress, read_progress
from zerotrace.errors import CaptureError
from zerotrace.model import RunManifest
from zerotrace.version import VERSION

_POLL_S = 0.1

#: Called several times a second with the progress of all ranks.
ProgressCallback = Callable[[Sequence[RankProgress]], None]


@dataclass(frozen=True, kw_only=True)
class CaptureResult:
    """A complete capture."""

    folder: Path
    manifest: RunManifest


class _InterruptError(Exception):
    """A signal has asked the launcher to stop."""

    def __init__(self, sig: int) -> None:
        super().__init__(sig)
        self.signal = signal.Signals(sig)


def run_capture(
    plan: CapturePlan,
    folder: CaptureFolder,
    *,
    program: Path | None = None,
    program_args: Sequence[str] | None = None,
    on_progress: ProgressCallback | None = None,
) -> CaptureResult:
    """Run a capture to its end.

    Whatever happens, every process that was started has ended when this returns or raises. Only a complete capture
    gets its final name; anything else is kept under a name that the error says.

    Args:
        plan: what to do.
        folder: reserved folder for the result.
        program: training program that every rank runs; zerotrace's own GPT-2 where none is given.
        program_args: its arguments; where none are given, those that the GPT-2 takes.
        on_progress: told about the ranks' progress while they run.

    Raises:
        CaptureError: a rank died, the time was up, or the launcher was interrupted. ``exit_code`` is the code of the
            rank that died first (128 + the signal's number if a signal ended it), 124 when the time was up, and
            130 or 143 after Ctrl-C or SIGTERM.
    """
    created = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    try:
        with _on_stop_signal(_raise_interrupt):
            environment = _prepare(plan, folder)
            command = [
                *_torchrun(plan.num_ranks, folder.work / "torchrun"),
                str(program or find_runner()),
                *(_gpt2_args(plan, folder) if program_args is None else program_args),
            ]
            _run_ranks(command, environment, plan, folder, on_progress)
            reports = _read_reports(plan, folder)
            manifest = _manifest(plan, reports, created, recorded_environment(environment))
            write_json(folder.partial / "manifest.json", manifest)
            shutil.rmtree(folder.work)
            folder.publish()
    except _InterruptError as stop:
        raise CaptureError(
            f"The capture was interrupted ({stop.signal.name}); all ranks have been ended.",
            code="interrupted",
            hint=_kept(folder),
            exit_code=128 + stop.signal,
        ) from None
    except failure.RunError as error:
        raise CaptureError(error.message, code=error.code, hint=_kept(folder), exit_code=error.exit_code) from None
    except OSError as error:
        raise CaptureError(
            f"The capture could not be written: {error.strerror or error}.", code="out_unwritable", hint=_kept(folder)
        ) from error
    return CaptureResult(folder=folder.path, manifest=manifest)


def _kept(folder: CaptureFolder) -> str:
    return f"What was written is in {folder.keep_failed()}."


def _prepare(plan: CapturePlan, folder: CaptureFolder) -> dict[str, str]:
    """Write the session file of the ranks; returns their environment."""
    session_file = folder.work.resolve() / "session.json"
    session = SessionPlan(
        trace_folder=str(folder.partial.resolve()),
        work_folder=str(folder.work.resolve()),
        num_warmup=plan.num_warmup,
        num_timed=plan.num_timed,
        num_profiled=plan.num_profiled,
    )
    write_json(session_file, session)
    return {**rank_environment(plan.device), SESSION_VARIABLE: str(session_file)}


def _run_ranks(
    command: Sequence[str],
    environment: Mapping[str, str],
    plan: CapturePlan,
    folder: CaptureFolder,
    on_progress: ProgressCallback | None,
) -> None:
    session_file = Path(environment[SESSION_VARIABLE])
    with (folder.work / "torchrun.log").open("wb") as log:
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
            _watch(torchrun, plan, folder, session_file, on_progress)
        finally:
            # A second Ctrl-C must not cut this short.
            with _on_stop_signal(signal.SIG_IGN):
                end_processes(torchrun.pid, session_file)
                torchrun.wait()


def _gpt2_args(plan: CapturePlan, folder: CaptureFolder) -> list[str]:
    ds_config = folder.work / "ds_config.json"
    write_json(ds_config, plan.ds_config)
    options = {
        "--model": plan.model,
        "--ds-config": ds_config.resolve(),
        "--sequence": plan.sequence,
        "--steps": plan.num_steps,
        "--seed": plan.seed,
    }
    return [str(part) for option in options.items() for part in option]


def _torchrun(num_ranks: int, log_folder: Path) -> list[str]:
    return [
        sys.executable,
        "-m",
        "zerotrace.capture.agent",
        # A rendezvous of its own on a free port: captures that run at the same time do not meet.
        "--standalone",
        "--local-addr",
        "127.0.0.1",
        "--nproc-per-node",
        str(num_ranks),
        # It makes this folder in any case, by default in the temporary folder, and leaves it there.
        "--log-dir",
        str(log_folder),
        "-m",
        "zerotrace.capture.rank",
    ]


def _watch(
    torchrun: subprocess.Popen[bytes],
    plan: CapturePlan,
    folder: CaptureFolder,
    session_file: Path,
    on_progress: ProgressCallback | None,
) -> None:
    deadline = time.monotonic() + plan.timeout_s
    while True:
        code = torchrun.poll()
        progress = read_progress(folder.work, plan.num_ranks)
        if on_progress is not None:
            on_progress(progress)
        if code == 0:
            return
        if code is not None:
            raise failure.rank_died(folder.work, progress, code)
        if time.monotonic() > deadline:
            raise failure.time_is_up(folder.work, plan, torchrun.pid, session_file)
        time.sleep(_POLL_S)


def _read_reports(plan: CapturePlan, folder: CaptureFolder) -> list[RankReport]:
    paths = [report_path(folder.work, rank) for rank in range(plan.num_ranks)]
    missing = [rank for rank, path in enumerate(paths) if not path.is_file()]
    if missing:
        raise failure.no_report(missing)
    return [read_report(path) for path in paths]


def _manifest(
    plan: CapturePlan, reports: Sequence[RankReport], created: str, environment: dict[str, str]
) -> RunManifest:
    return RunManifest(
        created=created,
        zerotrace_version=VERSION,
        command=plan.command,
        engine="deepspeed",
        stage=plan.stage,
        world_size=plan.num_ranks,
        device=plan.device,
        backend=plan.backend,
        model=plan.decoder.shape(reports[0].num_params),
        micro_batch=plan.micro_batch,
        sequence=plan.sequence,
        seed=plan.seed,
        ds_config=plan.ds_config,
        versions=reports[0].versions,
        environment=environment,
        losses=reports[0].losses,
        ranks=tuple(report.record for report in reports),
    )


def _raise_interrupt(sig: int, _frame: FrameType | None) -> None:
    raise _InterruptError(sig)


@contextmanager
def _on_stop_signal(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> Iterator[None]:
    """Have SIGINT and SIGTERM handled in another way for a while. Only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {sig: signal.signal(sig, handler) for sig in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for sig, old in before.items():
            signal.signal(sig, old)
