"""Labels of the gradient buckets of torch's DistributedDataParallel.

DDP reduces in C++: a hook of its own runs right after autograd has accumulated a gradient, and launches the all-reduce
of a bucket once all of its gradients are there, the buckets in their order. So a label is opened before the gradient
that completes a bucket is accumulated, and closed behind DDP's hook. A communication hook would be the public place,
but takes the place of DDP's own all-reduce, and cannot be taken away again.
"""

from __future__ import annotations

from typing import Any

import torch

from zerotrace.capture.ddp_buckets import DdpBucket, read_buckets
from zerotrace.capture.hooks import Hooks
from zerotrace.capture.marks import Marker
from zerotrace.labels import Label, LabelEvent, first_params, format_label

_HOOK = "reduce"


class DdpLabels:
    """The hooks around DDP's own.

    Args:
        marker: where labels go.
        ddp: a ``DistributedDataParallel``.
        param_names: ``id`` of each parameter -> its qualified name.
    """

    def __init__(self, marker: Marker, ddp: Any, param_names: dict[int, str]) -> None:
        self._marker = marker
        self._ddp = ddp
        self._names = param_names
        self._buckets: tuple[DdpBucket, ...] = ()
        self._bucket_of: dict[int, int] = {}
        #: Gradients that each bucket still waits for; empty outside of a backward pass.
        self._waiting: list[int] = []
        self._next = 0
        self._token: int | None = None
        self._hooks: Hooks | None = None

    def install(self, hooks: Hooks) -> None:
        """Place the hooks, on the nodes where autograd accumulates gradients."""
        if self._ddp.find_unused_parameters and not self._ddp.static_graph:
            hooks.lack(_HOOK, "DDP looks for unused parameters, so that no gradient tells when a bucket is complete")
            return
        self._hooks = hooks
        handles: list[Any] = []
        for param in self._ddp.module.parameters():
            if param.requires_grad:
                handles += self._watch(param)

        def undo() -> None:
            for handle in handles:
                handle.remove()

        hooks.add(_HOOK, undo)

    def end_step(self) -> None:
        """No backward pass goes on beyond a step."""
        self._waiting = []

    def _watch(self, param: torch.nn.Parameter) -> list[Any]:
        # DDP keeps these nodes alive; a view leads to the one there is.
        with torch.enable_grad():
            node = param.view_as(param).grad_fn.next_functions[0][0]
        key = id(param)

        def before(_grads: Any) -> None:
            if self._marker.recording and self._ddp.require_forward_param_sync:
                self._come(key)

        def after(*_grads: Any) -> None:
            if self._token is not None:
                self._marker.end(self._token)
                self._token = None

        # DDP's own hook was there first, and hooks run in their order.
        return [node.register_prehook(before), node.register_hook(after)]

    def _come(self, key: int) -> None:
        """A gradient is there: open a label if DDP's hook will launch a reduction."""
        if not self._waiting and not self._begin():
            return
        bucket = self._bucket_of.get(key)
        if bucket is None:
            return
        self._waiting[bucket] -= 1
        ready = []
        while self._next < len(self._buckets) and self._waiting[self._next] == 0:
            ready.append(self._buckets[self._next])
            self._next += 1
        if ready:
            self._token = self._marker.begin(self._label(ready))
        if self._next == len(self._buckets):
            self._waiting = []

    def _begin(self) -> bool:
        """A backward pass begins: which gradients does each bucket wait for?"""
        buckets = read_buckets(self._ddp)
        if buckets is None:
            assert self._hooks is not None
            self._hooks.lack(_HOOK, "DDP has not settled its buckets yet, which takes three steps: warm up longer")
            return False
        self._buckets, self._next = buckets, 0
        self._bucket_of = {id(param): number for number, bucket in enumerate(buckets) for param in bucket.params}
        self._waiting = [len(bucket.params) for bucket in buckets]
        return True

    def _label(self, buckets: list[DdpBucket]) -> str:
        """What is about to be reduced: one bucket, and those after it that were complete before."""
        params = [param for bucket in buckets for param in bucket.params]
        return format_label(
            Label(
                event=LabelEvent.REDUCE,
                params=first_params([self._names.get(id(param), "") for param in params]),
                num_params=len(params),
                elements=sum(bucket.elements for bucket in buckets),
                bytes=sum(bucket.bytes for bucket in buckets),
            )
        )
