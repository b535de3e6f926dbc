"""Labels of stage 3's parameter traffic: fetches, prefetches, releases, and the refresh of persisted parameters.

Read in the sources of DeepSpeed 0.16.0, 0.16.9, 0.17.6, 0.18.3, 0.19.2 and 0.19.8, which all have the same ways for a
parameter to be gathered: the coordinator's private ``__all_gather_params``, asynchronous and called from within a
fetch; and ``Init._all_gather``, from the optimizer's ``_post_step``, from ``GatheredParameters`` and for parameters
that turn up outside of the module that owns them.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping
from typing import Any

from zerotrace.capture.hooks import Function, Hooks
from zerotrace.capture.marks import Marker, in_backward
from zerotrace.labels import GatherKind, Label, LabelEvent, Phase, first_params, format_label

_COORDINATOR = "_PartitionedParameterCoordinator"


class ParamLabels:
    """The hooks around stage 3's coordinator.

    Args:
        marker: where labels go.
        module_names: ``id`` of each module -> its qualified name.
        param_names: ``id`` of each parameter -> its qualified name.
    """

    def __init__(self, marker: Marker, module_names: Mapping[int, str], param_names: Mapping[int, str]) -> None:
        self._marker = marker
        self._module_names = module_names
        self._param_names = param_names
        self._submissions = itertools.count()
        # Leaf modules may be fetched by several threads of autograd at once.
        self._thread = _ThreadState()

    def install(self, optimizer: Any, hooks: Hooks) -> None:
        """Wrap the functions of an optimizer at stage 3, or of what stands for it in inference."""
        # Other engines get along without DeepSpeed.
        from deepspeed.runtime.zero import partition_parameters

        offload = getattr(optimizer, "parameter_offload", optimizer)
        coordinator = offload.get_param_coordinator()
        hooks.wrap("fetch", coordinator, ("_fetch_sub_module_impl", "fetch_sub_module"), self._around_fetch)
        hooks.wrap("release", coordinator, ("release_sub_module",), self._around_release)
        hooks.wrap("gather", coordinator, (f"{_COORDINATOR}__all_gather_params",), self._around_submit)
        hooks.wrap("refresh", partition_parameters.Init, ("_all_gather",), self._around_all_gather)
        comm = partition_parameters.dist
        hooks.wrap("refresh collective", comm, ("all_gather_into_tensor",), self._around_collective)

    def _around_fetch(self, original: Function) -> Function:
        def fetch(current_submodule: Any, forward: bool, *args: Any, **kwargs: Any) -> Any:
            if not self._marker.recording:
                return original(current_submodule, forward, *args, **kwargs)
            outer, self._thread.fetch = self._thread.fetch, (current_submodule, forward)
            try:
                with self._marker.mark(self._module_label(LabelEvent.FETCH, current_submodule, forward)):
                    return original(current_submodule, forward, *args, **kwargs)
            finally:
                self._thread.fetch = outer

        return fetch

    def _around_release(self, original: Function) -> Function:
        def release(submodule: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._marker.recording:
                return original(submodule, *args, **kwargs)
            # Before 0.17, it is not told in which phase it is called.
            forward = kwargs.get("forward", args[0] if args else not in_backward())
            with self._marker.mark(self._module_label(LabelEvent.RELEASE, submodule, forward)):
                return original(submodule, *args, **kwargs)

        return release

    def _around_submit(self, original: Function) -> Function:
        def all_gather_params(params: Iterable[Any], forward: bool, *args: Any, **kwargs: Any) -> Any:
            absent = _absent(params) if self._marker.recording else []
            if not absent:
                return original(params, forward, *args, **kwargs)
            module = self._thread.fetch[0] if self._thread.fetch else None
            kind = GatherKind.DEMAND if _belong_to(absent, module) else GatherKind.PREFETCH
            with self._marker.mark(self._gather_label(kind, absent, module, forward)):
                return original(params, forward, *args, **kwargs)

        return all_gather_params

    def _around_all_gather(self, original: Function) -> Function:
        def all_gather(init: Any, param_list: Iterable[Any], *args: Any, **kwargs: Any) -> Any:
            absent = _absent(param_list) if self._marker.recording else []
            if not absent:
                return original(init, param_list, *args, **kwargs)
            self._thread.gathering = {param.ds_tensor.data_ptr(): param for param in absent}
            try:
                if self._marker.phase is not Phase.STEP:
                    return original(init, param_list, *args, **kwargs)
                elements, num_bytes = _size(absent)
                label = Label(
                    event=LabelEvent.POST_STEP_GATHER, num_params=len(absent), elements=elements, bytes=num_bytes
                )
                with self._marker.mark(format_label(label)):
                    return original(init, param_list, *args, **kwargs)
            finally:
                self._thread.gathering = {}

        return all_gather

    def _around_collective(self, original: Function) -> Function:
        def all_gather_into_tensor(output: Any, source: Any, *args: Any, **kwargs: Any) -> Any:
            gathering = self._thread.gathering if self._marker.recording else {}
            param = gathering.get(source.data_ptr()) if gathering else None
            if param is None:
                return original(output, source, *args, **kwargs)
            refresh = self._marker.phase is Phase.STEP
            module, forward = self._thread.fetch or (_running_module(), self._marker.phase is not Phase.BACKWARD)
            label = (
                self._gather_label(GatherKind.REFRESH, [param], None, forward)
                if refresh
                else self._gather_label(GatherKind.DEMAND, [param], module, forward)
            )
            with self._marker.mark(label):
                return original(output, source, *args, **kwargs)

        return all_gather_into_tensor

    def _module_label(self, event: LabelEvent, module: Any, forward: bool) -> str:
        phase, recompute = _phase(forward)
        name = self._module_names.get(id(module))
        return format_label(Label(event=event, phase=phase, recompute=recompute, module=name))

    def _gather_label(self, kind: GatherKind, params: list[Any], module: Any, forward: bool) -> str:
        phase, recompute = _phase(forward)
        elements, num_bytes = _size(params)
        return format_label(
            Label(
                event=LabelEvent.GATHER,
                kind=kind,
                phase=Phase.STEP if kind is GatherKind.REFRESH else phase,
                recompute=recompute,
                module=self._module_names.get(id(module)) if module is not None else None,
                params=first_params([self._param_names.get(id(param), f"param{param.ds_id}") for param in params]),
                num_params=len(params),
                elements=elements,
                bytes=num_bytes,
                submission=next(self._submissions),
            )
        )


class _ThreadState(threading.local):
    """What this thread is inside of."""

    fetch: tuple[Any, bool] | None = None
    """Module and direction of the coordinator's fetch."""
    gathering: Mapping[int, Any] = {}
    """Address of the own partition -> parameter, inside of ``Init._all_gather``."""


def _phase(forward: bool) -> tuple[Phase, bool]:
    """The phase, and whether it is a recomputation: a forward inside of the backward pass."""
    recompute = forward and in_backward()
    return (Phase.FORWARD if forward and not recompute else Phase.BACKWARD), recompute


def _absent(params: Iterable[Any]) -> list[Any]:
    """The parameters that a gather will submit, in the order in which DeepSpeed numbers them.

    DeepSpeed holds them in sets, whose order differs from rank to rank.
    """
    absent = [param for param in params if param.ds_status.name == "NOT_AVAILABLE"]
    return sorted(absent, key=lambda param: param.ds_id)


def _belong_to(params: list[Any], module: Any) -> bool:
    """Whether any of the parameters is the module's own.

    Only the demand asks for these: when the coordinator gets to prefetching, it has waited for all of them.
    """
    if module is None:
        return True
    own = {id(param) for param in module.parameters(recurse=getattr(module, "_z3_leaf", False))}
    if external := getattr(module, "ds_external_parameters", None):
        own |= {id(param) for _, param in external()}
    return any(id(param) in own for param in params)


def _size(params: list[Any]) -> tuple[int, int]:
    """Elements and bytes of whole parameters."""
    elements = sum(int(param.ds_numel) for param in params)
    return elements, sum(int(param.ds_numel) * int(param.ds_tensor.element_size()) for param in params)


def _running_module() -> Any:
    """The module whose forward DeepSpeed is in, if any."""
    from deepspeed.runtime.zero import parameter_offload

    stack = getattr(parameter_offload, "FWD_MODULE_STACK", [])
    return stack[-1] if stack else None
