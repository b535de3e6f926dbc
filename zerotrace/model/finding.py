"""Findings: what an engineer should look at first, and what turning a knob is predicted to win."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from zerotrace.units import format_bytes, format_ns

#: So many findings are shown, the worst; more would not be read. ``analysis.json`` has all of them.
MOST_FINDINGS = 5


class Place(Struct, frozen=True, kw_only=True):
    """Where the evidence can be seen: a stretch of a rank's timeline."""

    rank: int
    step: int
    start_ns: int
    """On the clock of the rank's events, nanoseconds since the Unix epoch."""
    end_ns: int


class Gain(Struct, frozen=True, kw_only=True):
    """What a change is predicted to win. At least one of the two amounts is known."""

    step_ns: float | None = None
    """Nanoseconds of an unprofiled step."""
    memory_bytes: int | None = None
    """Bytes of a rank's memory."""
    at_most: bool = True
    """Whether this is an upper bound, and not an estimate."""
    basis: str
    """Where the prediction comes from, in a few words."""

    @property
    def amount(self) -> str:
        """In words: ``at most 120 ms a step``."""
        time = [] if self.step_ns is None else [f"{format_ns(self.step_ns)} a step"]
        memory = [] if self.memory_bytes is None else [f"{format_bytes(self.memory_bytes)} a rank"]
        return f"{'at most' if self.at_most else 'about'} {' and '.join(time + memory)}"

    @property
    def text(self) -> str:
        """With where it comes from: ``at most 120 ms a step (the unprofiled step, less …)``."""
        return f"{self.amount} ({self.basis})"


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that costs the run something, with its evidence."""

    code: str
    """Stable name of the rule that found it."""
    claim: str
    """What is the case, one sentence."""
    evidence: str
    """The figures that show it, one or two sentences."""
    numbers: Mapping[str, float | int] = field(default_factory=dict)
    """The same figures for a program; names carry units."""
    cost_ns: float | None = None
    """What is at stake a step: the time it takes now, of which a gain is a part. ``None`` for memory alone."""
    cost_bytes: int | None = None
    """The same for memory."""
    place: Place | None = None
    knob: str | None = None
    """What to change, in the words of DeepSpeed's configuration where it has some."""
    gain: Gain | None = None
    """``None`` where the run does not tell what the change would win."""
