"""Labels of the phases of a program that has no engine: a forward of its model, a backward, a step of its optimizer."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import torch

from zerotrace.capture.hooks import Function, Hooks
from zerotrace.capture.marks import Marker
from zerotrace.capture.step_labels import OPTIMIZER_STEP
from zerotrace.capture.torch_program import ProgramEngine
from zerotrace.labels import Label, LabelEvent, Phase, format_label


class ProgramLabels:
    """The hooks of a program's model and optimizer.

    A micro-step begins with a forward that is to have a backward, and ends where the next one begins, or with the step.

    Args:
        marker: where labels go.
        end_backward: called at the end of each backward pass.
    """

    def __init__(self, marker: Marker, end_backward: Any) -> None:
        self._marker = marker
        self._end_backward = end_backward
        self._forward = ExitStack()
        self._micro_step: int | None = None
        self._num_micro_steps = 0

    def install(self, engine: ProgramEngine, hooks: Hooks) -> None:
        """Place the hooks."""
        handles = [
            engine.parallel.register_forward_pre_hook(self._before_forward, prepend=True),
            engine.parallel.register_forward_hook(self._after_forward, always_call=True),
        ]

        def undo() -> None:
            for handle in handles:
                handle.remove()

        hooks.add("forward", undo)
        hooks.wrap("backward", torch.autograd, ("backward",), self._around_backward)
        if engine.counted_step is None:
            hooks.lack("optimizer_step", "only the model was given, not its optimizer")
        else:
            hooks.wrap("step", engine.counted_step, ("inner",), self._around_step)
            hooks.installed.append("optimizer_step")

    def end_step(self) -> None:
        """The step is over: the next micro-step is the first one."""
        self._forward.close()
        self._close_micro_step()
        self._num_micro_steps = 0

    def _before_forward(self, _module: Any, _args: Any) -> None:
        if not self._marker.recording or not torch.is_grad_enabled():
            return
        self._close_micro_step()
        label = Label(event=LabelEvent.MICRO_STEP, number=self._num_micro_steps)
        self._num_micro_steps += 1
        self._micro_step = self._marker.begin(format_label(label))
        self._forward.enter_context(self._marker.in_phase(Phase.FORWARD))

    def _after_forward(self, _module: Any, _args: Any, _output: Any) -> None:
        self._forward.close()

    def _around_backward(self, original: Function) -> Function:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if not self._marker.recording:
                return original(*args, **kwargs)
            with self._marker.in_phase(Phase.BACKWARD):
                returned = original(*args, **kwargs)
                self._end_backward()
                return returned

        return backward

    def _around_step(self, original: Function) -> Function:
        def step(*args: Any, **kwargs: Any) -> Any:
            if not self._marker.recording:
                return original(*args, **kwargs)
            try:
                with self._marker.in_phase(Phase.STEP), self._marker.mark(OPTIMIZER_STEP):
                    return original(*args, **kwargs)
            finally:
                self._close_micro_step()

        return step

    def _close_micro_step(self) -> None:
        if self._micro_step is not None:
            self._marker.end(self._micro_step)
            self._micro_step = None
