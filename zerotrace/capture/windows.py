"""The windows of a capture. Each is told when it starts, when a step begins and ends, and when it is over.

The session keeps the clock: a step's time runs from ``begin_step`` to ``end_step``, and what a window does in
``start`` and ``finish`` is never inside a step.
"""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from zerotrace.capture import device
from zerotrace.capture.plan import NUM_SETTLE
from zerotrace.model import WindowKind


class Window:
    """A number of steps that are run in one way. This one only counts them."""

    #: Name of the phase that the ranks report while they are in this window.
    phase = "warmup"
    #: How the manifest names the window; ``None`` keeps it out of the manifest.
    kind: WindowKind | None = WindowKind.WARMUP

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps

    def start(self) -> None:
        """Before the first step."""

    def begin_step(self, step: int) -> None:
        """Right before a step."""

    def end_step(self) -> None:
        """Right after a step; the device is idle."""

    def finish(self) -> None:
        """After the last step."""


class TimedWindow(Window):
    """Steps without a profiler: the run as it is. Reads the memory gauges."""

    phase = "timed"
    kind = WindowKind.TIMED

    def __init__(self, num_steps: int) -> None:
        super().__init__(num_steps)
        self.memory: device.MemoryGauges | None = None

    def start(self) -> None:
        """Line the ranks up and start a new interval for the peak."""
        torch.distributed.barrier()
        device.synchronize()
        device.reset_peak_memory()

    def finish(self) -> None:
        """Read the gauges."""
        self.memory = device.read_memory()


class SettleWindow(Window):
    """A step with the profiler on but not recording, so that its start-up cost is in no recorded step."""

    phase = "settle"
    kind = None

    def __init__(self, profiler: profile) -> None:
        super().__init__(NUM_SETTLE)
        self._profiler = profiler

    def start(self) -> None:
        """Switch the profiler on."""
        self._profiler.prepare_trace()


class ProfiledWindow(Window):
    """Steps under torch.profiler; leaves one Kineto trace.

    Each step is annotated ``ProfilerStep#N`` with the number of the optimizer step. The annotation ends after the
    device has been synchronised, so that the device work of a step lies in its window.
    """

    phase = "profiled"
    kind = WindowKind.PROFILED

    def __init__(self, num_steps: int, profiler: profile) -> None:
        super().__init__(num_steps)
        self._profiler = profiler
        self._annotation = ExitStack()

    def start(self) -> None:
        """Line the ranks up and start recording."""
        # The ranks leave the barrier together; recording starts within microseconds, the costly part is done.
        torch.distributed.barrier()
        device.synchronize()
        self._profiler.start_trace()

    def begin_step(self, step: int) -> None:
        """Open the annotation of the step."""
        self._annotation.enter_context(record_function(f"ProfilerStep#{step}"))

    def end_step(self) -> None:
        """Close the annotation of the step."""
        self._annotation.close()

    def finish(self) -> None:
        """Stop recording."""
        device.synchronize()
        self._profiler.stop_trace()

    def write_trace(self, path: Path) -> None:
        """Write the trace, gzipped; the file appears whole or not at all."""
        plain = path.with_suffix("")
        partial = path.with_name(path.name + ".partial")
        with _working_in(path.parent):
            self._profiler.export_chrome_trace(plain.name)
        with plain.open("rb") as source, gzip.open(partial, "wb", compresslevel=6) as target:
            shutil.copyfileobj(source, target, 1 << 20)
        plain.unlink()
        partial.rename(path)


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """Makes ``folder`` the working folder for a moment.

    Kineto writes the path that it is given into the trace (``traceName``): a bare file name says nothing about the
    machine.
    """
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def new_profiler() -> profile:
    """A torch profiler for the host and, where there is one, the CUDA device."""
    activities = [ProfilerActivity.CPU]
    if device.is_cuda():
        activities.append(ProfilerActivity.CUDA)
    return profile(activities=activities)
