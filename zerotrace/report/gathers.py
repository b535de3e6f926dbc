"""Section 5: stage 3's gathers by module, how long before their need they end, and which hold compute back."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from zerotrace.analysis.gathers.figures import MAX_HELD
from zerotrace.model import Analysis, GatherGroup, GatherReport, HeldGather, SlackBin
from zerotrace.report.charts import BarRow, Chart, bar_layout, bar_traces, chart_text
from zerotrace.report.gather_words import gather_lead, gather_remarks, module_name
from zerotrace.report.payload import TimelinePayload
from zerotrace.report.summary import format_percent
from zerotrace.report.words import Named, counted, joined, shown, tell
from zerotrace.units import NS_PER_MS, format_count, format_ns

#: Bars in the picture of modules; the table has all of them.
MAX_MODULES = 24

#: Rows in a table.
MAX_ROWS = 1000


_LEGEND = (
    ("overlapped", "hidden under compute"), ("exposed", "exposed"), ("waiting", "exposed, waiting for a rank"),
)  # fmt: skip


class HeldRow(Struct, frozen=True, kw_only=True):
    """A gather that holds compute back, with its place in the timeline."""

    kind: str
    held: HeldGather
    href: str | None


class GroupRow(Struct, frozen=True, kw_only=True):
    """Gathers of one kind or phase."""

    what: str
    name: str
    group: GatherGroup


class GathersSection(Struct, frozen=True, kw_only=True):
    """What the section shows."""

    report: GatherReport
    lead: str
    groups: tuple[GroupRow, ...]
    modules: Chart | None
    module_rows: tuple[GatherGroup, ...]
    slack: Chart | None
    held: tuple[HeldRow, ...]
    held_note: str | None


def gathers_section(
    analysis: Analysis, payload: TimelinePayload, ranks: Sequence[GatherGroup]
) -> GathersSection | None:
    """The section; ``None`` where nothing is gathered.

    Args:
        analysis: every number.
        payload: knows where the timeline starts to count.
        ranks: of the gathers by rank those that have a row.
    """
    report = analysis.gathers
    if report is None:
        return None
    held = [("prefetch", entry) for entry in report.late] + [("demand", entry) for entry in report.missed]
    held.sort(key=lambda entry: -entry[1].blocking_ns)
    some = MAX_HELD in (len(report.late), len(report.missed))
    return GathersSection(
        report=report,
        lead=joined(" ", (gather_lead(report), *gather_remarks(report))),
        groups=_groups(report, ranks),
        modules=_modules(report),
        module_rows=report.modules[:MAX_ROWS],
        slack=_slack(report.slack),
        held=tuple(HeldRow(kind=kind, held=entry, href=_href(entry, payload)) for kind, entry in held),
        held_note=tell("The {} of each kind that do so longest.", counted(MAX_HELD)) if some else None,
    )


def _groups(report: GatherReport, ranks: Sequence[GatherGroup]) -> tuple[GroupRow, ...]:
    rows = [GroupRow(what="all", name="all gathers", group=report.total)] if report.total else []
    rows += [GroupRow(what="kind", name=group.kind.value, group=group) for group in report.kinds if group.kind]
    rows += [GroupRow(what="phase", name=group.phase.value, group=group) for group in report.phases if group.phase]
    rows += [GroupRow(what="rank", name=f"rank {group.rank}", group=group) for group in ranks[:MAX_ROWS]]
    return tuple(rows)


def _modules(report: GatherReport) -> Chart | None:
    """Gather time of the modules with the most of it, hidden and exposed, a step and rank."""
    timed = [group for group in report.modules if group.totals.gather_ns]
    most = sorted(timed, key=lambda group: -group.totals.gather_ns)[:MAX_MODULES]
    drawn = [group for group in timed if group in most]
    if not drawn or report.means is None:
        return None
    rows = [_module_row(group) for group in drawn]
    used = {role for row in rows for role, _, _ in row.segments}
    part = ""
    if len(drawn) < len(timed):
        part = tell(" The {} of {} modules with the most gather time.", counted(len(drawn)), counted(len(timed)))
    return Chart(
        id="gather-modules",
        caption=tell(
            "Gather time by the module that first needs the parameters, a step and rank, in the order of need: "
            "what compute hides, and what not; the hidden ratio stands at the end.{}",
            part,
        ),
        label="Hidden and exposed gather time by module; the same figures are in the table below",
        legend=tuple(entry for entry in _LEGEND if entry[0] in used),
        figure={"data": bar_traces(rows), "layout": bar_layout(rows, suffix=" ms", end_px=52)},
    )


def _module_row(group: GatherGroup) -> BarRow:
    totals = group.totals
    of_step = (group.step_gather_ns or 0.0) / totals.gather_ns / NS_PER_MS
    waiting = 0
    if totals.transfer_ns is not None and totals.hidden_transfer_ns is not None:
        waiting = totals.exposed_ns - (totals.transfer_ns - totals.hidden_transfer_ns)
    lengths = {"overlapped": totals.hidden_ns, "exposed": totals.exposed_ns - waiting, "waiting": waiting}
    segments, start = [], 0.0
    for role, time in lengths.items():
        length = time * of_step
        if length:
            segments.append((role, start, length))
        start += length
    ratio, name = shown(totals.hidden_ratio, format_percent), Named(chart_text(module_name(group.module)))
    return BarRow(
        label=_short(name),
        segments=tuple(segments),
        text=ratio,
        hover=tell("<b>{}</b><br>{} of {} are hidden", name, ratio, shown(group.step_gather_ns, format_ns)),
    )


def _slack(bins: Sequence[SlackBin]) -> Chart | None:
    if not bins:
        return None
    rows = []
    for bin_ in reversed(bins):
        fetched = bin_.num_prefetch + bin_.num_demand
        segments = (
            ("compute", 0.0, float(bin_.num_prefetch)),
            ("exposed", float(bin_.num_prefetch), float(bin_.num_demand)),
            ("idle", float(fetched), float(bin_.num_unknown)),
        )
        name = slack_name(bin_)
        kinds = [(bin_.num_prefetch, "prefetches"), (bin_.num_demand, "demands"), (bin_.num_unknown, "of unknown kind")]
        told = [tell(f"{{}} {kind}", shown(count, format_count)) for count, kind in kinds if count]
        rows.append(
            BarRow(
                label=name,
                segments=tuple(segment for segment in segments if segment[2] or segment[0] == "compute"),
                text=shown(bin_.num_gathers, format_count),
                hover=tell("<b>{}</b><br>{}", name, joined(", ", told)),
            )
        )
    used = {role for row in rows for role, _, length in row.segments if length}
    legend = (("compute", "prefetches"), ("exposed", "demands"), ("idle", "of unknown kind"))
    return Chart(
        id="gather-slack",
        caption="How long before its parameters are needed a gather ends (slack = need − end): each bar counts gathers "
        "of all ranks and steps. Those near zero are just in time.",
        label="Number of gathers by slack; the same figures are in the table below",
        legend=tuple(entry for entry in legend if entry[0] in used),
        figure={"data": bar_traces(rows), "layout": bar_layout(rows, suffix="", end_px=44)},
    )


def slack_name(bin_: SlackBin) -> str:
    """``1 to 10 ms before``, ``more than 100 ms after`` the need."""
    low, high = bin_.low_ns, bin_.high_ns
    if low is None:
        return tell("more than {} after", shown(high, _round))
    if high is None:
        return tell("{} before, or more", shown(low, _round))
    near, far = sorted((low, high), key=abs)
    return tell(f"{{}} to {{}} {'before' if low >= 0 else 'after'}", shown(near, _round), shown(far, _round))


def _round(time_ns: int) -> str:
    scale, unit = (1_000_000, "ms") if abs(time_ns) >= 1_000_000 else (1_000, "µs")
    return f"{abs(time_ns) / scale:g} {unit}" if time_ns else "0"


def _short(name: str) -> str:
    """The end of a long name, which tells modules apart."""
    return name if len(name) <= 28 else f"…{name[-27:]}"


def _href(held: HeldGather, payload: TimelinePayload) -> str | None:
    """The window from the start of the gather to its end, with as much again around it."""
    base = next((group.base_ns for group in payload.groups if group.rank == held.rank), None)
    if base is None:
        return None
    margin = (held.end_ns - held.start_ns) // 2
    return f"#t={held.start_ns - base - margin},{held.end_ns - base + margin}"
