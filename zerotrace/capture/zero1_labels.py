"""The label around the broadcasts of torch's ZeroRedundancyOptimizer, which every step of it ends with."""

from __future__ import annotations

from typing import Any

from zerotrace.capture.hooks import Function, Hooks
from zerotrace.capture.marks import Marker
from zerotrace.labels import Label, LabelEvent, first_params, format_label


def label_broadcasts(marker: Marker, optimizer: Any, param_names: dict[int, str], hooks: Hooks) -> None:
    """Wrap the function that sends each rank's share to all others.

    Args:
        marker: where labels go.
        optimizer: a ``ZeroRedundancyOptimizer``.
        param_names: ``id`` of each parameter -> its qualified name.
        hooks: the hooks that are in place.
    """

    def make(original: Function) -> Function:
        def sync_params(*args: Any, **kwargs: Any) -> Any:
            if not marker.recording:
                return original(*args, **kwargs)
            # In the order in which they are sent: rank by rank, the largest of each rank first.
            groups = [group for of_rank in optimizer._partition_parameters() for group in of_rank]
            params = [param for group in groups for param in group["params"]]
            label = Label(
                event=LabelEvent.POST_STEP_GATHER,
                params=first_params([param_names.get(id(param), "") for param in params]),
                num_params=len(params),
                elements=sum(int(param.numel()) for param in params),
                bytes=sum(int(param.numel() * param.element_size()) for param in params),
            )
            with marker.mark(format_label(label)):
                return original(*args, **kwargs)

        return sync_params

    hooks.wrap("post_step_gather", optimizer, ("_sync_params",), make)
