"""The windows of a session, in the order in which they run.

Each measures what those before it would be disturbed by: first the run as it is, then the run with hooks, then with a
profiler that does little, with one that does much, and last with the allocator's history on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerotrace.capture.handoff import SessionPlan
from zerotrace.capture.labels import LabelHooks
from zerotrace.capture.memory import MemoryWindow
from zerotrace.capture.windows import (
    DetailedWindow,
    LabelledWindow,
    LightWindow,
    ProfiledWindow,
    SettleWindow,
    TimedWindow,
    Window,
)

#: Folder of the light traces inside of the run folder; `zerotrace analyze` reads one or the other.
LIGHT_FOLDER = "light"

_TRACE = "pt.trace.json.gz"


def build_windows(plan: SessionPlan, rank: int, engine: Any, labels: LabelHooks) -> list[Window]:
    """The windows that a plan asks for.

    Args:
        plan: numbers of steps, and where files go.
        rank: this rank, for the names of its files.
        engine: what trains.
        labels: the engine's label hooks.
    """
    folder = Path(plan.trace_folder)
    trace = plan.file_name(rank, _TRACE)
    memory = MemoryWindow(
        plan.num_memory,
        engine,
        folder / plan.file_name(rank, "owners.json"),
        folder / plan.file_name(rank, "snapshot.pickle.gz"),
    )
    windows = [
        Window(plan.num_warmup),
        TimedWindow(plan.num_timed),
        LabelledWindow(plan.num_labelled, labels),
        *_settled(LightWindow(plan.num_light, folder / LIGHT_FOLDER / trace, plan.host)),
        *_settled(DetailedWindow(plan.num_profiled, folder / trace, labels, plan.host)),
        memory,
    ]
    return [window for window in windows if window.num_steps]


def _settled(window: ProfiledWindow) -> list[Window]:
    return [SettleWindow(window), window] if window.num_steps else []
