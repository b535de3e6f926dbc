"""The unprofiled step of each run by cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from zerotrace.model import Cause, ComparedRun, Comparison, StepCauses
from zerotrace.report.columns import Column, Segment, Strip, column_chart
from zerotrace.report.compared.rows import Figure, TableRow, listed, row, two_digits
from zerotrace.report.method import milliseconds
from zerotrace.report.summary import UNKNOWN
from zerotrace.report.words import Named, joined, shown, tell
from zerotrace.units import NS_PER_MS, format_ns

#: Roles and names of the parts of a step.
_CAUSES: dict[Cause, tuple[str, str]] = {
    Cause.COMPUTE: ("compute", "compute"),
    Cause.EXPOSED_TRANSFER: ("exposed", "exposed transfer"),
    Cause.EXPOSED_WAIT: ("waiting", "waiting for a rank"),
    Cause.EXPOSED: ("exposed", "exposed communication"),
    Cause.COPY: ("copy", "copy only"),
    Cause.HOST_BOUND: ("host", "idle: host not there yet"),
    Cause.STALLED: ("idle", "idle: stalled"),
    Cause.TAIL: ("idle", "idle: tail"),
    Cause.UNLINKED: ("idle", "idle: unlinked"),
    Cause.IDLE: ("idle", "idle"),
}


def step_figure(comparison: Comparison) -> Figure:
    """The unprofiled step by cause."""
    runs = comparison.runs
    used = [cause for cause in Cause if any(_part(run, cause) is not None for run in runs)]
    chart = column_chart(
        [_step_column(run) for run in runs],
        id="step-columns",
        caption=_step_caption(runs),
        label="Step time by cause; the same figures are in the table below",
        legend=_legend(runs, used),
        suffix="ms",
        height=320,
    )
    return Figure(chart if any(run.step_ns is not None for run in runs) else None, _rows(runs, used))


def _rows(runs: Sequence[ComparedRun], used: Sequence[Cause]) -> tuple[TableRow, ...]:
    """The parts as drawn, and below the profiled ones that they come from, with what they are scaled by."""
    drawn = [
        TableRow(f"{cause.value}_step_ns", name, _values(runs, cause, "step_ns"), milliseconds, role)
        for cause in used
        for role, name in [_CAUSES[cause]]
    ]
    profiled = [
        TableRow(
            f"{cause.value}_profiled_ns", f"profiled: {_CAUSES[cause][1]}", _values(runs, cause, "profiled_ns"),
            milliseconds,
        )
        for cause in used
    ]  # fmt: skip
    return (
        *drawn,
        row("step_ns", "step, unprofiled, ms", runs, lambda run: run.step_ns, milliseconds, whole=True),
        row("step_error_ns", "its standard error", runs, lambda run: run.step_error_ns, milliseconds),
        *profiled,
        row("span_ns", "step, profiled, ms", runs, _of_causes(lambda causes: causes.span_ns), milliseconds, whole=True),
        row(
            "overlapped_ns",
            "of its compute, hiding communication",
            runs,
            _of_causes(lambda causes: causes.overlapped_ns),
            milliseconds,
        ),
        row("device_scale", "scale of device work", runs, _of_causes(lambda causes: causes.device_scale), two_digits),
        row("host_scale", "scale of waiting, idle", runs, _of_causes(lambda causes: causes.host_scale), two_digits),
        row("dilation_ratio", "dilation by the profiler", runs, lambda run: run.dilation_ratio, two_digits),
    )


def _of_causes(figure: Callable[[StepCauses], float]) -> Callable[[ComparedRun], float | None]:
    return lambda run: None if run.causes is None else figure(run.causes)


def step_lead(comparison: Comparison) -> str:
    """Which runs have no parts, and why."""
    missing: dict[str, list[str]] = {}
    for run in comparison.runs:
        if run.no_causes is not None:
            missing.setdefault(run.no_causes, []).append(run.label)
    told = [tell(f"{{}}: {reason}", listed([Named(label) for label in labels])) for reason, labels in missing.items()]
    return tell("Without parts: {}.", joined("; ", told)) if told else ""


def _step_column(run: ComparedRun) -> Column:
    label, text = Named(run.label), UNKNOWN if run.step_ns is None else shown(run.step_ns, _in_ms)
    if run.step_ns is None:
        return Column(run.label, (), text)
    if run.causes is None:
        whole = tell(f"{{}}: {{}}, {run.no_causes}", label, shown(run.step_ns, format_ns))
        return Column(run.label, (Segment("unknown", run.step_ns / NS_PER_MS, whole),), text)
    return Column(
        run.label,
        tuple(
            Segment(
                _CAUSES[part.cause][0],
                part.step_ns / NS_PER_MS,
                tell(f"{{}}: {_CAUSES[part.cause][1]} {{}}", label, shown(part.step_ns, format_ns)),
                shown(part.step_ns, lambda time: f"{time / NS_PER_MS:.0f}"),
            )
            for part in run.causes.parts
        ),
        text,
        _hiding(run.label, run.causes),
    )


def _hiding(label: str, causes: StepCauses) -> Strip:
    """Of compute, what hides communication."""
    compute = sum(part.step_ns for part in causes.parts if part.cause is Cause.COMPUTE)
    hiding = causes.overlapped_step_ns
    hover = tell("{}: compute that hides communication {}", Named(label), shown(hiding, format_ns))
    return Strip("overlapped", (compute - hiding) / NS_PER_MS, hiding / NS_PER_MS, hover)


def _step_caption(runs: Sequence[ComparedRun]) -> str:
    caption = ["The unprofiled step of each run by cause: its parts are those of the profiled step, scaled to it."]
    scaled = [run for run in runs if run.causes is not None]
    if not scaled:
        return "The unprofiled step of each run."
    scales = [run.causes.host_scale for run in scaled if run.causes and run.causes.device_scale == 1]
    if scales:
        low, high = shown(min(scales), two_digits), shown(max(scales), two_digits)
        caption.append(
            tell(
                "Compute, transfer and copies keep their length; waiting and idle time are scaled by {}, since a "
                "profiler slows the host and not the device.",
                low if low == high else tell("{} to {}", low, high),
            )
        )
    alike = [run.label for run in scaled if run.causes and run.causes.device_scale != 1]
    if alike:
        caption.append(tell("All parts of {} are scaled alike.", listed([Named(label) for label in alike])))
    return joined(" ", caption)


def _legend(runs: Sequence[ComparedRun], used: Sequence[Cause]) -> tuple[tuple[str, str], ...]:
    """The colours in the order in which they stand in a column; the lesser reasons of idle time share one."""
    named = dict.fromkeys(_CAUSES[cause] for cause in used)
    lesser = [cause for cause in used if _CAUSES[cause][0] == "idle"]
    if lesser and lesser != [Cause.IDLE]:
        named = dict.fromkeys((role, "idle: other" if role == "idle" else name) for role, name in named)
    entries = list(named)
    if any(run.causes and run.causes.overlapped_ns for run in runs):
        entries.insert(1, ("overlapped", "of it, hiding communication"))
    return tuple(entries)


def _part(run: ComparedRun, cause: Cause) -> float | None:
    if run.causes is None:
        return None
    return next((part.step_ns for part in run.causes.parts if part.cause is cause), None)


def _values(runs: Iterable[ComparedRun], cause: Cause, name: str) -> tuple[float | None, ...]:
    """A part of each run: zero where a run has none, ``None`` where its parts are unknown."""
    return tuple(
        None
        if run.causes is None
        else next((float(getattr(part, name)) for part in run.causes.parts if part.cause is cause), 0.0)
        for run in runs
    )


def _in_ms(value_ns: float) -> str:
    value = value_ns / NS_PER_MS
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 0.1 else f"{value:.3f}"
