"""Labels of a micro-step's phases, of the reduction of gradients and of the optimizer step, at every stage."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from zerotrace.capture.engine_facts import is_deepspeed
from zerotrace.capture.hooks import Function, Hooks
from zerotrace.capture.marks import Marker
from zerotrace.labels import Label, LabelEvent, Phase, format_label

_STAGE_3 = "_DeepSpeedZeroOptimizer_Stage3"

#: Around all that an optimizer does in a step.
OPTIMIZER_STEP = format_label(Label(event=LabelEvent.OPTIMIZER_STEP))


class StepLabels:
    """The hooks of an engine and its optimizer.

    Args:
        marker: where labels go.
        end_backward: called at the end of each backward pass.
    """

    def __init__(self, marker: Marker, end_backward: Callable[[], None]) -> None:
        self._marker = marker
        self._end_backward = end_backward
        self._micro_step: int | None = None

    def install(self, engine: Any, hooks: Hooks) -> None:
        """Wrap the functions of the engine, its optimizer, and what these call."""
        for phase in Phase:
            hooks.wrap(phase.value, engine, (phase.value,), self._around_phase(engine, phase))
        optimizer = getattr(engine, "optimizer", None)
        if optimizer is None:
            hooks.lack("optimizer_step", "the engine has no optimizer")
            return
        hooks.wrap("optimizer_step", optimizer, ("step",), self._around_optimizer)
        # ZeRO's optimizers reduce gradients themselves, all others let the engine do it.
        buckets = [name for name in (f"{_STAGE_3}__reduce_and_partition_ipg_grads", "reduce_ipg_grads")
                   if hasattr(optimizer, name)]  # fmt: skip
        if buckets:
            hooks.wrap("reduce", optimizer, buckets, self._around_bucket(optimizer))
        elif is_deepspeed(engine):
            hooks.wrap("reduce", engine, ("allreduce_bucket",), self._around_tensors)
        module = sys.modules.get(type(optimizer).__module__)
        if not hasattr(optimizer, "parameter_offload") and hasattr(module, "all_gather_dp_groups"):
            hooks.wrap("post_step_gather", module, ("all_gather_dp_groups",), self._around_post_step_gather)

    def _around_phase(self, engine: Any, phase: Phase) -> Callable[[Function], Function]:
        def make(original: Function) -> Function:
            def call(*args: Any, **kwargs: Any) -> Any:
                if not self._marker.recording:
                    return original(*args, **kwargs)
                if self._micro_step is None:
                    self._micro_step = self._marker.begin(_micro_step_label(engine))
                try:
                    with self._marker.in_phase(phase):
                        returned = original(*args, **kwargs)
                        if phase is Phase.BACKWARD:
                            self._end_backward()
                        return returned
                finally:
                    if phase is Phase.STEP:
                        self._marker.end(self._micro_step)
                        self._micro_step = None

            return call

        return make

    def _around_optimizer(self, original: Function) -> Function:
        def step(*args: Any, **kwargs: Any) -> Any:
            if not self._marker.recording:
                return original(*args, **kwargs)
            with self._marker.mark(OPTIMIZER_STEP):
                return original(*args, **kwargs)

        return step

    def _around_bucket(self, optimizer: Any) -> Callable[[Function], Function]:
        def make(original: Function) -> Function:
            def reduce(*args: Any, **kwargs: Any) -> Any:
                num_grads, elements = _bucket_size(optimizer, args) if self._marker.recording else (0, 0)
                if not num_grads:
                    return original(*args, **kwargs)
                with self._marker.mark(_reduce_label(num_grads, elements)):
                    return original(*args, **kwargs)

            return reduce

        return make

    def _around_tensors(self, original: Function) -> Function:
        def allreduce_bucket(bucket: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._marker.recording:
                return original(bucket, *args, **kwargs)
            elements = sum(int(grad.numel()) for grad in bucket)
            num_bytes = sum(int(grad.numel() * grad.element_size()) for grad in bucket)
            with self._marker.mark(_reduce_label(len(bucket), elements, num_bytes)):
                return original(bucket, *args, **kwargs)

        return allreduce_bucket

    def _around_post_step_gather(self, original: Function) -> Function:
        def all_gather_dp_groups(*args: Any, **kwargs: Any) -> Any:
            if not self._marker.recording:
                return original(*args, **kwargs)
            groups = kwargs.get("groups_flat", args[0] if args else ())
            label = Label(
                event=LabelEvent.POST_STEP_GATHER,
                elements=sum(int(flat.numel()) for flat in groups),
                bytes=sum(int(flat.numel() * flat.element_size()) for flat in groups),
            )
            with self._marker.mark(format_label(label)):
                return original(*args, **kwargs)

        return all_gather_dp_groups


def _micro_step_label(engine: Any) -> str:
    accumulation = getattr(engine, "gradient_accumulation_steps", None)
    num_micro_steps = accumulation() if callable(accumulation) else 1
    number = getattr(engine, "micro_steps", 0) % (num_micro_steps or 1)
    return format_label(Label(event=LabelEvent.MICRO_STEP, number=number))


def _reduce_label(num_grads: int, elements: int, num_bytes: int | None = None) -> str:
    return format_label(Label(event=LabelEvent.REDUCE, num_params=num_grads, elements=elements, bytes=num_bytes))


def _bucket_size(optimizer: Any, args: tuple[Any, ...]) -> tuple[int, int]:
    """Gradients and elements in the bucket that is about to be reduced; one bucket a dtype since DeepSpeed 0.17."""
    buckets = getattr(optimizer, "ipg_buckets", None)
    if buckets is None:
        return len(optimizer.params_in_ipg_bucket), int(optimizer.elements_in_ipg_bucket)
    chosen = [buckets[args[0]]] if args and args[0] in buckets else list(buckets.values())
    return sum(len(bucket.params) for bucket in chosen), sum(int(bucket.elements) for bucket in chosen)
