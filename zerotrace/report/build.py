"""Puts the page together: analysis and events in, one HTML text out."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import lru_cache
from importlib.resources import files
from typing import Any

import jinja2
import pyarrow as pa
from markupsafe import Markup

from zerotrace.model import STEP_ALL, Analysis, Level
from zerotrace.report import embed, figures, method, summary
from zerotrace.report.charts import Chart
from zerotrace.report.collectives import collectives_section, kind_name
from zerotrace.report.findings import finding_entries
from zerotrace.report.gathers import gathers_section, module_name, slack_name
from zerotrace.report.lateness import lateness_part
from zerotrace.report.memory import gap_text, memory_section, signed_bytes
from zerotrace.report.payload import TimelinePayload, encode_timeline
from zerotrace.report.rows import CATEGORIES
from zerotrace.report.theme import DARK, LIGHT
from zerotrace.report.wire import confirmed_text, wire_section
from zerotrace.units import format_bytes, format_count, format_ns, format_traffic

# One module scope: each file uses what stands above it.
_SCRIPTS = (
    "data.js",
    "intervals.js",
    "lanes.js",
    "view.js",
    "plot.js",
    "picture.js",
    "drawing.js",
    "charts.js",
    "tip.js",
    "controls.js",
    "timeline.js",
    "tables.js",
    "page.js",
)

# Only what the page itself carries may load or run.
_POLICY = (
    "default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src data: blob:; "
    "base-uri 'none'; form-action 'none'"
)

_NUMBER_WITH_UNIT = re.compile(r"((?:× )?\d[\d.,–]*(?: (?:ns|µs|ms|s|%|×|[KMG]?i?B|[KMB])\b| %| ×)|× \d[\d.]*)")


def render(analysis: Analysis, events: Iterable[tuple[int, pa.Table]]) -> str:
    """The report as one self-contained HTML page.

    Args:
        analysis: every number of the page.
        events: (rank, table in the schema ``EVENTS``), each rank once; read one at a time.

    Returns:
        The text of the page: about 2.3 MB, and some 4 bytes for each interval of the timeline.
    """
    payload = encode_timeline(analysis, events)
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
    plotly, plotly_hash = embed.plotly_script()
    first_script, main_script = _asset("before_paint.js"), "\n".join(_asset(name) for name in _SCRIPTS)
    policy = _POLICY.format(scripts=" ".join((embed.csp_hash(first_script), embed.csp_hash(main_script), plotly_hash)))
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            analysis=analysis,
            manifest=analysis.manifest,
            policy=policy,
            light=LIGHT,
            dark=DARK,
            style=_asset("page.css"),
            first_script=first_script,
            main_script=main_script,
            plotly=plotly,
            timeline_data=embed.gzip_base64(payload.data),
            page_json=embed.script_json(_page_data(analysis, payload, steps, charts)),
            analysis_json=embed.script_json(plain(analysis)),
            steps=steps,
            collectives=collectives,
            lateness=lateness_part(analysis.stragglers),
            gathers=gathers,
            wire=wire,
            memory=memory,
            payload=payload,
            findings=finding_entries(analysis, payload),
            summary=summary,
            method=method,
            level=Level,
        )
    )


def plain(value: Any) -> Any:
    """A record as strict JSON has it: enums by value, what is not finite as ``None``."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float)):
        return value
    return str(value)


def _page_data(
    analysis: Analysis, payload: TimelinePayload, steps: figures.StepFigure, charts: Iterable[Chart]
) -> dict[str, Any]:
    header = {f.name: plain(getattr(payload, f.name)) for f in dataclasses.fields(payload) if f.name != "data"}
    return {
        "run": embed.printable(analysis.run_name),
        "mode": analysis.mode.value,
        "categories": CATEGORIES,
        "timeline": header,
        "stepFigure": steps.figure,
        "charts": {chart.id: chart.figure for chart in charts},
        "themes": {"light": plain(LIGHT), "dark": plain(DARK)},
    }


def _asset(name: str) -> str:
    return (files("zerotrace.report") / "assets" / name).read_text(encoding="utf-8").replace("\r\n", "\n")


@lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        ns=format_ns,
        bytes=format_bytes,
        percent=summary.format_percent,
        count=format_count,
        ms=method.milliseconds,
        printable=embed.printable,
        unbroken=_unbroken,
        foldable=_foldable,
        role=method.kernel_role,
        traffic=lambda value: method.signed(format_traffic(value)),
        figure=_figure,
        signed=_signed,
        kind_name=kind_name,
        module_name=module_name,
        slack_name=slack_name,
        confirmed=confirmed_text,
        gap_text=gap_text,
        signed_bytes=signed_bytes,
        printable_lines=lambda text: "\n".join(embed.printable(line) for line in text.split("\n")),
    )
    return environment


def _figure(value: float | None) -> str:
    """A number without a unit: ``290``, ``25.24``, ``0.0011``."""
    if value is None:
        return summary.UNKNOWN
    return f"{value:,.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def _signed(ratio: float) -> str:
    """A part of a ratio with its sign and four digits: ``−0.9992``."""
    return method.signed(f"{ratio:+.4f}") if round(ratio, 4) else "0.0000"


def _unbroken(text: str) -> Markup:
    """Text in which a number is not parted from its unit at the end of a line."""
    parts = _NUMBER_WITH_UNIT.split(embed.printable(text))
    marked = (Markup("<span class=n>{}</span>").format(part) if index % 2 else part for index, part in enumerate(parts))
    return Markup("").join(marked)


def _foldable(text: str) -> Markup:
    """The same, but a range may go on a second line after its dash where it does not fit on one."""
    return Markup("<wbr>").join(_unbroken(part) for part in re.split(r"(?<=\S–)(?=\S)", text))
