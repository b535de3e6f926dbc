"""The session inside each rank: takes the training loop through the windows of a capture."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import deepspeed
import torch

from zerotrace.capture import device
from zerotrace.capture.handoff import RankReport, SessionPlan, report_path, write_json
from zerotrace.capture.progress import ProgressWriter
from zerotrace.capture.windows import ProfiledWindow, SettleWindow, TimedWindow, Window, new_profiler
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
    warm-up, timed and profiled. Between the timed and the profiled window lies one step that is in no window: the
    profiler is on but does not record yet. The device is synchronised after every step, in every window, so that
    times mean the same in all of them.
    """

    def __init__(self, engine: deepspeed.DeepSpeedEngine, plan: SessionPlan | None) -> None:
        self._engine = engine
        self._recorder = _Recorder(engine, plan) if plan is not None else None
        #: Optimizer steps done so far.
        self.num_steps = 0

    def __enter__(self) -> Session:
        if self._recorder is not None:
            self._recorder.start()
        return self

    def step(self, loss: torch.Tensor | None = None) -> None:
        """Mark the end of an optimizer step.

        Args:
            loss: this rank's loss of the step, a scalar; kept for the manifest.
        """
        self.num_steps += 1
        if self._recorder is not None:
            self._recorder.step(loss)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._recorder is not None and error is None:
            self._recorder.finish()


def session(engine: deepspeed.DeepSpeedEngine) -> Session:
    """The session of this process: a measuring one if it is a rank of ``zerotrace capture``."""
    return Session(engine, SessionPlan.from_environment())


class _Recorder:
    """Runs the windows of one rank and writes what they found."""

    def __init__(self, engine: deepspeed.DeepSpeedEngine, plan: SessionPlan) -> None:
        self._engine = engine
        self._plan = plan
        self._rank = torch.distributed.get_rank()
        self._progress = ProgressWriter(Path(plan.work_folder), self._rank)
        profiler = new_profiler()
        self._timed = TimedWindow(plan.num_timed)
        self._profiled = ProfiledWindow(plan.num_profiled, profiler)
        warmup = Window(plan.num_warmup)
        windows = (warmup, self._timed, SettleWindow(profiler), self._profiled)
        self._windows = [window for window in windows if window.num_steps]
        self._records: list[WindowRecord] = []
        self._losses: list[torch.Tensor] = []
        self._step = 0
        self._step_ns: list[int] = []
        self._began_ns = 0

    def start(self) -> None:
        """Begin the first step."""
        torch.distributed.barrier()
        self._windows[0].start()
        self._begin_step()

    def step(self, loss: torch.Tensor | None) -> None:
        """End a step and begin the next one."""
        if not self._windows:
            return
        device.synchronize()
        self._step_ns.append(time.perf_counter_ns() - self._began_ns)
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
        """Write the trace and the report of this rank.

        Raises:
            RuntimeError: the loop ended before the last window was full.
        """
        if self._windows:
            raise RuntimeError(
                f"the training loop ended after {self._step} steps, in the window {self._windows[0].phase!r}: "
                f"the capture needs {sum(window.num_steps for window in self._windows) - len(self._step_ns)} more"
            )
        self._progress.note("writing")
        trace_file = f"rank_{self._rank}.pt.trace.json.gz"
        self._profiled.write_trace(Path(self._plan.trace_folder) / trace_file)
        write_json(report_path(Path(self._plan.work_folder), self._rank), self._report(trace_file))
        # No rank may leave while another still writes: the first exit can end the process group of all.
        self._progress.note("waiting")
        torch.distributed.barrier()

    def _begin_step(self) -> None:
        window = self._windows[0]
        self._progress.note(window.phase, self._step)
        window.begin_step(self._step)
        self._began_ns = time.perf_counter_ns()

    def _close(self, window: Window) -> None:
        window.finish()
        if window.kind is not None:
            first_step = self._step - len(self._step_ns)
            self._records.append(WindowRecord(kind=window.kind, first_step=first_step, step_ns=tuple(self._step_ns)))
        self._step_ns = []
        del self._windows[0]
        if self._windows:
            self._windows[0].start()

    def _report(self, trace_file: str) -> RankReport:
        memory = self._timed.memory
        record = RankRecord(
            rank=self._rank,
            # torchrun numbers the nodes of a run in GROUP_RANK.
            host=int(os.environ.get("GROUP_RANK", "0")),
            device=device.device_name(),
            windows=tuple(self._records),
            resident_bytes=memory.resident_bytes if memory else None,
            peak_bytes=memory.peak_bytes if memory else None,
            reserved_bytes=memory.reserved_bytes if memory else None,
            device_used_bytes=memory.device_used_bytes if memory else None,
            trace_file=trace_file,
        )
        return RankReport(
            record=record,
            num_params=count_params(self._engine.module),
            losses=tuple(loss.item() for loss in self._losses),
            versions=_versions(),
        )


def count_params(module: torch.nn.Module) -> int:
    """Ψ: elements of all parameters, tied ones once, whole ones where ZeRO-3 has partitioned them."""
    return sum(int(getattr(param, "ds_numel", param.numel())) for param in module.parameters())


def _versions() -> dict[str, str]:
    versions: dict[str, Any] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "deepspeed": deepspeed.__version__,
    }
    if device.is_cuda():
        versions["cuda"] = torch.version.cuda
        versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {name: str(version) for name, version in versions.items()}
