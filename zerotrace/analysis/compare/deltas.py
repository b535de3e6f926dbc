"""What going from one configuration to another costs and saves: each rung of the ladder, and variants."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise

from msgspec import Struct

from zerotrace.analysis.ablation import CERTAIN
from zerotrace.model import Change, ComparedRun, Delta, HeldMemory, Owner, OwnerBytes, Quantity, Repeats
from zerotrace.model.schemes import beside
from zerotrace.units import format_bytes, format_ns, format_traffic


def find_deltas(repeats: Sequence[Repeats], runs: Sequence[ComparedRun]) -> tuple[Delta, ...]:
    """The rungs of the ladder, lowest first; then each other configuration beside the one that it is a variant of.

    The ladder is that of the first configuration with a stage, of as many ranks and the same work. A variant is held
    against the first configuration of its stage, one of torch's engines against the stage that does the same. Without a
    ladder, or without that stage, each is held against the first of all. What does other work than the first run is
    held against nothing.

    Args:
        repeats: the configurations.
        runs: the figures of all runs.
    """
    alike = [place for place, group in enumerate(repeats) if not runs[group.runs[0]].differences]
    rungs = _rungs(alike, repeats, runs)
    twins = {place: twin for place in alike if (twin := _twin(place, alike, repeats, runs)) is not None}
    if len(rungs) < 2:
        # The first of all may have its twin behind it: that pair is told of once.
        pairs = [(twins.get(place, alike[0]), place) for place in alike[1:]]
        return tuple(_delta(before, after, False, repeats, runs) for before, after in pairs)
    ladder = [_delta(low, high, True, repeats, runs) for low, high in pairwise(rungs)]
    by_stage = {repeats[place].stage: place for place in reversed(alike)} | {repeats[p].stage: p for p in rungs}
    variants = [
        _delta(by_stage[repeats[place].stage], place, False, repeats, runs)
        for place in alike
        if repeats[place].stage is not None and by_stage[repeats[place].stage] != place
    ]
    kin = [_delta(twin, place, False, repeats, runs) for place, twin in twins.items()]
    return (*ladder, *variants, *kin)


def _twin(place: int, alike: Sequence[int], repeats: Sequence[Repeats], runs: Sequence[ComparedRun]) -> int | None:
    """The first configuration that does what one of torch's engines does; else that of which it is a variant."""
    world = runs[repeats[place].runs[0]].world_size
    by_scheme = {
        repeats[other].scheme: other for other in reversed(alike) if runs[repeats[other].runs[0]].world_size == world
    }
    wanted = beside(repeats[place].scheme)
    while wanted is not None and wanted not in by_scheme:
        wanted = beside(wanted)
    if wanted is not None:
        return by_scheme[wanted]
    # The second of two configurations of one engine is a variant of the first.
    first = by_scheme.get(repeats[place].scheme)
    return first if repeats[place].stage is None and first != place else None


def _rungs(alike: Sequence[int], repeats: Sequence[Repeats], runs: Sequence[ComparedRun]) -> list[int]:
    """The first configuration of each stage, among those of as many ranks as the first with a stage has."""
    worlds = {place: runs[repeats[place].runs[0]].world_size for place in alike}
    staged = [place for place in alike if repeats[place].stage is not None]
    found: dict[int, int] = {}
    for place in staged:
        stage = repeats[place].stage
        if stage is not None and worlds[place] == worlds[staged[0]]:
            found.setdefault(stage, place)
    return [found[stage] for stage in sorted(found)]


def _delta(before: int, after: int, is_rung: bool, repeats: Sequence[Repeats], runs: Sequence[ComparedRun]) -> Delta:
    changes = tuple(_changes(repeats[before], repeats[after], runs))
    return Delta(
        before=before,
        after=after,
        is_rung=is_rung,
        changes=changes,
        owners=_owners(runs[repeats[before].runs[0]].resident, runs[repeats[after].runs[0]].resident),
        words=delta_words(repeats[before].label, repeats[after].label, changes),
    )


def _owners(before: HeldMemory, after: HeldMemory) -> tuple[OwnerBytes, ...]:
    if not before.owners or not after.owners:
        return ()
    first, second = ({one.owner: one.bytes for one in held.owners} for held in (before, after))
    changes = {owner: second.get(owner, 0) - first.get(owner, 0) for owner in Owner}
    ordered = sorted(changes.items(), key=lambda item: -abs(item[1]))
    return tuple(OwnerBytes(owner=owner, bytes=change) for owner, change in ordered if change)


def _changes(before: Repeats, after: Repeats, runs: Sequence[ComparedRun]) -> Iterator[Change]:
    for quantity in Quantity:
        if quantity in before.figures and quantity in after.figures:
            yield change_between(before, after, quantity, runs)


def change_between(before: Repeats, after: Repeats, quantity: Quantity, runs: Sequence[ComparedRun]) -> Change:
    """The difference in a figure that both configurations know, and whether it is one.

    Args:
        before: a configuration.
        after: another.
        quantity: the figure.
        runs: the figures of all runs.
    """
    first, second = before.figures[quantity], after.figures[quantity]
    difference = second.median - first.median
    widths = [
        group.figures[quantity].max - group.figures[quantity].min for group in (before, after) if len(group.runs) > 1
    ]
    if quantity is Quantity.STEP:
        widths += _step_errors(before, after, runs)
    noise = max(widths, default=None)
    return Change(
        quantity=quantity,
        before=first.median,
        after=second.median,
        difference=difference,
        noise=noise,
        equal=abs(difference) <= (noise or 0.0),
    )


def _step_errors(before: Repeats, after: Repeats, runs: Sequence[ComparedRun]) -> list[float]:
    """Twice the standard error of the difference of two steps, the larger error of each side's repeats counting."""
    errors = []
    for group in (before, after):
        known = [error for place in group.runs if (error := runs[place].step_error_ns) is not None]
        if not known:
            return []
        errors.append(max(known))
    return [CERTAIN * math.hypot(*errors)]


_FORMS: dict[Quantity, Callable[[float | None], str]] = {
    Quantity.STEP: format_ns,
    Quantity.RESIDENT: format_bytes,
    Quantity.PEAK: format_bytes,
    Quantity.SENT: format_traffic,
}

_INSTANTS = {Quantity.RESIDENT: "between steps", Quantity.PEAK: "at the peak"}


def delta_words(before: str, after: str, changes: Sequence[Change]) -> str:
    """The changes in one sentence.

    For example ``Stage 3 costs 235 ms more a step than stage 2, holds 954 MiB more between steps and 1.53 GiB more at
    the peak, and sends 753 MB less.``
    """
    by_quantity = {change.quantity: change for change in changes}
    told = []
    if step := by_quantity.get(Quantity.STEP):
        told.append(_step_words(step))
    told += _memory_words(by_quantity)
    if sent := by_quantity.get(Quantity.SENT):
        told.append(_Words("sends as many bytes", "as") if sent.equal else _Words(f"sends {_size(sent)} {_more(sent)}"))
    if not told:
        return f"Of {after} and {before} no figure is known on both sides."
    first = told[0]
    texts = [f"{first.text} {first.joint} {before}{first.remark}", *(f"{one.text}{one.remark}" for one in told[1:])]
    listed = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])}, and {texts[-1]}"
    return f"{'S' + after[1:] if after.startswith(('stage ', 'single ')) else after} {listed}."


class _Words(Struct, frozen=True):
    """A difference in words; what it is held against is named behind the first of a sentence."""

    text: str
    joint: str = "than"
    remark: str = ""


def _step_words(step: Change) -> _Words:
    if not step.equal:
        return _Words(f"{'costs' if step.difference > 0 else 'takes'} {_size(step)} {_more(step)} a step")
    apart = f": {_size(step)} apart" if step.difference else ""
    return _Words("takes as long a step", "as", f" (within noise{apart})" if step.noise else "")


def _memory_words(changes: dict[Quantity, Change]) -> list[_Words]:
    """Resident and peak; in one where both go the same way."""
    known = [changes[quantity] for quantity in _INSTANTS if quantity in changes]
    told: list[_Words] = []
    for _, alike in groupby(known, key=_direction):
        found = list(alike)
        whens = [_INSTANTS[change.quantity] for change in found]
        if found[0].equal:
            told.append(_Words(f"holds as much {' and '.join(whens)}", "as"))
        elif found[0].difference < 0:
            each = [f"{_size(change)} {when}" for change, when in zip(found, whens, strict=True)]
            told.append(_Words(f"saves {' and '.join(each)}", "beside"))
        else:
            each = [f"{_size(change)} more {when}" for change, when in zip(found, whens, strict=True)]
            told.append(_Words(f"holds {' and '.join(each)}"))
    return told


def _direction(change: Change) -> int:
    return 0 if change.equal else 1 if change.difference > 0 else -1


def _size(change: Change) -> str:
    return _FORMS[change.quantity](abs(change.difference))


def _more(change: Change) -> str:
    return "more" if change.difference > 0 else "less"
