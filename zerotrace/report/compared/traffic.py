"""What each run sends, how much of it compute hides, and the tokens that it trains on."""

from __future__ import annotations

from zerotrace.model import CollectiveKind, ComparedRun, Comparison
from zerotrace.report.columns import Column, Segment, TheoryLine, column_chart
from zerotrace.report.compared.rows import Figure, TableRow, row, two_digits
from zerotrace.report.summary import UNKNOWN, format_percent
from zerotrace.report.words import Named, shown, tell
from zerotrace.units import format_count, format_traffic

_GB = 10**9
_PAPER = ("paper", "in theory")

#: Kinds of collectives that have a colour; the others share one.
_KINDS: dict[CollectiveKind, str] = {
    CollectiveKind.ALL_REDUCE: "exposed",
    CollectiveKind.REDUCE_SCATTER: "waiting",
    CollectiveKind.ALL_GATHER: "compute",
    CollectiveKind.REDUCE: "overlapped",
    CollectiveKind.BROADCAST: "copy",
}


def wire_figure(comparison: Comparison) -> Figure:
    """Bytes sent a rank and step by kind of collective, with theory."""
    runs = comparison.runs
    totals = {kind: sum(_sent(run, kind) or 0.0 for run in runs) for kind in CollectiveKind}
    used = sorted((kind for kind, total in totals.items() if total), key=lambda kind: -totals[kind])
    columns = [
        Column(
            run.label,
            tuple(
                Segment(
                    _KINDS.get(kind, "idle"),
                    sent / _GB,
                    tell(f"{{}}: {kind.value} {{}}", Named(run.label), shown(sent, format_traffic)),
                    shown(sent, lambda size: f"{size / _GB:.2f}"),
                )
                for kind in used
                if (sent := _sent(run, kind))
            ),
            UNKNOWN if run.sent is None else shown(run.sent.sent_bytes, lambda size: f"{size / _GB:.2f}"),
        )
        for run in runs
    ]  # fmt: skip
    theory = [run.sent.theory_bytes if run.sent else None for run in runs]
    line = TheoryLine(
        _PAPER[0],
        tuple(None if value is None else value / _GB for value in theory),
        tuple(
            tell("{}: {} in theory", Named(run.label), shown(value, format_traffic))
            for run, value in zip(runs, theory, strict=True)
        ),
    )
    rows = [
        TableRow(f"{kind.value}_sent_bytes", kind.value, tuple(_sent(run, kind) for run in runs), format_traffic,
                 _KINDS.get(kind, "idle"))
        for kind in used
    ]  # fmt: skip
    rows += [
        row("sent_bytes", "sent", runs, lambda r: r.sent.sent_bytes if r.sent else None, format_traffic, True),
        row("theory_bytes", "in theory", runs, lambda r: r.sent.theory_bytes if r.sent else None, format_traffic, True),
        row("ratio", "wire ratio", runs, lambda run: run.sent.ratio if run.sent else None, two_digits),
        row("theory_ratio", "in theory", runs, lambda run: run.sent.theory_ratio if run.sent else None, two_digits),
    ]
    legend = [*dict.fromkeys((_KINDS.get(kind, "idle"), _kind_name(kind)) for kind in used)]
    chart = column_chart(
        columns,
        (line,),
        id="wire-columns",
        caption="Bytes that a rank sends in a step, by kind of collective, beside theory. A GB is 10⁹ bytes.",
        label="Bytes on the wire by kind; the same figures are in the table below",
        legend=(*legend, *([_PAPER] if any(value is not None for value in theory) else [])),
        suffix="GB",
    )
    return Figure(chart if used else None, tuple(rows))


def hidden_figure(comparison: Comparison) -> Figure:
    """How much of communication compute hides, and of parameter gathers."""
    runs = comparison.runs
    columns = [
        Column(
            run.label,
            ()
            if run.overlap_ratio is None
            else (
                Segment(
                    "overlapped",
                    100 * run.overlap_ratio,
                    tell("{}: {}", Named(run.label), shown(run.overlap_ratio, format_percent)),
                ),
            ),
            UNKNOWN if run.overlap_ratio is None else shown(run.overlap_ratio, lambda ratio: f"{100 * ratio:.1f}"),
        )
        for run in runs
    ]
    gathers = TheoryLine(
        "ledger",
        tuple(None if run.hidden_ratio is None else 100 * run.hidden_ratio for run in runs),
        tuple(tell("{}: {} of gather time", Named(run.label), shown(run.hidden_ratio, format_percent)) for run in runs),
    )
    has_gathers = any(run.hidden_ratio is not None for run in runs)
    chart = column_chart(
        columns,
        (gathers,) if has_gathers else (),
        id="hidden-columns",
        caption="Part of the communication that runs under compute, in the profiled step."
        + (" The line is that of gathers of parameters alone." if has_gathers else ""),
        label="Communication hidden under compute; the same figures are in the table below",
        legend=(("overlapped", "hidden"), *((("ledger", "parameter gathers"),) if has_gathers else ())),
        suffix="%",
        height=220,
    )
    rows = (
        row("overlap_ratio", "communication hidden", runs, lambda run: run.overlap_ratio, format_percent),
        row("hidden_ratio", "of parameter gathers", runs, lambda run: run.hidden_ratio, format_percent),
        row(
            "hidden_transfer_ratio", "of their transfer alone", runs, lambda r: r.hidden_transfer_ratio, format_percent
        ),
    )
    return Figure(chart if any(run.overlap_ratio is not None for run in runs) else None, rows)


def throughput_figure(comparison: Comparison) -> Figure:
    """Tokens a second over all ranks."""
    runs = comparison.runs
    columns = [
        Column(
            run.label,
            ()
            if run.tokens_per_s is None
            else (
                Segment(
                    "compute",
                    run.tokens_per_s / 1000,
                    tell("{}: {} ktok/s", Named(run.label), shown(run.tokens_per_s, _kilo)),
                ),
            ),
            shown(run.tokens_per_s, _kilo),
        )
        for run in runs
    ]
    chart = column_chart(
        columns,
        id="throughput-columns",
        caption="Thousand tokens a second over all ranks, by the unprofiled step.",
        label="Throughput; the same figures are in the table below",
        suffix="ktok/s",
        height=220,
    )
    rows = (
        row("tokens", "tokens a step", runs, lambda run: run.tokens, _whole),
        row("tokens_per_s", "ktok/s", runs, lambda run: run.tokens_per_s, _kilo, whole=True),
        row("loss_rms_ratio", "losses apart", runs, _losses_apart, format_percent),
    )
    return Figure(chart if any(run.tokens_per_s is not None for run in runs) else None, rows)


def _losses_apart(run: ComparedRun) -> float | None:
    """Root mean square, relative; on other ranks than the first run's, of the first step alone."""
    check = run.loss_check
    return None if check is None else check.first_ratio if check.rms_ratio is None else check.rms_ratio


def _sent(run: ComparedRun, kind: CollectiveKind) -> float | None:
    if run.sent is None:
        return None
    return next((traffic.sent_bytes for traffic in run.sent.kinds if traffic.kind is kind), 0.0)


def _kind_name(kind: CollectiveKind) -> str:
    return kind.value if kind in _KINDS else "other"


def _kilo(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value / 1000:.1f}"


def _whole(value: float | None) -> str:
    return UNKNOWN if value is None else format_count(int(value))
