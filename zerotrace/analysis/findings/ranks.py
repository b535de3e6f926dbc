"""Findings about ranks: one, or several together, that are late more, and more often, than chance explains."""

from __future__ import annotations

from collections.abc import Iterator, Set

from zerotrace.analysis.straggler_words import extra_times, group_subject, odds_words
from zerotrace.model import Analysis, Finding, Gain, LateGroup, Lateness, Stragglers, StragglerVerdict
from zerotrace.units import format_count, format_ns, format_ratio

#: What makes a rank late, by :func:`extra_times`, and where to look for it.
_KNOBS = {
    "compute": "the device of that rank (its clocks, heat and power limit beside the others': nvidia-smi -q -d "
    "PERFORMANCE), or batches that give it more work",
    "copy": "copies that this rank alone makes: logging, checkpoints, batches that are moved late",
    "comm": "collectives of other groups that this rank takes part in",
    "host_bound": "the host of that rank: the cores that it is bound to, data loading, logging, what else runs there",
    "rest": "what that rank's device waits for between kernels: events, copies, other streams",
    "began": "what that rank does between steps: data loading, logging, evaluation",
}

#: The same for several ranks: what they share.
_GROUP_KNOBS = {
    "compute": "what these ranks share: the node's clocks, heat and power limit (nvidia-smi -q -d PERFORMANCE), its "
    "kind of device, or batches and layers that give them more work",
    "copy": "copies that these ranks alone make: logging, checkpoints, batches that are moved late",
    "comm": "collectives of other groups that these ranks take part in, and the links of their node",
    "host_bound": "the host of these ranks: its cores and what they are bound to, data loading, logging, what else "
    "runs there",
    "rest": "what the devices of these ranks wait for between kernels: events, copies, other streams",
    "began": "what these ranks do between steps: data loading, logging, evaluation",
}


def straggler(analysis: Analysis) -> Iterator[Finding]:
    """A rank, or ranks together, for which the others wait, where chance does not explain it.

    Cost: their own delays, a step. In sum the lateness may be far more, since a delay is seen again at each later
    collective; but that is not lost again. Gain at most: the same, by the dilation of the profiler where it is the
    host that is late, and no more than the others' exposed waiting. What takes less than a thousandth of the step is
    no finding, nor are ranks that arrive earlier than all others: that may be as it should.
    """
    found = analysis.stragglers
    if found is None or found.verdict is not StragglerVerdict.STRAGGLER or found.is_immaterial:
        return
    steps = len({part.step for part in analysis.partition if part.known})
    if not steps:
        return
    for lateness in found.ranks:
        if lateness.rank == found.rank:
            yield _of_rank(analysis, found, lateness, steps)
    if found.group is not None and not found.group.is_early:
        yield _of_group(analysis, found.group, steps)


def _of_rank(analysis: Analysis, found: Stragglers, late: Lateness, steps: int) -> Finding:
    cost = late.delay_ns / steps
    extra = extra_times(late)
    most = max(extra, key=lambda name: extra[name])
    place = found.largest_place
    return Finding(
        code="straggler",
        claim=f"Rank {late.rank} is a straggler: the others wait for it at {format_count(late.num_late)} of "
        f"{format_count(late.num_collectives)} collectives, mostly for its {_CAUSES[most]}.",
        evidence=_evidence(found, late, cost, steps, extra[most]),
        numbers={
            "rank": late.rank,
            "delay_ns": cost,
            "late_ns": late.late_ns / steps,
            "num_late": late.num_late,
            "num_collectives": late.num_collectives,
            "num_independent": late.num_independent,
            "chance_ratio": found.chance_ratio or 0.0,
            **{f"more_{name}_ns": time / steps for name, time in extra.items()},
        },
        cost_ns=cost,
        place=place if place is not None and place.rank == late.rank else None,
        knob=_KNOBS[most],
        gain=_gain(analysis, {late.rank}, cost, most, "its"),
    )


def _of_group(analysis: Analysis, group: LateGroup, steps: int) -> Finding:
    cost = group.delay_ns / steps
    extra = extra_times(group)
    most = max(extra, key=lambda name: extra[name])
    return Finding(
        code="stragglers_together",
        claim=f"{group_subject(group)}: the others wait for them at {format_count(group.num_late)} of "
        f"{format_count(group.num_collectives)} collectives, mostly for their {_CAUSES[most]}.",
        evidence=f"Each of them starts after all others, by {format_ns(group.late_ns / steps)} a step in sum; they "
        f"have {format_ns(extra[most] / steps)} a step more of that. Independent of each other are "
        f"{format_count(group.num_independent)} delays, {format_ns(cost)} a step. By number and size chance gives as "
        f"much in {odds_words(group.chance_ratio)} of runs.",
        numbers={
            "num_ranks": len(group.ranks),
            "first_rank": group.ranks[0],
            "last_rank": group.ranks[-1],
            "delay_ns": cost,
            "late_ns": group.late_ns / steps,
            "num_late": group.num_late,
            "num_collectives": group.num_collectives,
            "num_independent": group.num_independent,
            "chance_ratio": group.chance_ratio,
            **{f"more_{name}_ns": time / steps for name, time in extra.items()},
        },
        cost_ns=cost,
        place=group.largest_place,
        knob=_GROUP_KNOBS[most],
        gain=_gain(analysis, set(group.ranks), cost, most, "their"),
    )


_CAUSES = {
    "compute": "longer compute",
    "copy": "copies",
    "comm": "collectives of other groups",
    "host_bound": "host, which launches later",
    "rest": "kernels, which are held back after their launch",
    "began": "later begin of the step",
}


def _evidence(found: Stragglers, late: Lateness, cost: float, steps: int, most: int) -> str:
    others = found.num_independent - late.num_independent
    return (
        f"Of the independent delays {format_count(late.num_independent)} are its own and "
        f"{format_count(others) if others else 'none'} other ranks': {format_ns(cost)} a step. By number and size "
        f"chance gives as much in {format_ratio(found.chance_ratio)} of runs. In sum it is late by "
        f"{format_ns(late.late_ns / steps)} a step, {format_ns(most / steps)} of it by that."
    )


def _gain(analysis: Analysis, late: Set[int], cost: float, cause: str, whose: str) -> Gain | None:
    """``None`` where the profiler dilates what is lost, and it is unknown how much."""
    waits = [r.exposed_wait_ns for r in analysis.ranks if r.rank not in late and r.exposed_wait_ns is not None]
    won, basis = min([cost, *waits]), f"{whose} delays, as far as the others wait with no compute beside"
    if cause != "host_bound":
        return Gain(step_ns=won, basis=basis)
    dilation = analysis.verdict.dilation_ratio
    if dilation is None:
        return None
    return Gain(step_ns=won / max(1.0, dilation), basis=f"{basis}, by the dilation of the profiler")


RULES = (straggler,)
