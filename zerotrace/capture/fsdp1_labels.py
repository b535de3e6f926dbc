"""Labels of the parameter traffic of torch's first FullyShardedDataParallel.

Read in torch 2.4 to 2.13: whatever is gathered goes through a handle's ``_all_gather_flat_param``, ahead of its turn
from within ``_prefetch_handle``; whatever is reduced goes through ``_reduce_grad``.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch

from zerotrace.capture.fsdp1 import FlatParam, find_flat_params
from zerotrace.capture.hooks import Function, Hooks
from zerotrace.capture.marks import Marker, in_backward
from zerotrace.labels import GatherKind, Label, LabelEvent, Phase, first_params, format_label

_RUNTIME = "torch.distributed.fsdp._runtime_utils"
_FLAT_PARAM = "torch.distributed.fsdp._flat_param"


class Fsdp1Labels:
    """The hooks around FSDP1's handles.

    Args:
        marker: where labels go.
        model: the model; names are as it has them.
    """

    def __init__(self, marker: Marker, model: torch.nn.Module) -> None:
        self._marker = marker
        self._model = model
        self._submissions = itertools.count()
        self._of_handle: dict[int, FlatParam] = {}
        self._root = ""
        self._ahead_for: str | None = None

    def install(self, hooks: Hooks) -> None:
        """Wrap the functions of torch."""
        self._of_handle = {id(flat.handle): flat for flat in find_flat_params(self._model)}
        runtime, flat = sys.modules.get(_RUNTIME), sys.modules.get(_FLAT_PARAM)
        handle = getattr(flat, "FlatParamHandle", None)
        hooks.wrap("gather", handle, ("_all_gather_flat_param",), self._around_gather)
        hooks.wrap("prefetch", runtime, ("_prefetch_handle",), self._around_prefetch)
        hooks.wrap("reduce", runtime, ("_reduce_grad",), self._around_reduce)

    def _around_prefetch(self, original: Function) -> Function:
        def prefetch_handle(state: Any, current_handle: Any, *args: Any, **kwargs: Any) -> Any:
            turn = self._of_handle.get(id(current_handle))
            outer, self._ahead_for = self._ahead_for, turn.module if turn is not None else None
            try:
                return original(state, current_handle, *args, **kwargs)
            finally:
                self._ahead_for = outer

        return prefetch_handle

    def _around_gather(self, original: Function) -> Function:
        def all_gather_flat_param(handle: Any, gathered: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            ours = self._of_handle.get(id(handle)) if self._marker.recording else None
            if ours is None:
                return original(handle, gathered, *args, **kwargs)
            with self._marker.mark(self._gather_label(ours, gathered)):
                return original(handle, gathered, *args, **kwargs)

        return all_gather_flat_param

    def _around_reduce(self, original: Function) -> Function:
        def reduce_grad(state: Any, handle: Any, *args: Any, **kwargs: Any) -> Any:
            ours = self._of_handle.get(id(handle)) if self._marker.recording else None
            if ours is None:
                return original(state, handle, *args, **kwargs)
            label = Label(
                event=LabelEvent.REDUCE,
                module=ours.module,
                params=first_params(list(ours.params)),
                num_params=len(ours.params),
                elements=ours.elements,
                bytes=ours.elements * int(handle.flat_param.grad.element_size()),
            )
            with self._marker.mark(format_label(label)):
                return original(state, handle, *args, **kwargs)

        return reduce_grad

    def _gather_label(self, ours: FlatParam, gathered: torch.Tensor) -> str:
        forward = str(ours.handle._training_state.name) == "FORWARD"
        # As with FSDP2: in the forward FSDP1 gathers on a stream of its own when the host comes to a module, and what
        # has nothing before it is the root.
        implicit = forward and ours.module != self._root and not in_backward()
        ahead = self._ahead_for is not None
        names = list(ours.params if forward else reversed(ours.params))
        return format_label(
            Label(
                event=LabelEvent.GATHER,
                kind=GatherKind.PREFETCH if ahead or implicit else GatherKind.DEMAND,
                phase=Phase.FORWARD if forward else Phase.BACKWARD,
                recompute=forward and in_backward(),
                module=self._ahead_for if ahead else ours.module,
                params=first_params(names),
                num_params=len(names),
                elements=ours.elements,
                bytes=ours.elements * gathered.element_size(),
                submission=next(self._submissions),
            )
        )
