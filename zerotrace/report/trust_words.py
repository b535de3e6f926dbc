"""The trust section in words, for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from zerotrace.model import Trust
from zerotrace.report.words import Named, joined, shown, tell
from zerotrace.units import format_count, format_ns, format_ratio


class TrustRow(Struct, frozen=True):
    """One thing that could weaken the figures."""

    key: str
    """Attribute of :class:`zerotrace.model.Trust`."""
    label: str
    value: float | None
    text: str
    """The value as people read it."""
    meaning: str
    weakens: bool


def trust_rows(trust: Trust) -> tuple[TrustRow, ...]:
    """Everything that was looked at, also where nothing was found."""
    return tuple(_rows(trust))


def trust_sentence(trust: Trust) -> str:
    """What weakens the figures, in one sentence."""
    found = [f"{row.label} {row.text}" for row in trust_rows(trust) if row.weakens]
    if not found:
        return "Nothing was found that weakens these figures."
    return f"Trust: {', '.join(found)}."


def _rows(trust: Trust) -> Iterator[TrustRow]:
    names = joined(", ", map(Named, trust.unclassified_names[:3])) or "none"
    yield TrustRow(
        "unclassified_ratio", "unclassified kernel time", trust.unclassified_ratio,
        tell("{} of compute", shown(trust.unclassified_ratio, format_ratio)),
        tell("of the rank that has most; makes compute, exposed and overlap bounds (names: {})", names),
        trust.unclassified_ratio > 0,
    )  # fmt: skip
    of_launches: str = ""
    if trust.num_launches is not None:
        of_launches = tell(" of {}", shown(trust.num_launches, format_count))
    yield _count(
        "num_launches_without_kernel", "launches without kernel", trust.num_launches_without_kernel,
        "launch calls in the steps whose kernels are not in the trace: their time is missing", of=of_launches,
    )  # fmt: skip
    yield _count(
        "num_kernels_without_launch", "kernels without launch", trust.num_kernels_without_launch,
        "idle time ahead of them is of unknown cause (unlinked)",
    )  # fmt: skip
    yield _count(
        "num_dropped", "events dropped", trust.num_dropped,
        "negative durations, times that are none, records that stand twice: in no figure",
    )  # fmt: skip
    yield _count(
        "num_clipped", "rows cut at a step's border", trust.num_clipped,
        "the device runs behind the host; each part counts in the step in which it lies", weakens=False,
    )  # fmt: skip
    yield _count("num_missing_ranks", "missing ranks", trust.num_missing_ranks, "ranks of the world without a trace")
    yield _count(
        "num_unmatched", "unmatched collectives", trust.num_unmatched,
        "rows without a partner on another rank, counted as transfer",
    )  # fmt: skip
    median, worst = trust.clock_residual_median_ns, trust.clock_residual_worst_ns
    yield TrustRow(
        "clock_residual_median_ns", "clock residual", median,
        "–" if median is None else tell("{} (worst {})", shown(median, format_ns), shown(worst, format_ns)),
        "by how much ends of one collective differ between ranks: arrival, wait and skew are no better",
        median is not None,
    )  # fmt: skip
    ratio = trust.dilation_ratio
    yield TrustRow(
        "dilation_ratio", "dilation", ratio, shown(ratio, lambda value: "–" if value is None else f"{value:.2f} ×"),
        "profiled / unprofiled step: figures are read from profiled steps", ratio is not None,
    )  # fmt: skip


def _count(key: str, label: str, value: int | None, meaning: str, of: str = "", *, weakens: bool = True) -> TrustRow:
    text = "–" if value is None else tell("{}{}", shown(value, format_count), of)
    return TrustRow(key, label, value, text, meaning, weakens and bool(value))
