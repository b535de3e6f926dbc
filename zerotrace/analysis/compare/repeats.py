"""Runs of one configuration: how far their figures spread is what differences are held against."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median

from zerotrace.analysis.captured import CapturedRun
from zerotrace.analysis.compare.settings import is_same_setup
from zerotrace.model import ComparedRun, Quantity, Repeats, Spread
from zerotrace.units import format_bytes, format_ns, format_traffic

FIGURES: dict[Quantity, Callable[[ComparedRun], float | None]] = {
    Quantity.STEP: lambda run: run.step_ns,
    Quantity.RESIDENT: lambda run: run.resident_bytes,
    Quantity.PEAK: lambda run: run.peak_bytes,
    Quantity.SENT: lambda run: run.sent.sent_bytes if run.sent else None,
}

_WORDS: dict[Quantity, tuple[str, Callable[[float], str]]] = {
    Quantity.STEP: ("a step takes {}", format_ns),
    Quantity.RESIDENT: ("a rank holds {} between steps", format_bytes),
    Quantity.PEAK: ("{} at the peak", format_bytes),
    Quantity.SENT: ("a rank sends {}", format_traffic),
}


def find_repeats(runs: Sequence[CapturedRun], compared: Sequence[ComparedRun]) -> tuple[Repeats, ...]:
    """The runs by configuration, in the order of the first of each; a capture that is given twice counts once.

    Args:
        runs: what was captured.
        compared: the figures of the same runs.
    """
    groups: list[list[int]] = []
    for place, run in enumerate(runs):
        if any(run.manifest == earlier.manifest for earlier in runs[:place]):
            continue
        group = next((group for group in groups if is_same_setup(runs[group[0]].manifest, run.manifest)), None)
        if group is None:
            groups.append([place])
        else:
            group.append(place)
    stages = [runs[group[0]].manifest.stage for group in groups]
    labels = {run.label: place for place, run in enumerate(compared)}
    # Another run may be called as a stage is: its folder is named like that.
    by_stage = [
        stages.count(stage) == 1 and labels.get(f"stage {stage}", group[0]) in group
        for group, stage in zip(groups, stages, strict=True)
    ]
    return tuple(_repeats(group, compared, alone) for group, alone in zip(groups, by_stage, strict=True))


def _repeats(group: Sequence[int], compared: Sequence[ComparedRun], alone: bool) -> Repeats:
    members = [compared[place] for place in group]
    first = members[0]
    spreads = {quantity: _spread(figure(run) for run in members) for quantity, figure in FIGURES.items()}
    figures = {quantity: spread for quantity, spread in spreads.items() if spread is not None}
    return Repeats(
        label=f"stage {first.stage}" if alone and first.stage is not None else first.label,
        runs=tuple(group),
        stage=first.stage,
        scheme=first.scheme,
        figures=figures,
        words=_words([run.label for run in members], figures) if len(members) > 1 else None,
    )


def _spread(values: Iterable[float | None]) -> Spread | None:
    known = [value for value in values if value is not None]
    return Spread(min=min(known), median=median(known), max=max(known)) if known else None


def _words(labels: Sequence[str], figures: dict[Quantity, Spread]) -> str:
    told = []
    for quantity, spread in figures.items():
        words, form = _WORDS[quantity]
        low, high = form(spread.min), form(spread.max)
        told.append(words.format(low if low == high else f"{low} to {high}"))
    names = f"{', '.join(labels[:-1])} and {labels[-1]}"
    return f"{names} repeat one configuration, so that differences as small as theirs are noise: {', '.join(told)}."
