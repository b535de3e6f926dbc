"""Labels of the parameter traffic of torch's FSDP2: gathers, with why they are submitted, and reductions.

Read in torch 2.6 to 2.13. A module's hooks gather its group (``FSDPParamGroup.pre_forward``, ``pre_backward``), and
gather other groups ahead (``_prefetch_unshard``): in the backward the one that ran before it in the forward, or those
that the program has named. What is gathered goes through ``foreach_all_gather``, what is reduced through
``foreach_reduce``.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from zerotrace.capture.fsdp_groups import ShardGroup, find_groups, groups_module
from zerotrace.capture.hooks import Function, Hooks
from zerotrace.capture.marks import Marker, in_backward
from zerotrace.labels import GatherKind, Label, LabelEvent, Phase, first_params, format_label

_FORWARD, _BACKWARD = "FORWARD", "PRE_BACKWARD"


class FsdpLabels:
    """The hooks around FSDP2's groups.

    Args:
        marker: where labels go.
        model: the model; names are as it has them.
    """

    def __init__(self, marker: Marker, model: torch.nn.Module) -> None:
        self._marker = marker
        self._model = model
        self._submissions = itertools.count()
        self._groups: dict[int, ShardGroup] = {}
        self._of_param: dict[int, tuple[ShardGroup, str]] = {}
        #: The group whose module's turn it is.
        self._turn: ShardGroup | None = None
        self._ahead = False

    def install(self, hooks: Hooks) -> None:
        """Wrap the functions of torch's groups."""
        module = groups_module()
        kind = getattr(module, "FSDPParamGroup", None)
        if module is None or kind is None:
            for hook in ("fetch", "gather", "reduce"):
                hooks.lack(hook, "this torch has no FSDPParamGroup where it is looked for")
            return
        groups = find_groups(self._model)
        self._groups = {id(group.group): group for group in groups}
        self._of_param = {id(param): (group, name) for group in groups for name, param in group.params}
        hooks.wrap("fetch", kind, ("pre_forward",), self._around_turn(Phase.FORWARD))
        hooks.wrap("fetch backward", kind, ("pre_backward",), self._around_turn(Phase.BACKWARD))
        hooks.wrap("release", kind, ("reshard",), self._around_reshard)
        hooks.wrap("prefetch", kind, ("_prefetch_unshard",), self._around_prefetch)
        hooks.wrap("gather", module, ("foreach_all_gather",), self._around_gather)
        hooks.wrap("reduce", module, ("foreach_reduce",), self._around_reduce)

    def _around_turn(self, phase: Phase) -> Any:
        def make(original: Function) -> Function:
            def turn(group: Any, *args: Any, **kwargs: Any) -> Any:
                ours = self._groups.get(id(group)) if self._marker.recording else None
                if ours is None:
                    return original(group, *args, **kwargs)
                self._turn = ours
                with self._marker.mark(_module_label(LabelEvent.FETCH, ours, phase)):
                    return original(group, *args, **kwargs)

            return turn

        return make

    def _around_reshard(self, original: Function) -> Function:
        def reshard(group: Any, *args: Any, **kwargs: Any) -> Any:
            ours = self._groups.get(id(group)) if self._marker.recording else None
            forward = _state(group) == _FORWARD
            if ours is None or not group.is_unsharded or (forward and not ours.reshards):
                return original(group, *args, **kwargs)
            phase = Phase.FORWARD if forward else Phase.BACKWARD
            with self._marker.mark(_module_label(LabelEvent.RELEASE, ours, phase)):
                return original(group, *args, **kwargs)

        return reshard

    def _around_prefetch(self, original: Function) -> Function:
        def prefetch_unshard(*args: Any, **kwargs: Any) -> Any:
            outer, self._ahead = self._ahead, True
            try:
                return original(*args, **kwargs)
            finally:
                self._ahead = outer

        return prefetch_unshard

    def _around_gather(self, original: Function) -> Function:
        def foreach_all_gather(fsdp_params: list[Any], *args: Any, **kwargs: Any) -> Any:
            ours = self._group_of(fsdp_params)
            if ours is None:
                return original(fsdp_params, *args, **kwargs)
            is_async = bool(kwargs.get("async_op", args[1] if len(args) > 1 else False))
            with self._marker.mark(self._gather_label(ours, is_async)):
                return original(fsdp_params, *args, **kwargs)

        return foreach_all_gather

    def _around_reduce(self, original: Function) -> Function:
        def foreach_reduce(fsdp_params: list[Any], unsharded_grads: list[Any], *args: Any, **kwargs: Any) -> Any:
            ours = self._group_of(fsdp_params)
            if ours is None:
                return original(fsdp_params, unsharded_grads, *args, **kwargs)
            elements = sum(int(grad.numel()) for grad in unsharded_grads)
            dtype = getattr(ours.group, "_reduce_dtype", None) or unsharded_grads[0].dtype
            label = Label(
                event=LabelEvent.REDUCE,
                module=ours.module,
                params=first_params([self._of_param[id(param)][1] for param in fsdp_params]),
                num_params=len(fsdp_params),
                elements=elements,
                bytes=elements * dtype.itemsize,
            )
            with self._marker.mark(format_label(label)):
                return original(fsdp_params, unsharded_grads, *args, **kwargs)

        return foreach_reduce

    def _group_of(self, fsdp_params: list[Any]) -> ShardGroup | None:
        if not self._marker.recording or not fsdp_params:
            return None
        found = self._of_param.get(id(fsdp_params[0]))
        return found[0] if found is not None else None

    def _gather_label(self, ours: ShardGroup, is_async: bool) -> str:
        state = _state(ours.group)
        forward = state == _FORWARD or (state != _BACKWARD and self._marker.phase is not Phase.BACKWARD)
        # A backward uses parameters in the opposite order, by and large.
        names = [name for name, _ in ours.params] if forward else [name for name, _ in reversed(ours.params)]
        turn = self._turn if self._ahead else ours
        return format_label(
            Label(
                event=LabelEvent.GATHER,
                kind=self._kind(ours, state, is_async),
                phase=Phase.FORWARD if forward else Phase.BACKWARD,
                # A forward inside of the backward: activation checkpointing.
                recompute=forward and in_backward(),
                module=turn.module if turn is not None else None,
                params=first_params(names),
                num_params=len(names),
                elements=ours.elements,
                bytes=ours.num_bytes,
                submission=next(self._submissions),
            )
        )

    def _kind(self, ours: ShardGroup, state: str, is_async: bool) -> GatherKind:
        """Why a group is gathered.

        In the forward the host comes to a module while the device is still at one before it, and FSDP2 gathers on a
        stream that does not wait for that: its *implicit* prefetch. The root alone has nothing before it. A gather by
        the program itself (``unshard``) comes before the module's turn too.
        """
        if self._ahead or state not in (_FORWARD, _BACKWARD):
            return GatherKind.PREFETCH
        implicit = state == _FORWARD and not is_async and not ours.is_root and not in_backward()
        return GatherKind.PREFETCH if implicit else GatherKind.DEMAND


def _state(group: Any) -> str:
    """What a group is at, as torch names it."""
    return str(group._training_state.name)


def _module_label(event: LabelEvent, group: ShardGroup, phase: Phase) -> str:
    recompute = phase is Phase.FORWARD and in_backward()
    return format_label(Label(event=event, phase=phase, recompute=recompute, module=group.module))
