"""Memory in two lines of text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from zerotrace.model import MemoryReport, OwnedBytes, Owner, Reconciliation
from zerotrace.report.memory_words import difference_words, whose_ledger
from zerotrace.units import format_bytes

_MAX_OWNERS = 2


def memory_lines(memory: MemoryReport) -> Iterator[Text]:
    """What is held between steps and at the peak, by owner, and how the ledgers compare."""
    held = max(memory.ranks, key=lambda rank: rank.resident_bytes or 0, default=None)
    if held is not None and held.resident:
        line = f"Memory between steps {_owners(held.resident)}"
        if held.peak:
            line += f"; peak {_owners(held.peak)}"
        yield Text(f"{line}.")
    told = [text for name in ("resident", "peak") if (text := _against(memory, name))]
    if told:
        yield Text(f"Ledger: {'; '.join(told)}.")
    elif memory.paper is not None:
        yield Text(f"Ledger: the paper says {format_bytes(memory.paper.bytes)} of model states a rank.")
    for part in memory.profiled:
        before = f", {format_bytes(part.baseline_bytes)} from before" if part.baseline_bytes is not None else ""
        yield Text(f"Rank {part.rank}, {part.device}: allocated at most {format_bytes(part.peak_bytes)}{before}.")


def _owners(entries: Iterable[OwnedBytes]) -> str:
    totals: dict[Owner, int] = {}
    for entry in entries:
        totals[entry.owner] = totals.get(entry.owner, 0) + entry.bytes
    most = sorted(totals.items(), key=lambda item: -item[1])[:_MAX_OWNERS]
    rest = sum(totals.values()) - sum(size for _, size in most)
    named = [f"{owner.value} {format_bytes(size)}" for owner, size in most]
    if rest:
        named.append(f"others {format_bytes(rest)}")
    return f"{format_bytes(sum(totals.values()))} ({', '.join(named)})"


def _against(memory: MemoryReport, name: str) -> str | None:
    found: Reconciliation | None = getattr(memory, name)
    if found is None:
        return None
    whose = whose_ledger(memory.deepspeed).replace("’", "'")
    paper = f", the paper's {format_bytes(found.paper_bytes)}" if name == "resident" else ""
    return (
        f"{name} {format_bytes(found.measured_bytes)}, {whose} {format_bytes(found.deepspeed_bytes)}{paper}: "
        f"{difference_words(found)}"
    )
