"""Section 6, memory: what a rank holds by owner, measured, by DeepSpeed's ledger and in theory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerotrace.analysis.memory.measure import by_owner
from zerotrace.model import (
    LedgerLine,
    MemoryCurve,
    MemoryReport,
    Owner,
    OwnerGap,
    PeakLedger,
    RankMemory,
    Reconciliation,
)
from zerotrace.report.charts import Chart, label_px
from zerotrace.report.memory_words import difference_words
from zerotrace.units import GIB, NS_PER_MS, format_bytes

#: Owners in the order in which bars are stacked, and the role and name that they are drawn with.
OWNER_ROLES: dict[Owner, tuple[str, str]] = {
    Owner.PARAMS: ("compute", "parameters"),
    Owner.MASTER: ("overlapped", "optimizer: master, moments"),
    Owner.EXP_AVG: ("overlapped", "optimizer: master, moments"),
    Owner.EXP_AVG_SQ: ("overlapped", "optimizer: master, moments"),
    Owner.GRADS: ("exposed", "gradients and their shard"),
    Owner.GRAD_PARTITION: ("exposed", "gradients and their shard"),
    Owner.REDUCE_BUCKET: ("waiting", "reduce buckets"),
    Owner.GATHERED_PARAMS: ("copy", "gathered parameters"),
    Owner.ACTIVATIONS: ("host", "activations"),
    Owner.WORKSPACE: ("idle", "workspaces, other"),
    Owner.OTHER: ("idle", "workspaces, other"),
}

_AT_PEAK = "at the peak"
_INSTANTS = {"loss": "the loss", "reduce": "the first reduction", "step": "the optimizer's step"}


@dataclass(frozen=True, kw_only=True)
class LineRow:
    """One line of DeepSpeed's ledger, and the instant that it belongs to."""

    when: str
    line: LedgerLine


@dataclass(frozen=True, kw_only=True)
class MemorySection:
    """What the section shows."""

    memory: MemoryReport
    lead: str
    peak_lead: str | None
    chart: Chart | None
    timeline: Chart | None
    lines: tuple[LineRow, ...]


@dataclass(frozen=True)
class _Row:
    """One bar: bytes by owner."""

    label: str
    sizes: Mapping[Owner, float]

    @property
    def total(self) -> float:
        return sum(self.sizes.values())


def memory_section(memory: MemoryReport | None) -> MemorySection | None:
    """The section; ``None`` where nothing is known of memory."""
    if memory is None:
        return None
    return MemorySection(
        memory=memory,
        lead=_lead(memory),
        peak_lead=_peak_lead(memory.peak) if memory.peak else None,
        chart=_chart(memory),
        timeline=_timeline(memory.curve) if memory.curve else None,
        lines=tuple(_lines(memory)),
    )


def gap_text(gap: OwnerGap) -> str:
    """What a gap is, in words: its name, or that there is nothing to say."""
    if gap.words:
        return gap.words
    if gap.unexplained_bytes:
        return "unexplained"
    return "agrees" if not gap.gap_bytes else "rounding of the allocator"


def _lead(memory: MemoryReport) -> str:
    if memory.resident is not None:
        return " ".join(memory.resident.words)
    measured = _highest(memory)
    if measured is not None:
        lead = f"Between steps rank {measured.rank} holds {format_bytes(measured.resident_bytes)}"
        if measured.peak_bytes is not None:
            lead += f", at the peak {format_bytes(measured.peak_bytes)}"
        theory = f"; in theory model states take {format_bytes(memory.paper.bytes)}" if memory.paper else ""
        return f"{lead}{theory}."
    if memory.paper is not None:
        return f"In theory a rank holds {format_bytes(memory.paper.bytes)} of model states."
    return "The traces tell totals alone." if memory.profiled else "Nothing is known of memory by owner."


def _highest(memory: MemoryReport) -> RankMemory | None:
    """The rank with the highest peak among those that have owners."""
    return max(
        (rank for rank in memory.ranks if rank.resident and rank.resident_bytes is not None),
        key=lambda rank: rank.peak_bytes or 0,
        default=None,
    )


def _peak_lead(peak: Reconciliation) -> str:
    return (
        f"The peak of rank {peak.rank} is {format_bytes(peak.measured_bytes)}, at {_INSTANTS[peak.instant]}; by "
        f"DeepSpeed’s ledger {format_bytes(peak.deepspeed_bytes)}: {difference_words(peak)}."
    )


def _chart(memory: MemoryReport) -> Chart | None:
    rows = list(_rows(memory))
    if not rows:
        return None
    labels = [row.label for row in rows]
    places = _places(rows)
    used = [OWNER_ROLES[owner] for owner in Owner if any(row.sizes.get(owner) for row in rows)]
    return Chart(
        id="memory-bars",
        caption="Bytes of a rank by owner: measured, by DeepSpeed’s ledger, in theory; between steps and at the peak.",
        label="Memory by owner; the same figures are in the tables below",
        legend=tuple(role for role in dict.fromkeys(OWNER_ROLES.values()) if role in used),
        figure={
            "data": [*_bars(rows, places), _totals(rows, places)],
            "layout": {
                "barmode": "overlay",
                "showlegend": False,
                "height": round(30 * (places[-1] + 1)) + 44,
                "margin": {"l": label_px(labels, 210), "r": 8, "t": 4, "b": 36},
                "meta": {"end_px": 66},
                "xaxis": {
                    "range": [0, max(row.total for row in rows) / GIB],
                    "fixedrange": True,
                    "showgrid": True,
                    "ticksuffix": " GiB",
                },
                "yaxis": {
                    "range": [places[-1] + 0.6, -0.6],
                    "fixedrange": True,
                    "tickvals": places,
                    "ticktext": labels,
                    "ticklabelstandoff": 8,
                },
            },
        },
    )


def _rows(memory: MemoryReport) -> Iterable[_Row]:
    """Between steps and at the peak: measured, DeepSpeed's, the paper's, as far as they are known."""
    resident, peak, measured = memory.resident, memory.peak, _highest(memory)
    if resident is not None:
        yield _Row("between steps", _measured(resident))
        yield _Row("DeepSpeed’s", _told(resident))
    elif measured is not None:
        yield _Row("between steps", by_owner(measured.resident))
    elif memory.deepspeed is not None:
        yield _Row("DeepSpeed’s", _by_owner(memory.deepspeed.lines))
    if memory.paper is not None:
        yield _Row("the paper’s", _by_owner(memory.paper.lines))
    if peak is not None:
        yield _Row(_AT_PEAK, _measured(peak))
        yield _Row("DeepSpeed’s", _told(peak))
    elif measured is not None and measured.peak:
        yield _Row(_AT_PEAK, by_owner(measured.peak))


def _places(rows: Sequence[_Row]) -> list[float]:
    """Where each bar stands; what is at the peak a little apart."""
    apart = next((number for number, row in enumerate(rows) if row.label == _AT_PEAK), len(rows))
    return [number + (0.4 if number >= apart else 0.0) for number in range(len(rows))]


def _bars(rows: Sequence[_Row], places: Sequence[float]) -> list[dict[str, Any]]:
    segments: dict[str, list[tuple[float, float, float, str]]] = {}
    for row, place in zip(rows, places):
        start = 0.0
        for role, name in dict.fromkeys(OWNER_ROLES.values()):
            parts = {o: row.sizes[o] for o in OWNER_ROLES if OWNER_ROLES[o] == (role, name) and row.sizes.get(o)}
            length = sum(parts.values())
            if length:
                detail = ", ".join(f"{owner.value} {format_bytes(size)}" for owner, size in parts.items())
                segments.setdefault(role, []).append((place, start, length, f"{row.label}: {detail}"))
            start += length
    return [
        {
            "type": "bar",
            "orientation": "h",
            "meta": {"role": role},
            "y": [place for place, *_ in found],
            "base": [start / GIB for _, start, _, _ in found],
            "x": [length / GIB for _, _, length, _ in found],
            "width": 0.7,
            "hovertext": [text for *_, text in found],
            "hoverinfo": "text",
        }
        for role, found in segments.items()
    ]


def _totals(rows: Sequence[_Row], places: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "text",
        "meta": {"role": "total"},
        "x": [row.total / GIB for row in rows],
        "y": list(places),
        "text": [f"\u2009 {format_bytes(row.total)}" for row in rows],
        "textposition": "middle right",
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _timeline(curve: MemoryCurve) -> Chart:
    times = [after / NS_PER_MS for after in curve.after_ns]
    sizes = {part.owner: part.bytes for part in curve.owners}
    traces, used = [], []
    for role, name in dict.fromkeys(OWNER_ROLES.values()):
        parts = [sizes[owner] for owner in OWNER_ROLES if OWNER_ROLES[owner] == (role, name) and owner in sizes]
        if not parts:
            continue
        totals = [sum(values) for values in zip(*parts)]
        used.append((role, name))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "stackgroup": "owners",
                "meta": {"role": role},
                "line": {"shape": "hv"},
                "x": times,
                "y": [total / GIB for total in totals],
                "hovertext": [f"{name}: {format_bytes(t)} after {x:.0f} ms" for t, x in zip(totals, times)],
                "hoverinfo": "text",
            }
        )
    top = max(sum(values) for values in zip(*sizes.values())) / GIB
    return Chart(
        id="memory-timeline",
        caption=f"Bytes of rank {curve.rank} by owner over the memory window; each point is its stretch’s highest.",
        label="Memory over time by owner; the same figures are in the table below",
        legend=tuple(used),
        figure={
            "data": traces,
            "layout": {
                "showlegend": False,
                "height": 260,
                "margin": {"l": 56, "r": 8, "t": 8, "b": 40},
                "xaxis": {"range": [0, times[-1]], "fixedrange": True, "ticksuffix": " ms", "ticklabelstandoff": 6},
                "yaxis": {"range": [0, 1.04 * top], "fixedrange": True, "ticksuffix": " GiB", "ticklabelstandoff": 6},
            },
        },
    )


def _measured(found: Reconciliation) -> dict[Owner, float]:
    return {gap.owner: gap.measured_bytes for gap in found.owners}


def _told(found: Reconciliation) -> dict[Owner, float]:
    """DeepSpeed's ledger; what it does not know is drawn as measured, so that bars compare."""
    return {
        gap.owner: gap.measured_bytes if gap.deepspeed_bytes is None else gap.deepspeed_bytes for gap in found.owners
    }


def _by_owner(lines: Iterable[LedgerLine]) -> dict[Owner, float]:
    found: dict[Owner, float] = {}
    for line in lines:
        found[line.owner] = found.get(line.owner, 0.0) + line.bytes
    return found


def _lines(memory: MemoryReport) -> Iterable[LineRow]:
    if memory.deepspeed is None:
        return
    for line in memory.deepspeed.lines:
        yield LineRow(when="between steps", line=line)
    for peak in memory.deepspeed.peaks:
        for line in peak.lines:
            yield LineRow(when=_when(peak), line=line)


def _when(peak: PeakLedger) -> str:
    return f"+ at {_INSTANTS[peak.instant]}"
