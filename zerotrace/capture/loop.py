"""The session inside each rank: takes the training loop through the windows of a capture."""

from __future__ import annotations

import math
import os
import platform
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from msgspec.structs import asdict, astuple, replace

from zerotrace.capture import device
from zerotrace.capture.engine_facts import Engine, count_params, describe_engine, find_buckets, find_shard_groups
from zerotrace.capture.failure import problem_of
from zerotrace.capture.guard import ProfilerGuard
from zerotrace.capture.handoff import (
    OwnOrders,
    RankReport,
    RunFacts,
    SessionPlan,
    problem_path,
    write_problem,
)
from zerotrace.capture.ingesting import write_own_tables
from zerotrace.capture.labels import LabelHooks
from zerotrace.capture.manifest import unknown_engine
from zerotrace.capture.place import choose_place
from zerotrace.capture.plan import DEFAULTS, WINDOWS, at_least, choose_steps, order_windows
from zerotrace.capture.progress import ProgressWriter
from zerotrace.capture.schedule import build_windows
from zerotrace.capture.torch_program import as_engine
from zerotrace.capture.windows import TimedWindow, Window
from zerotrace.errors import CaptureError
from zerotrace.model import RankRecord, WindowRecord


class Session:
    """Counts the steps of a training loop, and measures them if the process is a rank of a capture.

    Use as a context manager around the loop, with one :meth:`step` after each optimizer step::

        with session(engine) as capture:
            for _ in range(steps):
                ...
                engine.step()
                capture.step(loss)

    Outside of a capture nothing is measured and nothing is written. Inside of one, the steps run through the windows
    that the capture asks for, see :mod:`zerotrace.capture.schedule`. Before each window with a profiler lies one step
    that is in no window: the profiler is on but does not record yet. The device is synchronised after every step, in
    every window, so that times mean the same in all of them.
    """

    def __init__(self, engine: Engine, plan: SessionPlan | None) -> None:
        self._engine = engine
        self._plan = plan
        self._recorder: _Recorder | None = None
        #: Optimizer steps done so far.
        self.num_steps = 0
        #: What a reader of the figures should know; goes into the manifest.
        self.notes: list[str] = []
        #: What the capture failed of first; a program may catch it and go on.
        self.error: Exception | None = None

    @property
    def num_missing(self) -> int:
        """Optimizer steps that the windows still need; 0 outside of a capture."""
        return self._recorder.num_missing if self._recorder is not None else 0

    def __enter__(self) -> Session:
        if self._plan is not None:
            try:
                with self._remembering():
                    self._recorder = _Recorder(self._engine, self._plan, self.notes)
                    self._recorder.start()
            except BaseException:
                self.close()
                raise
        return self

    def step(self, loss: torch.Tensor | None = None) -> None:
        """Mark the end of an optimizer step.

        Args:
            loss: this rank's loss of the step, a scalar; kept for the manifest.
        """
        self.num_steps += 1
        if self._recorder is not None:
            with self._remembering():
                self._recorder.step(loss)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._recorder is None:
            return
        try:
            if error is None:
                with self._remembering():
                    self._recorder.finish()
        finally:
            self.close()

    def close(self) -> None:
        """Keep what there is of a capture that is not complete."""
        if self._recorder is not None:
            self._recorder.close()

    @contextmanager
    def _remembering(self) -> Iterator[None]:
        """Raise the first failure of the capture again, whatever is tried after it."""
        if self.error is None:
            try:
                yield
            except Exception as error:
                self.error = error
                if self._recorder is not None:
                    self._recorder.fail(error)
                raise
        else:
            raise self.error


def session(
    engine: Engine,
    *,
    out: str | Path | None = None,
    warmup: int | None = None,
    timed: int | None = None,
    steps: int | None = None,
    windows: Sequence[str] = WINDOWS,
) -> Session:
    """The session of this process: a measuring one if it is a rank of ``zerotrace capture``, or if ``out`` is given.

    With ``out`` a program captures itself under any launcher: each rank writes its files, and rank 0 completes the
    folder. Every rank has to pass the same values. In a ``zerotrace capture`` that command's options hold instead.

    Args:
        engine: what ``deepspeed.initialize`` has returned first, the model in DDP or FSDP, or what stands in its place.
        out: new folder for the capture.
        warmup: warm-up steps; as for ``zerotrace capture`` where not given, like the next two.
        timed: timed steps, without a profiler.
        steps: steps of each window with a profiler.
        windows: which windows to run, all of them by default; see :mod:`zerotrace.capture.schedule`.

    Raises:
        ValueError: a number is too small, or there is no window of such a name.
        CaptureError: on entering, if the folder exists or cannot be made, or the engine is none.
    """
    for name, value, least in (("warmup", warmup, 0), ("timed", timed, 0), ("steps", steps, 1)):
        if value is not None:
            at_least(name, value, least)
    windows = order_windows(windows)
    plan = SessionPlan.from_environment()
    if plan is not None and plan.attach is not None:
        # `--script` counts the engine's steps already.
        plan = None
    elif plan is None and out is not None:
        kind = "cuda" if device.is_cuda() else "cpu"
        defaults = DEFAULTS[kind]
        num_steps = choose_steps(
            kind,
            timed=defaults.num_timed if timed is None else timed,
            profiled=defaults.num_profiled if steps is None else steps,
            windows=windows,
        )
        if not any(astuple(num_steps)):
            raise ValueError(f"timed is {timed} and windows {', '.join(windows)}; expected a window that measures")
        program = Path(sys.argv[0]).name
        plan = SessionPlan(
            num_warmup=defaults.num_warmup if warmup is None else warmup,
            **asdict(num_steps),
            own=OwnOrders(facts=RunFacts(command=(program, *sys.argv[1:]), program=program), out=str(out)),
        )
    return Session(as_engine(engine), plan)


class _Recorder:
    """Runs the windows of one rank and writes what they found."""

    def __init__(self, engine: Engine, plan: SessionPlan, notes: list[str]) -> None:
        self._engine = engine
        _check_known(engine, plan)
        self._notes = notes
        self._rank = torch.distributed.get_rank()
        self._labels = LabelHooks(engine)
        self._guard = ProfilerGuard(self._describe)
        self._place = choose_place(plan)
        self._plan = plan
        self._progress: ProgressWriter
        #: The windows that are still to come, the present one first.
        self._windows: list[Window] = []
        self._done: list[Window] = []
        self._records: list[WindowRecord] = []
        self._losses: list[torch.Tensor] = []
        self._step = 0
        self._step_ns: list[int] = []
        self._began_ns = 0

    @property
    def num_missing(self) -> int:
        """Steps that the windows still need."""
        return sum(window.num_steps for window in self._windows) - len(self._step_ns)

    def start(self) -> None:
        """Open the folder with all other ranks, and begin the first step."""
        self._plan = plan = self._place.open()
        self._progress = ProgressWriter(Path(plan.work_folder), self._rank)
        self._windows = build_windows(plan, self._rank, self._engine, self._labels)
        torch.distributed.barrier()
        self._open()
        self._begin_step()

    def step(self, loss: torch.Tensor | None) -> None:
        """End a step and begin the next one."""
        if not self._windows:
            return
        device.synchronize()
        self._step_ns.append(time.perf_counter_ns() - self._began_ns)
        self._guard.raise_refused()
        window = self._windows[0]
        window.end_step()
        if loss is not None:
            self._losses.append(loss.detach())
        self._step += 1
        if len(self._step_ns) == window.num_steps:
            self._close(window)
        if self._windows:
            self._begin_step()

    def finish(self) -> None:
        """Write the report of this rank; what the windows found is written already.

        Raises:
            RuntimeError: the loop ended before the last window was full.
        """
        if self._windows:
            raise RuntimeError(
                f"the training loop ended after {self._step} steps, in the window {self._windows[0].phase!r}: "
                f"the capture needs {self.num_missing} more"
            )
        self._guard.remove()
        report = replace(self._report(), no_tables=self._ingest())
        self._progress.note("waiting")
        self._place.deliver(report)

    def fail(self, error: Exception) -> None:
        """The capture has failed: tell the launcher why, in case the program catches the error and ends well."""
        problem = problem_of(self._rank, error)
        if problem is not None and self._plan.own is None:
            # On a full disk even this may find no room.
            with suppress(OSError):
                write_problem(problem_path(Path(self._plan.work_folder), self._rank), problem)

    def close(self) -> None:
        """Keep what there is of a capture that is not complete, and let go of the training program."""
        self._guard.remove()
        self._place.abandon()

    def _open(self) -> None:
        """Start the present window."""
        window = self._windows[0]
        if window.phase != Window.phase:
            self._guard.check()
            self._guard.install()
        window.start()

    def _describe(self) -> str:
        return f"in step {self._step} ({self._windows[0].phase})" if self._windows else f"after step {self._step}"

    def _begin_step(self) -> None:
        window = self._windows[0]
        if not (window.profiled or window.phase == Window.phase):
            self._guard.check()
        self._progress.note(window.phase, self._step)
        window.begin_step(self._step)
        self._began_ns = time.perf_counter_ns()

    def _close(self, window: Window) -> None:
        if window.writes:
            self._progress.note(f"{window.phase}-writing")
        window.finish()
        self._records += window.records(self._step - len(self._step_ns), tuple(self._step_ns))
        self._step_ns = []
        self._done.append(self._windows.pop(0))
        if self._windows:
            self._open()

    def _ingest(self) -> str | None:
        """Read this rank's trace, if that is asked for; why it could not be done."""
        trace = next((window.files["trace_file"] for window in self._done if "trace_file" in window.files), None)
        if not self._plan.ingest or trace is None:
            return None
        self._progress.note("ingesting")
        return write_own_tables(Path(self._plan.trace_folder) / trace, self._plan.ingest_until_s)

    def _report(self) -> RankReport:
        memory = next((window.memory for window in self._done if isinstance(window, TimedWindow)), None)
        record = RankRecord(
            rank=self._rank,
            # torchrun numbers the nodes of a run in GROUP_RANK; other launchers say nothing.
            host=int(os.environ.get("GROUP_RANK", self._plan.host)),
            device=device.device_name(),
            windows=tuple(self._records),
            resident_bytes=memory.resident_bytes if memory else None,
            peak_bytes=memory.peak_bytes if memory else None,
            reserved_bytes=memory.reserved_bytes if memory else None,
            device_used_bytes=memory.device_used_bytes if memory else None,
            **{field: path for window in self._done for field, path in window.files.items()},
        )
        return RankReport(
            record=record,
            num_params=count_params(self._engine.module),
            losses=tuple(value if math.isfinite(value := loss.item()) else None for loss in self._losses),
            versions=_versions(),
            # Asked again: some settings are settled in the first steps alone.
            engine=describe_engine(self._engine),
            buckets=find_buckets(self._engine),
            shard_groups=find_shard_groups(self._engine),
            labels=self._labels.summary,
            notes=tuple(self._notes),
        )


def _check_known(engine: Engine, plan: SessionPlan) -> None:
    """Refuse an engine early of which nobody will say what it is.

    Raises:
        CaptureError: it has no model, or nothing is known about its configuration.
    """
    if not isinstance(getattr(engine, "module", None), torch.nn.Module):
        raise CaptureError(
            f"The session was given a {type(engine).__name__} in the place of an engine.",
            code="engine_unknown",
            hint="Pass the first of the values that deepspeed.initialize returns.",
        )
    if plan.own is not None and plan.own.facts.engine is None and describe_engine(engine) is None:
        raise unknown_engine()


def _versions() -> dict[str, str]:
    versions: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if (deepspeed := sys.modules.get("deepspeed")) is not None:
        versions["deepspeed"] = deepspeed.__version__
    if device.is_cuda():
        versions["cuda"] = torch.version.cuda
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {name: str(version) for name, version in versions.items()}
