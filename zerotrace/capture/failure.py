"""Says why a run has failed: which rank, where it was, what it wrote last."""

from __future__ import annotations

import errno
import os
import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from zerotrace.capture.handoff import problem_path, read_problem
from zerotrace.capture.plan import CapturePlan
from zerotrace.capture.processes import find_processes
from zerotrace.capture.progress import BEFORE_STEPS, DONE, FAILED, RankProgress, read_progress
from zerotrace.errors import CaptureError, ZerotraceError

TIMEOUT_EXIT_CODE = 124
"""Exit code when the time is up, as coreutils' ``timeout`` has it."""

#: Asks a rank to write the Python stack of each of its threads into its ``.stack`` file.
STACK_SIGNAL = signal.SIGUSR1

_TAIL_LINES = 20

# From torchrun's summary of a failed run, one block a rank.
_TORCHRUN_FAILURE = re.compile(r"^\s*rank\s*:\s*(\d+) \(local_rank: \d+\)\s*\n\s*exitcode\s*:\s*(-?\d+)", re.MULTILINE)

_STACK_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)', re.MULTILINE)

# As the module `warnings` writes them.
_WARNING = re.compile(r"\S.*:\d+: \w*Warning: ")

# Where a rank's innermost Python frame is when it waits for its peers (or for its device, which does).
_SAYS_NOTHING = ("torch/autograd/graph.py",)
_WAITING_IN = ("torch/distributed/", "deepspeed/comm/", "torch/cuda/__init__.py", "torch/cuda/streams.py")


class RunError(Exception):
    """A run that has failed, with all that can be said about it."""

    def __init__(self, message: str, *, code: str, exit_code: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.exit_code = exit_code
        self.hint = hint


def problem_of(rank: int, error: BaseException) -> ZerotraceError | None:
    """An error of a rank in words for the launcher; ``None`` where the training program's own words are all there is.

    Args:
        rank: the rank.
        error: what has ended its program, or its part in the capture.
    """
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        name = f" {Path(error.filename).name}" if error.filename else ""
        return CaptureError(
            f"Rank {rank} could not write{name or ' its files'}: {error.strerror}.",
            code="disk_full",
            hint="Make room, or pass an --out on another disk.",
        )
    return error if isinstance(error, ZerotraceError) else None


def rank_died(work: Path, progress: Sequence[RankProgress], torchrun_code: int) -> RunError:
    """A run that torchrun has ended because a rank died.

    Args:
        work: folder with the logs.
        progress: what the ranks last noted.
        torchrun_code: exit code of torchrun itself.
    """
    for p in progress:
        if problem := read_problem(problem_path(work, p.rank)):
            return RunError(str(problem), code=problem.code, exit_code=problem.exit_code, hint=problem.hint)
    torchrun_log = _read(work / "torchrun.log")
    codes = {int(rank): int(code) for rank, code in _TORCHRUN_FAILURE.findall(torchrun_log)}
    rank = _first_to_die(codes, progress)
    if rank is None:
        return RunError(
            f"torchrun ended with exit code {torchrun_code} before any rank ran.\n{_tail(torchrun_log)}",
            code="launch_failed",
            exit_code=_shell_code(torchrun_code),
        )
    code = codes.get(rank, 1)
    where = next(p for p in progress if p.rank == rank).describe()
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    log = _tail(_read(work / f"rank_{rank}.log")) or _tail(torchrun_log)
    return RunError(
        f"Rank {rank} {how} ({where}); the other ranks have been ended.\nLast lines of rank {rank}:\n{log}",
        code="rank_died",
        exit_code=_shell_code(code),
    )


def time_is_up(work: Path, plan: CapturePlan, torchrun: int, session_file: Path) -> RunError:
    """A run that has reached its time limit. Asks the ranks, which still run, for their stacks."""
    progress = read_progress(work, plan.num_ranks, plan.first_rank)
    stacks = _collect_stacks(work, progress, torchrun, session_file)
    late = _late_ranks(progress, stacks)
    if late:
        names = ", ".join(str(rank) for rank in late)
        verdict = f"Late: rank{'s' if len(late) > 1 else ''} {names}; the others wait."
    else:
        verdict = "No rank is behind the others."
    if plan.nodes.endpoint is not None and all(p.phase == "launched" for p in progress):
        verdict = f"The {plan.nodes.num_nodes} nodes did not all meet at {plan.nodes.endpoint} (--rdzv-endpoint)."
    lines = [f"  rank {p.rank}: {p.describe()}{_in_frame(stack)}" for p, stack in zip(progress, stacks)]
    for rank in late[:1]:
        if log := _tail(_read(work / f"rank_{rank}.log")):
            lines += [f"Last lines of rank {rank}:", log]
    return RunError(
        f"The capture was not done after {plan.timeout_s:g} s (--timeout), and all ranks have been ended. {verdict}\n"
        + "\n".join(lines),
        code="timeout",
        exit_code=TIMEOUT_EXIT_CODE,
    )


def no_report(work: Path, plan: CapturePlan, ranks: Sequence[int]) -> RunError:
    """A run whose training program ended well, without a report from some of its ranks.

    Args:
        work: folder with what the ranks have noted.
        plan: what they had to do.
        ranks: those without a report.
    """
    for rank in ranks:
        if problem := read_problem(problem_path(work, rank)):
            return RunError(str(problem), code=problem.code, exit_code=problem.exit_code, hint=problem.hint)
    progress = [p for p in read_progress(work, plan.num_ranks, plan.first_rank) if p.rank in ranks]
    # A session that has begun reports, or says why it cannot, before its program comes to its end.
    if begun := [p for p in progress if p.step >= 0 or p.phase not in (*BEFORE_STEPS, DONE)]:
        where = "; ".join(f"rank {p.rank} {p.describe()}" for p in begun)
        return RunError(
            f"The training program ended without an error, but too early: {where}. The windows of this capture need "
            f"{plan.num_steps} steps, and the program has to end after them.",
            code="too_few_steps",
            exit_code=1,
            hint="Let the program run longer, or ask for less with --warmup, --timed and --steps.",
        )
    names = ", ".join(str(rank) for rank in ranks)
    who = f"rank {names} has" if len(ranks) == 1 else f"ranks {names} have"
    if plan.script is not None:
        return RunError(
            f"{plan.program} ended without an error, but {who} measured nothing: it ended itself before "
            "deepspeed.initialize returned.",
            code="no_session",
            exit_code=1,
            hint="Check the arguments after `--`: does the program train with DeepSpeed?",
        )
    return RunError(
        f"The training program ended without an error, but {who} measured nothing: the loop has to run "
        "inside `with session(engine) as capture:` and call `capture.step(loss)` after each optimizer step.",
        code="no_session",
        exit_code=1,
    )


def _first_to_die(codes: dict[int, int], progress: Sequence[RankProgress]) -> int | None:
    """The rank whose end ended the others.

    A rank that dies without a word (a signal, ``os._exit``) leaves its progress at the last step, and its peers fail
    on their next collective. torchrun itself ends the rest with SIGTERM.
    """
    own = {rank: code for rank, code in codes.items() if code != -signal.SIGTERM} or codes
    with_word = {p.rank for p in progress if p.phase == FAILED}
    wordless = [rank for rank in own if rank not in with_word]
    if wordless:
        return min(wordless)
    failed = [p for p in progress if p.phase == FAILED]
    if failed:
        return min(failed, key=lambda p: p.time_ns).rank
    return None


def _late_ranks(progress: Sequence[RankProgress], stacks: Sequence[list[str]]) -> list[int]:
    """The ranks that the others wait for: those least far, or, at the same step, those not inside a collective."""
    least = min(p.position for p in progress)
    behind = [p.rank for p in progress if p.position == least]
    if len(behind) < len(progress):
        return behind
    # A rank that lives and does not even answer is stopped, or stuck in the kernel.
    silent = [p.rank for p, frames in zip(progress, stacks) if p.pid is not None and not frames]
    if 0 < len(silent) < len(progress):
        return silent
    busy = {
        p.rank: frames[0] for p, frames in zip(progress, stacks) if frames and not frames[0].startswith(_WAITING_IN)
    }
    # Collectives run inside of backward too, where Python sees autograd's engine alone: that is no evidence.
    telling = [rank for rank, frame in busy.items() if not frame.startswith(_SAYS_NOTHING)]
    late = telling or list(busy)
    return late if len(late) < len(progress) else []


def _collect_stacks(work: Path, progress: Sequence[RankProgress], torchrun: int, session_file: Path) -> list[list[str]]:
    """The frames of each rank's main thread, innermost first, as ``package/file.py:line in function``."""
    alive = {process.pid for process in find_processes(torchrun, session_file)}
    for p in progress:
        # A rank notes its pid after it has set up the handler, without which the signal would end it.
        if p.pid is not None and p.pid in alive:
            os.kill(p.pid, STACK_SIGNAL)
    time.sleep(0.5)
    return [_main_thread(_read(work / f"rank_{p.rank}.stack")) for p in progress]


def _main_thread(dump: str) -> list[str]:
    """The frames of the main thread in a dump by :mod:`faulthandler`, which lists it last."""
    block = dump[dump.rfind("Thread 0x") :] if "Thread 0x" in dump else dump
    return [
        f"{without_machine(frame['file'])}:{frame['line']} in {frame['function']}"
        for frame in _STACK_FRAME.finditer(block)
    ]


def without_machine(path: str) -> str:
    """A source path from its package on, or its name alone."""
    _, found, inside = path.rpartition("site-packages/")
    return inside if found else Path(path).name


def _in_frame(frames: list[str]) -> str:
    return f", at {frames[0]}" if frames else ", gave no stack when asked"


def _shell_code(code: int) -> int:
    """An exit code as a shell shows it: 128 + the number of the signal that ended the process."""
    return 128 - code if code < 0 else code


def _tail(text: str) -> str:
    """The last lines of a log, without Python's warnings unless there is nothing else."""
    lines = text.rstrip().splitlines()
    kept = [line for line, before in zip(lines, ["", *lines]) if not _is_of_warning(line, before)]
    return "\n".join(f"  {line}" for line in (kept or lines)[-_TAIL_LINES:])


def _is_of_warning(line: str, before: str) -> bool:
    # The line of code that has warned stands below, indented.
    return bool(_WARNING.match(line) or (line.startswith("  ") and _WARNING.match(before)))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""
