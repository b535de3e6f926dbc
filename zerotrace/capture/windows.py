"""The windows of a capture. Each is told when it starts, when a step begins and ends, and when it is over.

The session keeps the clock: a step's time runs from ``begin_step`` to ``end_step``, and what a window does in
``start`` and ``finish`` is never inside a step.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch
from torch.profiler import profile, record_function

from zerotrace.capture import device
from zerotrace.capture.guard import starting_ours
from zerotrace.capture.labels import LabelHooks
from zerotrace.capture.plan import NUM_SETTLE
from zerotrace.capture.trace import Activities, new_profiler, write_trace
from zerotrace.model import WindowKind, WindowRecord


class Window:
    """A number of steps that are run in one way. This one only counts them."""

    #: Name of the phase that the ranks report while they are in this window.
    phase = "warmup"
    #: How the manifest names the window; ``None`` keeps it out of the manifest.
    kind: WindowKind | None = WindowKind.WARMUP
    #: Whether it writes files when it is over.
    writes = False
    #: Whether our own profiler records in it.
    profiled = False

    def __init__(self, num_steps: int) -> None:
        self.num_steps = num_steps
        #: What the window has written: field of the rank's record -> path, relative to the run folder.
        self.files: dict[str, str] = {}

    def start(self) -> None:
        """Before the first step."""

    def begin_step(self, step: int) -> None:
        """Right before a step."""

    def end_step(self) -> None:
        """Right after a step; the device is idle."""

    def finish(self) -> None:
        """After the last step: leave everything as it was, and write what was found."""

    def records(self, first_step: int, step_ns: tuple[int, ...]) -> tuple[WindowRecord, ...]:
        """How the manifest holds its steps.

        Args:
            first_step: number of the first one.
            step_ns: duration of each.
        """
        return (WindowRecord(kind=self.kind, first_step=first_step, step_ns=step_ns),) if self.kind is not None else ()


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


class LabelledWindow(Window):
    """Steps without a profiler, in turn without and with the label hooks in place.

    A host's speed drifts by more within a minute than the hooks cost; steps that take turns share the drift.

    Args:
        num_steps: steps of each kind.
        labels: the hooks.
    """

    phase = "labelled"

    def __init__(self, num_steps: int, labels: LabelHooks) -> None:
        super().__init__(2 * num_steps)
        self._labels = labels
        self._with_labels = False

    def begin_step(self, step: int) -> None:  # noqa: ARG002
        """Put the hooks in place before every second step, and line the ranks up before each.

        Placing them takes one rank some milliseconds longer than another, for which the step would have to wait.
        """
        if self._with_labels:
            self._labels.install()
        torch.distributed.barrier()
        device.synchronize()

    def end_step(self) -> None:
        """Take them away after it."""
        self._labels.remove()
        self._with_labels = not self._with_labels

    def finish(self) -> None:
        """Take the hooks away, wherever the window ends."""
        self._labels.remove()

    def records(self, first_step: int, step_ns: tuple[int, ...]) -> tuple[WindowRecord, ...]:
        """Steps without labels and steps with them, each with every second number."""
        return tuple(
            WindowRecord(kind=kind, first_step=first_step + offset, step_ns=step_ns[offset::2], stride=2)
            for offset, kind in enumerate((WindowKind.UNLABELLED, WindowKind.LABELLED))
        )


class ProfiledWindow(Window):
    """Steps under torch.profiler; leaves one Kineto trace."""

    activities: Activities
    writes = True
    profiled = True

    def __init__(self, num_steps: int, path: Path, host: int = 0) -> None:
        super().__init__(num_steps)
        self._path = path
        self._host = host
        self._profiler: profile | None = None

    def prepare(self) -> None:
        """Switch the profiler on, without recording yet."""
        self._profiler = new_profiler(self.activities)
        with starting_ours():
            self._profiler.prepare_trace()

    def start(self) -> None:
        """Line the ranks up and start recording."""
        # The ranks leave the barrier together; recording starts within microseconds, the costly part is done.
        torch.distributed.barrier()
        device.synchronize()
        assert self._profiler is not None
        with starting_ours():
            self._profiler.start_trace()

    def finish(self) -> None:
        """Stop recording and write the trace; what it took of the host's memory is free again afterwards."""
        assert self._profiler is not None
        device.synchronize()
        self._profiler.stop_trace()
        write_trace(self._profiler, self._path, f"host-{self._host}")
        self._profiler = None


class SettleWindow(Window):
    """A step with the profiler on but not recording, so that its start-up cost is in no recorded step."""

    kind = None

    def __init__(self, window: ProfiledWindow) -> None:
        super().__init__(NUM_SETTLE)
        self._window = window
        self.phase = f"{window.phase}-settle"

    def start(self) -> None:
        """Switch the profiler on."""
        self._window.prepare()


class LightWindow(ProfiledWindow):
    """Steps in which the profiler records the device alone: kernel times that hardly differ from unprofiled ones.

    Such a trace has neither ``ProfilerStep`` nor labels nor what collectives carry.
    """

    phase = "light"
    kind = WindowKind.LIGHT
    activities = Activities.DEVICE

    def finish(self) -> None:
        """Stop recording and write the trace."""
        self._path.parent.mkdir(exist_ok=True)
        super().finish()
        self.files["light_trace_file"] = f"{self._path.parent.name}/{self._path.name}"


class DetailedWindow(ProfiledWindow):
    """Steps in which the profiler records host and device, with labels.

    Each step is annotated ``ProfilerStep#N`` with the number of the optimizer step. The annotation ends after the
    device has been synchronised, so that the device work of a step lies in its window.
    """

    phase = "detailed"
    kind = WindowKind.DETAILED
    activities = Activities.HOST_AND_DEVICE

    def __init__(self, num_steps: int, path: Path, labels: LabelHooks, host: int = 0) -> None:
        super().__init__(num_steps, path, host)
        self._labels = labels
        self._annotation = ExitStack()

    def prepare(self) -> None:
        """Switch the profiler on and put the label hooks in place."""
        self._labels.install()
        super().prepare()

    def begin_step(self, step: int) -> None:
        """Open the annotation of the step."""
        self._annotation.enter_context(record_function(f"ProfilerStep#{step}"))
        self._labels.record(True)

    def end_step(self) -> None:
        """Close the annotation of the step, and all labels before it."""
        self._labels.record(False)
        self._labels.end_step()
        self._annotation.close()

    def finish(self) -> None:
        """Stop recording, take the hooks away and write the trace."""
        self._labels.remove()
        super().finish()
        self.files["trace_file"] = self._path.name
