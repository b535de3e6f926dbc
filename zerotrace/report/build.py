"""Puts the page together: analysis and events in, one HTML text out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from zerotrace.analysis.diagnostics import group_diagnostics
from zerotrace.model import STEP_ALL, Analysis, Level
from zerotrace.report import embed, figures
from zerotrace.report.bands import BAND_KINDS
from zerotrace.report.charts import Chart, with_figures
from zerotrace.report.collectives import collectives_section
from zerotrace.report.findings import finding_entries
from zerotrace.report.gathers import gathers_section
from zerotrace.report.late import LATE_COLUMNS
from zerotrace.report.lateness import lateness_part
from zerotrace.report.meetings import MEETING_COLUMNS
from zerotrace.report.memory import memory_section
from zerotrace.report.pages import plain, render_page
from zerotrace.report.payload import TimelinePayload, encode_timeline
from zerotrace.report.rows import CATEGORIES
from zerotrace.report.trust_words import trust_rows
from zerotrace.report.wire import wire_section
from zerotrace.schema import COLLECTIVES, GATHERS

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
        The text of the page: about 2.3 MB, and some 4 bytes for each interval of the timeline.
    """
    payload = encode_timeline(analysis, events, tables)
    steps = figures.step_figure(analysis)
    whole_trace = {window.step for window in analysis.windows} == {STEP_ALL}
    collectives, wire = collectives_section(analysis.collectives, whole_trace), wire_section(analysis.wire)
    memory = memory_section(analysis.memory)
    shown = [
        collectives and collectives.scatter,
        collectives and collectives.heat,
        wire and wire.chart,
        memory and memory.chart,
        memory and memory.timeline,
    ]
    gathers = gathers_section(analysis, payload)
    shown.extend([gathers.modules, gathers.slack] if gathers else [])
    charts = [chart for chart in shown if chart]
    return render_page(
        "page.html.j2",
        _SCRIPTS,
        version=analysis.zerotrace_version,
        page_data=_page_data(analysis, payload, steps, charts),
        analysis=analysis,
        manifest=analysis.manifest,
        timeline_data=embed.gzip_base64(payload.data),
        analysis_json=embed.script_json(plain(analysis)),
        steps=steps,
        collectives=collectives,
        lateness=lateness_part(analysis.stragglers),
        gathers=gathers,
        wire=wire,
        memory=memory,
        payload=payload,
        findings=finding_entries(analysis, payload),
        trust_rows=trust_rows(analysis.trust) if analysis.trust else (),
        weaknesses=group_diagnostics(analysis.diagnostics, Level.ERROR, Level.WARNING),
        remarks=group_diagnostics(analysis.diagnostics, Level.INFO),
    )


def _page_data(
    analysis: Analysis, payload: TimelinePayload, steps: figures.StepFigure, charts: Iterable[Chart]
) -> dict[str, Any]:
    header = {f.name: plain(getattr(payload, f.name)) for f in dataclasses.fields(payload) if f.name != "data"}
    return {
        "run": embed.printable(analysis.run_name),
        "mode": analysis.mode.value,
        "categories": CATEGORIES,
        "bandKinds": BAND_KINDS,
        "timeline": header,
        "stepFigure": with_figures(steps.figure),
        "charts": {chart.id: with_figures(chart.figure) for chart in charts},
    }
