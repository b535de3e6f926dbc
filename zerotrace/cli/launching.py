"""The ranks of one capture on this machine: what is said before they start, and their run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from zerotrace.cli.outcome import talk
from zerotrace.cli.progress import show_progress

if TYPE_CHECKING:
    from zerotrace.capture.complete import CaptureResult
    from zerotrace.capture.folder import CaptureFolder
    from zerotrace.capture.plan import CapturePlan


def run_plan(plan: CapturePlan, folder: CaptureFolder, windows: Sequence[str]) -> CaptureResult:
    """Say what is about to run, and run it.

    Args:
        plan: what to do.
        folder: reserved folder for the result.
        windows: the windows that were asked for.

    Raises:
        CaptureError: the capture failed.
    """
    from zerotrace.capture.ds_config import list_caveats

    nodes = plan.nodes
    on_nodes = f", node {nodes.node_rank} of {nodes.num_nodes}" if nodes.num_nodes > 1 else ""
    talk(
        f"Capturing {plan.title} on {plan.num_ranks} {plan.device} "
        f"rank{'s' if plan.num_ranks > 1 else ''} ({plan.backend}){on_nodes} into {folder.path}"
    )
    for caveat in list_caveats(plan.ds_config or {}):
        talk(f"Note: {caveat}")
    if plan.device == "cpu" and {"light", "memory"} & set(windows):
        talk("Note: on a CPU there is no light window, and the memory window has no allocator history, only owners.")
    from zerotrace.capture.launch import run_capture

    with show_progress(plan.num_steps) as on_progress:
        return run_capture(plan, folder, on_progress=on_progress)
