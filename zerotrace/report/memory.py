"""Section 6, memory: what a rank holds by owner, measured, by the engine's ledger and in theory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from zerotrace.model import (
    LedgerLine,
    MemoryCurve,
    MemoryReport,
    OwnedBytes,
    Owner,
    OwnerGap,
    PeakLedger,
    RankMemory,
    Reconciliation,
)
from zerotrace.report.charts import Chart, label_px
from zerotrace.report.memory_words import difference_words, whose_ledger
from zerotrace.report.words import Named, joined, shown, tell
from zerotrace.units import GIB, NS_PER_MS, format_bytes, format_ns

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


class LineRow(Struct, frozen=True, kw_only=True):
    """One line of the engine's ledger, and the instant that it belongs to."""

    when: str
    line: LedgerLine


class MemorySection(Struct, frozen=True, kw_only=True):
    """What the section shows."""

    memory: MemoryReport
    whose: str
    """Whose ledger it is held against: ``DeepSpeed’s``."""
    lead: str
    peak_lead: str | None
    chart: Chart | None
    timeline: Chart | None
    lines: tuple[LineRow, ...]


class _Row(Struct, frozen=True):
    """One bar: what holds how many bytes, an owner once or in several parts, and the figure at its end."""

    label: str
    parts: Sequence[tuple[Owner, float]]
    total: float | None


def memory_section(memory: MemoryReport | None) -> MemorySection | None:
    """The section; ``None`` where nothing is known of memory."""
    if memory is None:
        return None
    return MemorySection(
        memory=memory,
        whose=whose_ledger(memory.deepspeed),
        lead=_lead(memory),
        peak_lead=_peak_lead(memory.peak, whose_ledger(memory.deepspeed)) if memory.peak else None,
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
        return joined(" ", map(Named, memory.resident.words))
    measured = _highest(memory)
    if measured is not None:
        held = shown(measured.resident_bytes, format_bytes)
        lead = tell(f"Between steps rank {measured.rank} holds {{}}", held)
        if measured.peak_bytes is not None:
            lead = tell("{}, at the peak {}", lead, shown(measured.peak_bytes, format_bytes))
        if memory.paper is not None:
            lead = tell("{}; in theory model states take {}", lead, shown(memory.paper.bytes, format_bytes))
        return tell("{}.", lead)
    if memory.paper is not None:
        return tell("In theory a rank holds {} of model states.", shown(memory.paper.bytes, format_bytes))
    return "The traces tell totals alone." if memory.profiled else "Nothing is known of memory by owner."


def _highest(memory: MemoryReport) -> RankMemory | None:
    """The rank with the highest peak among those that have owners."""
    return max(
        (rank for rank in memory.ranks if rank.resident and rank.resident_bytes is not None),
        key=lambda rank: rank.peak_bytes or 0,
        default=None,
    )


def _peak_lead(peak: Reconciliation, whose: str) -> str:
    return tell(
        f"The peak of rank {peak.rank} is {{}}, at {_INSTANTS[peak.instant]}; by {whose} ledger {{}}: {{}}.",
        shown(peak.measured_bytes, format_bytes),
        shown(peak.deepspeed_bytes, format_bytes),
        difference_words(peak),
    )


def _chart(memory: MemoryReport) -> Chart | None:
    rows = list(_rows(memory))
    if not rows:
        return None
    labels = [row.label for row in rows]
    places = _places(rows)
    used = {OWNER_ROLES[owner] for row in rows for owner, size in row.parts if size}
    return Chart(
        id="memory-bars",
        caption=f"Bytes of a rank by owner: measured, by {whose_ledger(memory.deepspeed)} ledger, in theory; between "
        "steps and at the peak.",
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
                    "range": [0, max(_length(row) for row in rows) / GIB],
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
    """Between steps and at the peak: measured, the engine's, the paper's, as far as they are known."""
    resident, peak, measured = memory.resident, memory.peak, _highest(memory)
    whose = whose_ledger(memory.deepspeed)
    if resident is not None:
        yield _Row("between steps", _measured(resident), resident.measured_bytes)
        yield _Row(whose, _told(resident), resident.deepspeed_bytes)
    elif measured is not None:
        yield _Row("between steps", _listed(measured.resident), measured.resident_bytes)
    elif memory.deepspeed is not None:
        yield _Row(whose, _listed(memory.deepspeed.lines), memory.deepspeed.bytes)
    if memory.paper is not None:
        yield _Row("the paper’s", _listed(memory.paper.lines), memory.paper.bytes)
    if peak is not None:
        yield _Row(_AT_PEAK, _measured(peak), peak.measured_bytes)
        yield _Row(whose, _told(peak), peak.deepspeed_bytes)
    elif measured is not None and measured.peak:
        yield _Row(_AT_PEAK, _listed(measured.peak), measured.peak_bytes)


def _places(rows: Sequence[_Row]) -> list[float]:
    """Where each bar stands; what is at the peak a little apart."""
    apart = next((number for number, row in enumerate(rows) if row.label == _AT_PEAK), len(rows))
    return [number + (0.4 if number >= apart else 0.0) for number in range(len(rows))]


def _bars(rows: Sequence[_Row], places: Sequence[float]) -> list[dict[str, Any]]:
    segments: dict[str, list[tuple[float, float, float, str]]] = {}
    for row, place in zip(rows, places):
        start = 0.0
        for role, name in dict.fromkeys(OWNER_ROLES.values()):
            parts = [(owner, size) for owner, size in row.parts if OWNER_ROLES[owner] == (role, name) and size]
            length = sum(size for _, size in parts)
            if length:
                hover = tell("{}: {}", row.label, sizes_text(parts))
                segments.setdefault(role, []).append((place, start, length, hover))
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
        "x": [_length(row) / GIB for row in rows],
        "y": list(places),
        "text": [tell("\u2009 {}", shown(row.total, format_bytes)) for row in rows],
        "textposition": "middle right",
        "hoverinfo": "skip",
        "cliponaxis": False,
    }


def _timeline(curve: MemoryCurve) -> Chart:
    times = [after / NS_PER_MS for after in curve.after_ns]
    sizes = {part.owner: part.bytes for part in curve.owners}
    traces, used = [], []
    for role, name in dict.fromkeys(OWNER_ROLES.values()):
        parts = {owner: sizes[owner] for owner in OWNER_ROLES if OWNER_ROLES[owner] == (role, name) and owner in sizes}
        if not parts:
            continue
        points = [list(zip(parts, values)) for values in zip(*parts.values())]
        used.append((role, name))
        traces.append(
            {
                "type": "scatter",
                "mode": "lines",
                "stackgroup": "owners",
                "meta": {"role": role},
                "line": {"shape": "hv"},
                "x": times,
                "y": [sum(size for _, size in point) / GIB for point in points],
                "hovertext": [
                    tell("{} after {}", sizes_text(point), shown(after, format_ns))
                    for point, after in zip(points, curve.after_ns)
                ],
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


def sizes_text(parts: Iterable[tuple[Owner, float]]) -> str:
    """What each owner holds: ``master 1.44 GiB, exp_avg 1.44 GiB``."""
    return joined(", ", (tell(f"{owner.value} {{}}", shown(size, format_bytes)) for owner, size in parts))


def _length(row: _Row) -> float:
    return sum(size for _, size in row.parts)


def _measured(found: Reconciliation) -> list[tuple[Owner, float]]:
    return [(gap.owner, gap.measured_bytes) for gap in found.owners]


def _told(found: Reconciliation) -> list[tuple[Owner, float]]:
    """The engine's ledger; what it does not know is drawn as measured, so that bars compare."""
    return [
        (gap.owner, gap.measured_bytes if gap.deepspeed_bytes is None else gap.deepspeed_bytes) for gap in found.owners
    ]


def _listed(entries: Iterable[LedgerLine | OwnedBytes]) -> list[tuple[Owner, float]]:
    order = list(OWNER_ROLES)
    return sorted(((entry.owner, entry.bytes) for entry in entries), key=lambda part: order.index(part[0]))


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
