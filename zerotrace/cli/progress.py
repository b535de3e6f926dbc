"""How far a capture is, on stderr: a bar on a terminal, else a line for each new phase."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from zerotrace.capture.launch import ProgressCallback
    from zerotrace.capture.progress import RankProgress

_PHASE_WORDS = {
    "starting": "Ranks are starting ...",
    "warmup": "Warm-up steps ...",
    "timed": "Timed steps ...",
    "labelled": "Timed steps, without and with labels in turn ...",
    "light": "Steps with a light profiler ...",
    "detailed": "Steps with a detailed profiler ...",
    "memory": "Steps with the allocator's history ...",
    "detailed-writing": "Writing traces ...",
}


@contextmanager
def show_progress(num_steps: int) -> Iterator[ProgressCallback]:
    """Show how far the slowest rank is.

    Args:
        num_steps: all optimizer steps of the run.
    """
    if not sys.stderr.isatty():
        yield _phase_lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:>10}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("launched", total=num_steps)

        def show(ranks: Sequence[RankProgress]) -> None:
            slowest = min(ranks, key=lambda rank: rank.position)
            done = slowest.step if slowest.step >= 0 else None
            if slowest.phase in ("waiting", "done"):
                done = num_steps
            bar.update(task, description=slowest.phase, completed=done)

        yield show


def _phase_lines() -> Callable[[Sequence[RankProgress]], None]:
    shown = "launched"

    def show(ranks: Sequence[RankProgress]) -> None:
        nonlocal shown
        phase = min(ranks, key=lambda rank: rank.position).phase
        if phase != shown and phase in _PHASE_WORDS:
            shown = phase
            click.echo(_PHASE_WORDS[phase], err=True)

    return show
