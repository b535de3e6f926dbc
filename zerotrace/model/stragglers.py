"""Who arrives last at collectives, how often, by how much, and why."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct

from zerotrace.model.finding import Place


class StragglerVerdict(str, Enum):
    """What arrivals say of the ranks."""

    STRAGGLER = "straggler"
    """One rank is late more, and more often, than chance explains; or several are, together."""
    WITHIN_NOISE = "within_noise"
    """No rank is."""
    TOO_FEW = "too_few"
    """So few arrivals are independent of each other that no count of them could tell a straggler from chance."""
    TOGETHER = "together"
    """All ranks arrive together, as far as their clocks tell."""


class OwnTime(Struct, frozen=True, kw_only=True):
    """What a rank does by itself between two collectives of one group, nanoseconds. The parts add up to the total."""

    total_ns: int
    compute_ns: int
    copy_ns: int
    """Copies under neither compute nor communication."""
    comm_ns: int
    """Collectives of other groups with no compute beside them."""
    host_bound_ns: int | None
    """Idle until the launch call of the next row had returned; ``None`` in host mode, where it is in the rest."""
    rest_ns: int
    """Launched but held back, or without a launch in the trace."""


class Lateness(Struct, frozen=True, kw_only=True):
    """How one rank arrives at the collectives that it takes part in.

    A rank's *lateness* at a collective at which it is last is its start less that of the rank before it: how much
    sooner the collective could have begun without it.
    """

    rank: int
    num_collectives: int
    """Matched collectives of which the rank is a member, with others."""
    num_last: int
    """Of these, at which it started last."""
    num_late: int
    """Of these, last by more than a tie; the figures below are of these alone."""
    num_independent: int
    """Of these, whose lateness is not the same delay seen again."""
    delay_ns: int
    """What is new in the lateness of these, summed: without it, the rank would not be late but for older delays. A
    delay is seen again at each later collective, so lateness in sum can be far more than what the delays cost."""
    late_ns: int
    """Lateness, summed. It equals ``own.total − before.total + began``."""
    median_late_ns: float | None
    """``None`` where it is never late."""
    own: OwnTime
    """Its own time ahead of these collectives, summed."""
    before: OwnTime
    """Own time of the rank before it in the same intervals, summed."""
    began_ns: int
    """How much later than that rank's its own time began, summed: the previous collective's ends differ, or there
    was none and its step began later."""
    more: OwnTime | None = None
    """``own − before``, part by part: what it had more of. ``more.total + began`` is its lateness."""


class StepLateness(Lateness, frozen=True, kw_only=True):
    """How one rank arrives in one step."""

    step: int | None
    """Step in which the collectives were launched; ``None`` outside of all."""
    num_together: int | None = None
    """Collectives at which it is late with the group that is late together; ``None`` where it is in none."""
    together_ns: int | None = None
    """Lateness of the group at these, summed."""


class LateGroup(Struct, frozen=True, kw_only=True):
    """Ranks that arrive together, after all others, more often than chance explains.

    The *lateness* of a group at a collective at which all of it starts after all other members is the start of its
    first rank less that of the last one of the others: what each of them is late by, at least.
    """

    name: str
    """In words: ``ranks 4 to 7``, ``host-1 (ranks 4 to 7)``."""
    ranks: tuple[int, ...]
    """In rising order."""
    others: tuple[int, ...]
    """The ranks that wait for them, in rising order."""
    hosts: tuple[str, ...] = ()
    """Hosts whose ranks these are: all of them, and no others. Empty where it is not so, or not known."""
    is_early: bool
    """Whether the others are so few (less than a third) that it is they who stand out: they arrive early. Then nobody
    is a straggler by this: ranks that have less to do look the same as all others being late."""
    num_collectives: int
    """Matched collectives of which all of the group are members, with others."""
    num_late: int
    """Of these, at which all of them start after all others, by more than a tie; the figures below are of these."""
    num_independent: int
    """Of these, whose lateness is not the same delay seen again."""
    delay_ns: int
    """What is new in the lateness of these, summed."""
    late_ns: int
    """Lateness, summed. It equals ``own.total − before.total + began``."""
    median_late_ns: float
    own: OwnTime
    """Own time ahead of these collectives of the first of the group to start, summed."""
    before: OwnTime
    """Own time of the last of the others to start, in the same intervals, summed."""
    began_ns: int
    """How much later than that rank's its own time began, summed."""
    more: OwnTime | None = None
    """``own − before``, part by part."""
    chance_ratio: float
    """How often chance alone makes some ranks look as bad together."""
    largest_place: Place | None
    """The own time ahead of its longest new delay, of the first of the group to start."""


class Stragglers(Struct, frozen=True, kw_only=True):
    """Whether some rank, or group of ranks, is late more often than chance explains, with what that is judged by."""

    verdict: StragglerVerdict
    rank: int | None
    """The straggler; in the other verdicts, the rank with the most lateness. ``None`` where none is ever late by
    itself, and where ``group`` is the straggler."""
    sentence: str
    num_collectives: int
    """Matched collectives of several members."""
    num_ties: int
    """Of these, without a late arrival: the last two come together, see ``tie_ns``."""
    num_independent: int
    """Independent late arrivals of all ranks."""
    num_needed: int
    """How many independent arrivals, all of one rank, would tell it from chance."""
    chance_ratio: float | None
    """How often chance alone makes some rank look as bad, by number and size of the independent arrivals that are its
    own; that of ``group`` where it is the straggler. ``None`` without any."""
    tie_ns: int
    """Arrivals nearer to each other than this are no late arrivals: nine of ten collectives end on all their members
    within it. Nor are those nearer than this once the difference of the previous collective's ends is taken off, nor
    those of a rank whose profiler had not started yet."""
    largest_ns: int | None
    """The longest delay of an independent arrival; ``None`` without any."""
    largest_place: Place | None
    """That rank's own time ahead of it."""
    spread_ns: float | None
    """Robust standard deviation (1.4826 × the median absolute deviation) of the delays of independent arrivals."""
    ranks: tuple[Lateness, ...]
    """Every rank that takes part in a matched collective, over all steps."""
    group: LateGroup | None = None
    """Ranks that are late together; ``None`` where chance may explain all that are. With ``rank`` it is beside it."""
    late_ratio: float | None = None
    """Lateness of the straggler a step, as a part of the median step; ``None`` in the other verdicts."""
    is_immaterial: bool = False
    """Whether there is a straggler, but its lateness is less than a thousandth of the step."""
