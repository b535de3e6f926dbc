"""Short names for runs, each unlike the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from zerotrace.analysis.captured import CapturedRun


def label_runs(runs: Sequence[CapturedRun]) -> tuple[str, ...]:
    """The shortest of each run's names that no other has: ``stage 3``, ``DDP``, its folder, two parts of its folder.

    Where none is its own, a number tells the runs apart.
    """
    labels: list[str | None] = [None] * len(runs)
    for name in (_scheme, _folder, lambda run: run.name):
        _name_where_unlike(runs, labels, name)
    taken = {label for label in labels if label is not None}
    for place, run in enumerate(runs):
        if labels[place] is None:
            number = 1
            while f"{run.name} ({number})" in taken:
                number += 1
            labels[place] = f"{run.name} ({number})"
            taken.add(f"{run.name} ({number})")
    return tuple(label or "" for label in labels)


def _name_where_unlike(
    runs: Sequence[CapturedRun], labels: list[str | None], name: Callable[[CapturedRun], str]
) -> None:
    names = [name(run) for run in runs]
    counts = Counter(names)
    taken = {label for label in labels if label is not None}
    for place, found in enumerate(names):
        if labels[place] is None and counts[found] == 1 and found not in taken:
            labels[place] = found


def _scheme(run: CapturedRun) -> str:
    return run.manifest.scheme if run.manifest.stage is None else f"stage {run.manifest.stage}"


def _folder(run: CapturedRun) -> str:
    return run.name.rpartition("/")[2]
