"""What is between measured memory and DeepSpeed's ledger, in words: for the page and for the terminal."""

from __future__ import annotations

from zerotrace.model import OwnerGap, Reconciliation
from zerotrace.units import format_bytes, format_ratio

#: A difference that has a name is told from this part of what was measured on.
_WORTH_NAMING = 0.001

#: From this part on, what has no name is given as a part, too.
_WORTH_A_RATIO = 0.001


def difference_words(found: Reconciliation) -> str:
    """Which differences are explained, by owner, and how many bytes are not."""
    named = [gap for gap in found.owners if abs(_explained(gap)) >= _WORTH_NAMING * found.measured_bytes]
    named = sorted(named, key=lambda gap: -abs(_explained(gap)))
    rest = format_bytes(found.unexplained_bytes) if found.unexplained_bytes else "nothing"
    if found.unexplained_ratio >= _WORTH_A_RATIO:
        rest += f" ({format_ratio(found.unexplained_ratio)})"
    if not named:
        return f"{rest} unexplained"
    told = ", ".join(f"{gap.owner.value} {signed_bytes(_explained(gap))}" for gap in named)
    return f"{told} explained, {rest} unexplained"


def signed_bytes(value: float | None) -> str:
    """A size with its sign; a dash for unknown."""
    if value is None:
        return "–"
    return f"{'−' if value < 0 else '+' if value > 0 else ''}{format_bytes(abs(value))}"


def _explained(gap: OwnerGap) -> int:
    """The part of a gap that has a name."""
    size = abs(gap.gap_bytes or 0) - gap.unexplained_bytes
    return max(size, 0) * (-1 if (gap.gap_bytes or 0) < 0 else 1)
