"""The memory of each run by owner, between steps and at the peak, with lines of theory."""

from __future__ import annotations

from collections.abc import Callable

from zerotrace.model import ComparedRun, Comparison, HeldMemory, LadderStep, Owner
from zerotrace.report.columns import Column, Segment, TheoryLine, column_chart, shared_reach
from zerotrace.report.compared.rows import Figure, TableRow, row
from zerotrace.report.memory import OWNER_ROLES
from zerotrace.report.memory_words import signed_bytes
from zerotrace.report.summary import UNKNOWN
from zerotrace.report.words import Named, joined, shown, tell
from zerotrace.units import GIB, format_bytes

#: Below this, the change of an owner is in the JSON alone.
_MENTIONED_BYTES = 10 << 20

_PAPER, _LEDGER = ("paper", "in theory"), ("ledger", "the engine’s ledger")


def memory_lead(comparison: Comparison) -> str:
    """What theory promises of the ladder, what came of it, and where less is saved than that, by which owners."""
    told = []
    for step in comparison.ladder:
        saved = shown(step.paper_bytes, format_bytes)
        promised = tell(f"stage {step.to_stage} saves {{}} over stage {step.from_stage}", saved)
        size = shown(step.measured_bytes, lambda size: format_bytes(abs(size)))
        came = "it holds as much"
        if step.measured_bytes:
            came = tell("it saves {}" if step.measured_bytes > 0 else "it holds {} more", size)
        owners = owners_text(comparison, step) if step.measured_bytes < step.paper_bytes else ""
        told.append(tell("{}; measured, {}{}", promised, came, tell(" ({})", owners) if owners else ""))
    return tell("In theory {}.", joined(". In theory ", told)) if told else ""


def owners_text(comparison: Comparison, step: LadderStep) -> str:
    """What the owners that change most hold more or less after a step of the ladder; empty where none is known."""
    repeats = comparison.repeats
    stages = (step.from_stage, step.to_stage)
    deltas = (d for d in comparison.deltas if (repeats[d.before].stage, repeats[d.after].stage) == stages)
    delta = next((delta for delta in deltas if delta.is_rung), None)
    changes = [one for one in delta.owners if abs(one.bytes) >= _MENTIONED_BYTES] if delta else []
    return joined(", ", (tell(f"{one.owner.value} {{}}", shown(one.bytes, signed_bytes)) for one in changes))


def resident_figure(comparison: Comparison) -> Figure:
    """Memory by owner between steps, with both ledgers."""
    return _memory_figure(
        comparison,
        held=lambda run: run.resident,
        gauge=lambda run: run.resident_bytes,
        id="resident-columns",
        key="resident_bytes",
        caption="Columns are what a rank holds, measured; lines are what it should hold, by both ledgers.",
        label="Memory between steps by owner, with theory; the same figures are in the table below",
    )


def peak_figure(comparison: Comparison) -> Figure:
    """Memory by owner at the peak, with the engine's ledger."""
    return _memory_figure(
        comparison,
        held=lambda run: run.peak,
        gauge=lambda run: run.peak_bytes,
        id="peak-columns",
        key="peak_bytes",
        caption="The same at the highest instant of a step, which theory does not tell: it leaves out activations.",
        label="Memory at the peak by owner, with theory; the same figures are in the table below",
    )


def legend_of_both(resident: Figure, peak: Figure) -> tuple[tuple[str, str], ...]:
    """One legend for the two charts, which stand side by side."""
    found = [entry for figure in (resident, peak) if figure.chart for entry in figure.chart.legend]
    order = [*dict.fromkeys(OWNER_ROLES.values()), _PAPER, _LEDGER]
    return tuple(sorted(dict.fromkeys(found), key=order.index))


def _memory_figure(
    comparison: Comparison,
    *,
    held: Callable[[ComparedRun], HeldMemory],
    gauge: Callable[[ComparedRun], int | None],
    id: str,
    key: str,
    caption: str,
    label: str,
) -> Figure:
    runs = comparison.runs
    columns = [_memory_column(run, held(run), gauge(run)) for run in runs]
    instants = [(run, run.resident, run.resident_bytes) for run in runs]
    instants += [(run, run.peak, run.peak_bytes) for run in runs]
    # Both charts share an axis.
    reach = shared_reach([_memory_column(*instant) for instant in instants])
    reach = max([reach, *(size / GIB for _, one, _ in instants for size in _told(one))])
    lines = [
        TheoryLine(
            role,
            tuple(None if value is None else value / GIB for value in values),
            tuple(
                tell(f"{{}}: {{}} {name}", Named(run.label), shown(value, format_bytes))
                for run, value in zip(runs, values, strict=True)
            ),
        )
        for (role, name), values in (
            (_PAPER, [held(run).paper_bytes for run in runs]),
            ((_LEDGER[0], "by the engine’s ledger"), [held(run).deepspeed_bytes for run in runs]),
        )
        if any(value is not None for value in values)
    ]
    owners = [owner for owner in OWNER_ROLES if any(_owned(held(run), owner) is not None for run in runs)]
    drawn = {line.role for line in lines}
    legend = [*dict.fromkeys(OWNER_ROLES[owner] for owner in owners)]
    legend += [line for line in (_PAPER, _LEDGER) if line[0] in drawn]
    rows = [
        TableRow(
            f"{owner.value}_bytes", owner.value, tuple(_owned(held(run), owner) for run in runs), format_bytes,
            OWNER_ROLES[owner][0],
        )
        for owner in owners
    ]  # fmt: skip
    rows += [
        row("owners_bytes", "all owners", runs, lambda run: held(run).owners_bytes, format_bytes, True),
        row(key, "gauge of the timed window", runs, gauge, format_bytes, True),
        row("paper_bytes", "in theory", runs, lambda run: held(run).paper_bytes, format_bytes),
        row("deepspeed_bytes", "the engine’s ledger", runs, lambda run: held(run).deepspeed_bytes, format_bytes),
    ]
    chart = column_chart(
        columns, lines, id=id, caption=caption, label=label, legend=legend, suffix="GiB", height=300, reach=reach
    )
    return Figure(chart if lines or any(column.segments for column in columns) else None, tuple(rows))


def _memory_column(run: ComparedRun, held: HeldMemory, gauge: int | None) -> Column:
    """The owners, or the gauge where they are unknown."""
    total = held.owners_bytes if held.owners_bytes is not None else gauge
    text = shown(total, lambda size: UNKNOWN if size is None else f"{size / GIB:.2f}")
    if not held.owners:
        if gauge is None:
            return Column(run.label, (), text)
        hover = tell("{}: {}", Named(run.label), shown(gauge, format_bytes))
        return Column(run.label, (Segment("unknown", gauge / GIB, hover),), text)
    order = list(OWNER_ROLES)
    segments = (
        Segment(
            OWNER_ROLES[one.owner][0],
            one.bytes / GIB,
            tell(f"{{}}: {one.owner.value} {{}}", Named(run.label), shown(one.bytes, format_bytes)),
            shown(one.bytes, lambda size: f"{size / GIB:.1f}"),
        )
        for one in sorted(held.owners, key=lambda one: order.index(one.owner))
    )
    return Column(run.label, tuple(segments), text)


def _told(held: HeldMemory) -> list[float]:
    return [value for value in (held.paper_bytes, held.deepspeed_bytes) if value is not None]


def _owned(held: HeldMemory, owner: Owner) -> int | None:
    """Zero for an owner that holds nothing, ``None`` where owners are unknown."""
    if not held.owners:
        return None
    return next((one.bytes for one in held.owners if one.owner is owner), 0)
