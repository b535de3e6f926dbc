"""Puts the page together: analysis and events in, one HTML text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict

from zerotrace.analysis.diagnostics import group_diagnostics
from zerotrace.analysis.ranks import shown_ranks
from zerotrace.model import STEP_ALL, Analysis, Level
from zerotrace.report import embed, figures
from zerotrace.report.bands import BAND_KINDS
from zerotrace.report.charts import Chart, with_figures
from zerotrace.report.collectives import collectives_section
from zerotrace.report.findings import finding_entries
from zerotrace.report.focus import focused
from zerotrace.report.gathers import gathers_section
from zerotrace.report.late import LATE_COLUMNS
from zerotrace.report.lateness import lateness_part
from zerotrace.report.meetings import MEETING_COLUMNS
from zerotrace.report.memory import memory_section
from zerotrace.report.pages import plain, render_page
from zerotrace.report.payload import TimelinePayload, encode_timeline
from zerotrace.report.ranks import QUERY, RanksSection, ranks_section
from zerotrace.report.rows import CATEGORIES
from zerotrace.report.trust_words import trust_rows
from zerotrace.report.wire import wire_section
from zerotrace.schema import COLLECTIVES, GATHERS
from zerotrace.store import to_json

#: Of many ranks the page holds ``analysis.json`` compressed, if it then is no larger than this.
MAX_COPY_BYTES = 2_000_000

#: No ``analysis.json``, indented as it is stored, becomes so much smaller by compression and base64.
_MOST_PACKED = 16

#: The tables that the page is made from, beside the events.
TABLES = ((COLLECTIVES, MEETING_COLUMNS), (GATHERS, LATE_COLUMNS))

# One module scope: each file uses what stands above it.
_SCRIPTS = (
    "block.js",
    "data.js",
    "intervals.js",
    "lanes.js",
    "bands.js",
    "meetings.js",
    "view.js",
    "plot.js",
    "picture.js",
    "drawing.js",
    "charts.js",
    "tip.js",
    "marks.js",
    "selection.js",
    "late.js",
    "controls.js",
    "timeline.js",
    "tables.js",
    "shell.js",
    "rank_map.js",
    "page.js",
)


def render(
    analysis: Analysis, events: Iterable[tuple[int, pa.Table]], tables: Mapping[str, pa.Table] | None = None
) -> str:
    """The report as one self-contained HTML page.

    Args:
        analysis: every number of the page.
        events: (rank, table in the schema ``EVENTS``), each rank once; read one at a time.
        tables: those of :data:`TABLES` that the run has, by name. Without them collectives are not joined across
            ranks, and no late gather is found.

    Returns:
        The text of the page: about 2.3 MB, and some 4 bytes for each interval of the timeline. Of many ranks (where the
        analysis has an overview of them) those that it names have lanes and rows, and the others' events are not read
        if they come from :func:`zerotrace.store.read_events` with these ranks.
    """
    shown, ranks = focused(analysis), ranks_section(analysis)
    payload = encode_timeline(shown, _of_shown(analysis, events), tables)
    steps = figures.step_figure(shown)
    whole_trace = {window.step for window in analysis.windows} == {STEP_ALL}
    collectives = collectives_section(analysis.collectives, whole_trace, many_ranks=ranks is not None)
    wire, memory = wire_section(analysis.wire), memory_section(analysis.memory)
    drawn = [
        collectives and collectives.scatter,
        collectives and collectives.heat,
        wire and wire.chart,
        memory and memory.chart,
        memory and memory.timeline,
    ]
    gathers = gathers_section(analysis, payload, shown.gathers.ranks if shown.gathers else ())
    drawn.extend([gathers.modules, gathers.slack] if gathers else [])
    charts = [chart for chart in drawn if chart]
    return render_page(
        "page.html.j2",
        _SCRIPTS,
        version=analysis.zerotrace_version,
        page_data=_page_data(analysis, payload, steps, charts, ranks),
        analysis=analysis,
        shown=shown,
        ranks=ranks,
        ranks_query=QUERY,
        manifest=analysis.manifest,
        timeline_data=embed.gzip_base64(payload.data),
        analysis_copy=_copy(analysis),
        steps=steps,
        collectives=collectives,
        lateness=lateness_part(analysis.stragglers, many_ranks=ranks is not None),
        gathers=gathers,
        wire=wire,
        memory=memory,
        payload=payload,
        findings=finding_entries(analysis, payload),
        trust_rows=trust_rows(analysis.trust) if analysis.trust else (),
        weaknesses=group_diagnostics(analysis.diagnostics, Level.ERROR, Level.WARNING),
        remarks=group_diagnostics(analysis.diagnostics, Level.INFO),
    )


def _of_shown(analysis: Analysis, events: Iterable[tuple[int, pa.Table]]) -> Iterator[tuple[int, pa.Table]]:
    ranks = shown_ranks(analysis)
    return ((rank, table) for rank, table in events if ranks is None or rank in ranks)


class _AnalysisCopy(Struct, frozen=True):
    """What the page can be asked for as ``analysis.json``."""

    text: str | None
    """``None`` where it is too large; the file then lies beside the page alone."""
    packed: bool
    """Whether it is base64 of gzip."""


def _copy(analysis: Analysis) -> _AnalysisCopy:
    if analysis.rank_overview is None:
        return _AnalysisCopy(embed.script_json(plain(analysis)), packed=False)
    if len(to_json(analysis)) > _MOST_PACKED * MAX_COPY_BYTES:
        return _AnalysisCopy(None, packed=True)  # making it ready for the page would take longer than all else
    packed = embed.gzip_base64(embed.script_json(plain(analysis)).encode())
    return _AnalysisCopy(packed if len(packed) <= MAX_COPY_BYTES else None, packed=True)


def _header(record: Any) -> dict[str, Any]:
    return {name: plain(value) for name, value in asdict(record).items() if name != "data"}


def _page_data(
    analysis: Analysis,
    payload: TimelinePayload,
    steps: figures.StepFigure,
    charts: Iterable[Chart],
    ranks: RanksSection | None,
) -> dict[str, Any]:
    return {
        "run": embed.printable(analysis.run_name),
        "mode": analysis.mode.value,
        "categories": CATEGORIES,
        "bandKinds": BAND_KINDS,
        "timeline": _header(payload),
        **({"rankMap": _header(ranks.map)} if ranks else {}),
        "stepFigure": with_figures(steps.figure),
        "charts": {chart.id: with_figures(chart.figure) for chart in charts},
    }
