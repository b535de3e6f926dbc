"""What is said of stragglers: who is late, by how much, why, and what chance has to do with it."""

from __future__ import annotations

from collections.abc import Sequence

from zerotrace.analysis.chance import SIGNIFICANCE
from zerotrace.model import LateGroup, Lateness, Stragglers, StragglerVerdict
from zerotrace.units import format_count, format_ns, format_ratio

#: A cause is named where it makes up at least this part of a rank's lateness.
_WORTH_NAMING = 0.1

#: Runs of ranks that are spelled out.
_MAX_RUNS = 6


def sentence(found: Stragglers, num_steps: int) -> str:
    """The verdict with its figures, a step."""
    steps, group = max(num_steps, 1), found.group
    if group is None:
        return _of_ranks(found, steps)
    if found.verdict is StragglerVerdict.STRAGGLER and found.rank is not None:
        return f"{_of_ranks(found, steps)} {_of_group(group, found, steps)}"
    return _of_group(group, found, steps)


def rank_words(ranks: Sequence[int]) -> str:
    """``rank 3``, ``ranks 4 to 7``, ``ranks 0, 2 and 5 to 9``; of very many runs the first."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    texts = [text for run in runs for text in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    if len(texts) > _MAX_RUNS + 1:
        texts = [*texts[:_MAX_RUNS], "others"]
    listed = texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}"
    return f"rank{'' if len(ranks) == 1 else 's'} {listed}"


def group_words(ranks: Sequence[int], hosts: Sequence[str]) -> str:
    """The ranks of a group; with the hosts, where it is all of their ranks: ``host-1 (ranks 4 to 7)``."""
    if not hosts:
        return rank_words(ranks)
    hosts = hosts if len(hosts) <= _MAX_RUNS else (*hosts[: _MAX_RUNS - 1], "others")
    listed = hosts[0] if len(hosts) == 1 else f"{', '.join(hosts[:-1])} and {hosts[-1]}"
    return f"{listed} ({rank_words(ranks)})"


def group_subject(group: LateGroup) -> str:
    """The group at the beginning of a sentence, with its verb."""
    name = group.name if group.hosts else f"{group.name[0].upper()}{group.name[1:]}"
    return f"{name} {'is late as a whole' if len(group.hosts) == 1 else 'are late together'}"


def extra_times(late: Lateness | LateGroup) -> dict[str, int]:
    """What the late had more of than those before, ahead of the collectives at which they were late, nanoseconds.

    The parts add up to the lateness: ``compute``, ``copy``, ``comm`` (collectives of other groups), ``host_bound``,
    ``rest``, and ``began``: how much later their own time began.
    """
    own, before = late.own, late.before
    return {
        "compute": own.compute_ns - before.compute_ns,
        "copy": own.copy_ns - before.copy_ns,
        "comm": own.comm_ns - before.comm_ns,
        "host_bound": (own.host_bound_ns or 0) - (before.host_bound_ns or 0),
        "rest": own.rest_ns - before.rest_ns,
        "began": late.began_ns,
    }


def _of_ranks(found: Stragglers, steps: int) -> str:
    lateness = next((one for one in found.ranks if one.rank == found.rank), None)
    if lateness is None:
        return (
            f"No straggler: at all {format_count(found.num_collectives)} collectives the last two ranks arrive within "
            f"{format_ns(found.tie_ns)} of each other."
        )
    fact = (
        f"late by {format_ns(lateness.late_ns / steps)} a step in sum ({_causes(lateness, steps)}), last at "
        f"{format_count(lateness.num_last)} of {format_count(found.num_collectives)} "
        f"collective{'' if found.num_collectives == 1 else 's'}"
    )
    own, others = lateness.num_independent, found.num_independent - lateness.num_independent
    delays = (
        f"That goes back to {_delays(own)} of its own, {format_ns(lateness.delay_ns / steps)} a step; other ranks have "
        f"{format_count(others) if others else 'none'}"
    )
    if found.verdict is StragglerVerdict.STRAGGLER:
        return f"Rank {found.rank} is a straggler: {fact}. {_little(found)}{delays}; {_odds(found.chance_ratio)}."
    if found.verdict is StragglerVerdict.WITHIN_NOISE:
        return f"No straggler: within noise. Rank {found.rank} was {fact}. {delays}; {_odds(found.chance_ratio)}."
    return (
        f"Too few delays to tell a straggler from chance. In these steps rank {found.rank} was {fact}. {delays}; "
        f"{found.num_needed} of one rank are needed: profile more steps."
    )


def _of_group(group: LateGroup, found: Stragglers, steps: int) -> str:
    late, causes = f"by {format_ns(group.late_ns / steps)} a step in sum", _causes(group, steps)
    where = f"at {format_count(group.num_late)} of {format_count(group.num_collectives)} collectives"
    delays = (
        f"{_delays(group.num_independent)}, {format_ns(group.delay_ns / steps)} a step; {_odds(group.chance_ratio)}"
    )
    if group.is_early:
        early = rank_words(group.others)
        verb = "arrives" if len(group.others) == 1 else "arrive"
        return (
            f"{early[0].upper()}{early[1:]} {verb} earlier than all others, {late}, {where} ({group.name}: {causes}). "
            f"That goes back to {delays}. Nobody is a straggler by this: having less to do than the others looks the "
            "same as all others being late."
        )
    theirs = "all of its ranks start" if len(group.hosts) == 1 else "all of them start"
    fact = f"{group_subject(group)}: {theirs} after all others, {late} ({causes}), {where}."
    little = _little(found) if found.rank is None else ""
    most = ""
    if len(group.ranks) > len(group.others):
        most = f" They are most of the ranks: it may as well be that {rank_words(group.others)} had less to do."
    return f"{fact} {little}That goes back to {delays}.{most}"


def _little(found: Stragglers) -> str:
    """What makes a straggler none that matters."""
    if not found.is_immaterial:
        return ""
    return f"That is no chance, but immaterial: {_ratio(found.late_ratio or 0.0)} of the step. "


def _ratio(value: float) -> str:
    return f"less than {format_ratio(1e-5)}" if value < 1e-5 else format_ratio(value)


def _delays(count: int) -> str:
    return f"{format_count(count)} delay{'' if count == 1 else 's'}"


def odds_words(chance_ratio: float | None) -> str:
    """``2.4 %``, ``less than 0.10 %``."""
    chance, least = chance_ratio or 0.0, SIGNIFICANCE / 10
    return f"less than {format_ratio(least)}" if chance < least else format_ratio(chance)


def _odds(chance_ratio: float | None) -> str:
    return f"by number and size, chance gives as much in {odds_words(chance_ratio)} of runs"


def _causes(late: Lateness | LateGroup, steps: int) -> str:
    """What the late had more of than those before, most first."""
    idle = "held back after launch" if late.own.host_bound_ns is not None else "in no operator"
    words = {
        "compute": "more compute",
        "copy": "more copying",
        "comm": "more in collectives of other groups",
        "host_bound": "more waiting for its host" if isinstance(late, Lateness) else "more waiting for their hosts",
        "rest": f"more {idle}",
        "began": "begun later",
    }
    extra = extra_times(late)
    listed = [(time, words[name]) for name, time in extra.items() if time >= _WORTH_NAMING * late.late_ns]
    return ", ".join(f"{format_ns(time / steps)} {text}" for time, text in sorted(listed, reverse=True))
