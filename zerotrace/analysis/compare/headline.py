"""The answer in a sentence or two: which configurations are fastest, and which hold least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from zerotrace.analysis.compare.deltas import change_between
from zerotrace.model import ComparedRun, Quantity, Repeats
from zerotrace.units import format_bytes, format_ns

_ANSWERS: tuple[tuple[Quantity, str, str, str, Callable[[float], str]], ...] = (
    (Quantity.STEP, "is fastest", "are fastest", "take the same time", format_ns),
    (Quantity.RESIDENT, "holds least between steps", "hold least between steps", "hold the same between steps",
     format_bytes),
)  # fmt: skip


def headline(repeats: Sequence[Repeats], runs: Sequence[ComparedRun]) -> str:
    """What is best among the configurations that compare, and which do not. What is equal within noise shares a place.

    For example ``Stage 0 and stage 2 are fastest: 231 ms a step. Stage 1 and stage 2 hold least between steps: 5.83
    GiB. Left out: single, on 1 rank.``

    Args:
        repeats: the configurations.
        runs: the figures of all runs.
    """
    rivals = _rivals(repeats, runs)
    if len(repeats) == 1:
        return "There is one configuration here: its runs tell how much it varies by itself."
    if len(rivals) < 2:
        return "There are no two configurations here that do the same work."
    told = []
    for quantity, one, several, all_of_them, form in _ANSWERS:
        known = [group for group in rivals if quantity in group.figures]
        if len(known) < 2:
            continue
        best = min(known, key=lambda group: group.figures[quantity].median)
        first = [group.label for group in known if change_between(best, group, quantity, runs).equal]
        value = f"{form(best.figures[quantity].median)}{' a step' if quantity is Quantity.STEP else ''}"
        if len(first) == len(known):
            told.append(
                f"{_all(len(first))} {all_of_them}{' within noise' if quantity is Quantity.STEP else ''}: {value}."
            )
        else:
            told.append(f"{_names(first)} {one if len(first) == 1 else several}: {value}.")
    if not told:
        return "No figure is known of two configurations that compare."
    return " ".join([*told, *_left_out(repeats, rivals, runs)])


def _left_out(repeats: Sequence[Repeats], rivals: Sequence[Repeats], runs: Sequence[ComparedRun]) -> Iterator[str]:
    """Which configurations are not among those that are told of, and why, in one sentence."""
    reasons: dict[str, list[str]] = {}
    for group in (group for group in repeats if group not in rivals):
        first = runs[group.runs[0]]
        ranks = f"on {first.world_size} rank{'' if first.world_size == 1 else 's'}"
        reasons.setdefault("of other work" if first.differences else ranks, []).append(group.label)
    if reasons:
        yield f"Left out: {'; '.join(f'{_listed(labels)}, {reason}' for reason, labels in reasons.items())}."


def _names(labels: Sequence[str]) -> str:
    text = _listed(labels)
    return f"S{text[1:]}" if text.startswith(("stage ", "single ")) else text


def _listed(labels: Sequence[str]) -> str:
    return labels[0] if len(labels) == 1 else f"{', '.join(labels[:-1])} and {labels[-1]}"


def _all(count: int) -> str:
    return "Both" if count == 2 else f"All {count}"


def _rivals(repeats: Sequence[Repeats], runs: Sequence[ComparedRun]) -> list[Repeats]:
    """Those of the first run's work, on the number of ranks that most of them have; all, where that is a single one."""
    alike = [group for group in repeats if not runs[group.runs[0]].differences]
    worlds = Counter(runs[group.runs[0]].world_size for group in alike)
    found = [group for group in alike if runs[group.runs[0]].world_size == worlds.most_common(1)[0][0]]
    return found if len(found) > 1 else alike
