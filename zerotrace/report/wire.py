"""Section 6, the wire: what a step sends beside theory, with the gap by name."""

from __future__ import annotations

from msgspec import Struct

from zerotrace.model import Origin, WireCause, WireLedger, WireRole
from zerotrace.report.charts import BarRow, Chart, bar_layout, bar_traces
from zerotrace.report.words import Named, joined, shown, tell
from zerotrace.units import format_signed, format_traffic

_ROLES: dict[WireRole, tuple[str, str]] = {
    WireRole.GRADIENTS: ("exposed", "gradients"),
    WireRole.PARAMETERS: ("compute", "parameters for modules"),
    WireRole.UPDATED: ("overlapped", "updated parameters"),
    WireRole.CONTROL: ("idle", "norm, overflow"),
    WireRole.OTHER: ("copy", "other traffic"),
}

#: Causes with less of the ratio than this are in the table alone.
_MINOR = 0.005

#: Where the sizes come from, if not from the trace.
_BY_LABEL = " The trace of gloo tells no sizes: they are those of the labels, without padding."

_UNEXPLAINED = "unexplained"


class WireSection(Struct, frozen=True, kw_only=True):
    """What the section shows."""

    lead: str
    wire: WireLedger
    chart: Chart | None


def wire_section(wire: WireLedger | None) -> WireSection | None:
    """The section; ``None`` where no step was seen."""
    if wire is None:
        return None
    return WireSection(lead=_lead(wire), wire=wire, chart=_chart(wire))


def keys_text(cause: WireCause) -> str:
    """The keys or settings behind a cause: ``reduce_scatter: true (default)``."""
    return "; ".join(
        f"{key.key}{'' if key.value is None else f': {key.value}'}{' (default)' if key.is_default else ''}"
        for key in cause.keys
    )


def confirmed_text(cause: WireCause) -> str:
    """Whether trace and configuration tell the same."""
    return {True: "yes", False: "no: the configuration says otherwise", None: "–"}[cause.confirmed]


def _lead(wire: WireLedger) -> str:
    if wire.ratio is None:
        return tell("No ratio to theory: {}.", Named(wire.reason)) if wire.reason else "No ratio to theory."
    # the name of a scheme is words of the JSON; a stage is a number of it
    scheme = Named(wire.scheme) if wire.scheme else tell("stage {}", joined(" or ", map(shown, wire.stages)))
    told = {Origin.MANIFEST: "", Origin.OPTION: ", as told", Origin.INFERRED: ", inferred from the traffic"}
    return tell(
        f"A rank sends {{}} a step, {{}} in theory: wire ratio {{}} against {{}} ({{}}"
        f"{told[wire.stage_origin] if wire.stage_origin else ''}; Ψ = {{}}"
        f"{told[wire.params_origin] if wire.params_origin else ''}; N = {{}})."
        f"{_BY_LABEL if wire.sizes_by_label else ''}",
        shown(wire.sent_bytes, format_traffic),
        shown(wire.theory_bytes, format_traffic),
        shown(wire.ratio, "{:.2f}".format),
        shown(wire.theory_ratio, "{:g}".format),
        scheme,
        shown(wire.num_params, "{:,}".format),
        shown(wire.group_size),
    )


def _chart(wire: WireLedger) -> Chart | None:
    if wire.ratio is None or wire.theory_ratio is None:
        return None
    rows = [_theory_row(wire, wire.theory_ratio), *_cause_rows(wire, wire.theory_ratio), _measured_row(wire)]
    used = {role for row in rows for role, _, _ in row.segments}
    legend = [role for role in _ROLES.values() if role[0] in used]
    if any(row.segments[0][0] == "waiting" for row in rows):
        legend.append(("waiting", "sent beyond theory"))
    if any(row.segments[0][0] == "host" for row in rows):
        legend.append(("host", "not sent"))
    return Chart(
        id="wire-bars",
        caption="Bytes sent a rank and step in units of 2Ψ (N−1)/N: theory, each cause of the gap, the measurement.",
        label="Bytes on the wire, theory and measurement; the same figures are in the tables below",
        legend=tuple(legend),
        figure={
            "data": bar_traces(rows),
            "layout": bar_layout(rows, suffix=" ×"),
        },
    )


def _theory(stage: int, ratio: float) -> dict[WireRole, float]:
    """The part that each purpose has in theory: a shard of the gradients is reduced, or all of them are."""
    if stage == 0:
        return {WireRole.GRADIENTS: ratio}
    return {WireRole.GRADIENTS: 1.0, WireRole.PARAMETERS if stage == 3 else WireRole.UPDATED: ratio - 1.0}


def _theory_row(wire: WireLedger, ratio: float) -> BarRow:
    segments, start = [], 0.0
    for role, length in _theory(wire.stages[-1], ratio).items():
        segments.append((_ROLES[role][0], start, length))
        start += length
    hover = tell("theory: {}", shown(wire.theory_bytes, format_traffic))
    return BarRow("theory", tuple(segments), shown(ratio, "{:.2f}".format), hover)


def _measured_row(wire: WireLedger) -> BarRow:
    assert wire.ratio is not None
    assert wire.sent_bytes is not None
    segments, start = [], 0.0
    for role, (name, _) in _ROLES.items():
        sent = sum(traffic.sent_bytes or 0.0 for traffic in wire.traffic if traffic.role is role)
        length = wire.ratio * sent / wire.sent_bytes if wire.sent_bytes else 0.0
        if length >= _MINOR:
            segments.append((name, start, length))
        start += length
    segments = segments or [("idle", 0.0, 0.0)]
    hover = tell("measured: {}", shown(wire.sent_bytes, format_traffic))
    return BarRow("measured", tuple(segments), shown(wire.ratio, "{:.2f}".format), hover)


def _cause_rows(wire: WireLedger, reached: float) -> list[BarRow]:
    rows = []
    named: list[tuple[str, float, str]] = [(cause.name, cause.ratio, cause.claim) for cause in wire.causes]
    named.append((_UNEXPLAINED, wire.unexplained_ratio or 0.0, "sent beyond theory and all causes"))
    for name, ratio, claim in named:
        if abs(ratio) >= _MINOR:
            role = "waiting" if ratio > 0 else "host"
            segment = (role, min(reached, reached + ratio), abs(ratio))
            text = shown(ratio, format_signed)
            rows.append(BarRow(name, (segment,), text, tell("{}: {}", text, Named(claim))))
        reached += ratio
    return rows
