"""What is between measured memory and the engine's ledger, in words: for the page and for the terminal."""

from __future__ import annotations

from zerotrace.model import EngineLedger, OwnerGap, Reconciliation
from zerotrace.report.words import joined, shown, tell
from zerotrace.units import format_bytes, format_ratio

#: A difference that has a name is told from this part of what was measured on.
_WORTH_NAMING = 0.001

#: From this part on, what has no name is given as a part, too.
_WORTH_A_RATIO = 0.001


def whose_ledger(ledger: EngineLedger | None) -> str:
    """Whose ledger it is: ``DeepSpeed’s``, ``torch’s``."""
    return "DeepSpeed’s" if ledger is None or ledger.engine == "deepspeed" else "torch’s"


def difference_words(found: Reconciliation) -> str:
    """Which differences are explained, by owner, and how many bytes are not."""
    named = [gap for gap in found.owners if abs(_explained(gap)) >= _WORTH_NAMING * found.measured_bytes]
    named = sorted(named, key=lambda gap: -abs(_explained(gap)))
    rest: str = shown(found.unexplained_bytes, format_bytes) if found.unexplained_bytes else "nothing"
    if found.unexplained_ratio >= _WORTH_A_RATIO:
        rest = tell("{} ({})", rest, shown(found.unexplained_ratio, format_ratio))
    if not named:
        return tell("{} unexplained", rest)
    told = joined(", ", (tell(f"{gap.owner.value} {{}}", shown(gap.explained_bytes, signed_bytes)) for gap in named))
    return tell("{} explained, {} unexplained", told, rest)


def signed_bytes(value: float | None) -> str:
    """A size with its sign; a dash for unknown."""
    if value is None:
        return "–"
    return f"{'−' if value < 0 else '+' if value > 0 else ''}{format_bytes(abs(value))}"


def _explained(gap: OwnerGap) -> int:
    return gap.explained_bytes or 0
