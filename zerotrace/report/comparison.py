"""The page of several runs side by side: one column a run, shared axes, what differs in the setups on top."""

from __future__ import annotations

import json

from zerotrace.analysis.compare.table import stage_text, study_csv
from zerotrace.model import Comparison, Quantity, Setting
from zerotrace.report import embed
from zerotrace.report.charts import with_figures
from zerotrace.report.compared.memory import legend_of_both, memory_lead, owners_text, peak_figure, resident_figure
from zerotrace.report.compared.step import step_figure, step_lead
from zerotrace.report.compared.traffic import hidden_figure, throughput_figure, wire_figure
from zerotrace.report.compared.words import QUANTITY_NAMES, WORDS, changes_of, quantity_text
from zerotrace.report.pages import plain, render_page
from zerotrace.report.summary import format_parameters
from zerotrace.report.words import Named, counted, joined, shown, tell

# One module scope: each file uses what stands above it.
_SCRIPTS = ("block.js", "plot.js", "charts.js", "tables.js", "shell.js", "compare.js")


def render_comparison(comparison: Comparison) -> str:
    """The comparison as one self-contained HTML page.

    Args:
        comparison: every number of the page.

    Returns:
        The text of the page, about 2 MB.
    """
    figures = {
        "step": step_figure(comparison),
        "resident": resident_figure(comparison),
        "peak": peak_figure(comparison),
        "wire": wire_figure(comparison),
        "hidden": hidden_figure(comparison),
        "throughput": throughput_figure(comparison),
    }
    return render_page(
        "compare.html.j2",
        _SCRIPTS,
        version=comparison.zerotrace_version,
        page_data={"charts": {f.chart.id: with_figures(f.chart.figure) for f in figures.values() if f.chart}},
        comparison=comparison,
        comparison_json=embed.script_json(plain(comparison)),
        study_csv=embed.script_json(study_csv(comparison)),
        title=_title(comparison),
        facts=_facts(comparison),
        figures=figures,
        quantity=Quantity,
        stage_text=stage_text,
        setting_text=_setting_text,
        sections=_sections(comparison),
        step_lead=step_lead(comparison),
        memory_lead=memory_lead(comparison),
        memory_legend=legend_of_both(figures["resident"], figures["peak"]),
        changes_of=changes_of,
        owners_text=owners_text,
        quantity_names=QUANTITY_NAMES,
        quantity_text=quantity_text,
        words=WORDS,
    )


def _title(comparison: Comparison) -> str:
    """The runs by their short names; of many, how many there are."""
    labels = [run.label for run in comparison.runs]
    if len(labels) == 1:
        return labels[0]
    if len(labels) > 6:
        return tell("{} runs side by side", counted(len(labels)))
    return tell("{} and {}", joined(", ", map(Named, labels[:-1])), Named(labels[-1]))


def _facts(comparison: Comparison) -> tuple[str, ...]:
    """What all runs share."""
    runs = comparison.runs
    shared = {run.num_params for run in runs}
    facts: list[str] = [tell("{} runs", counted(len(runs))) if len(runs) > 1 else "one run"]
    if len(shared) == 1:
        facts.append(tell("Ψ {}", shown(shared.pop(), format_parameters)))
    if len({run.world_size for run in runs}) == 1:
        ranks = runs[0].world_size
        facts.append("one rank" if ranks == 1 else tell("{} ranks", shown(ranks)))
    return tuple(facts)


def _sections(comparison: Comparison) -> tuple[tuple[str, tuple[Setting, ...]], ...]:
    """What differs in the setups, by section, in the order in which sections come."""
    names = dict.fromkeys(setting.section for setting in comparison.settings)
    return tuple((name, tuple(one for one in comparison.settings if one.section == name)) for name in names)


def _setting_text(value: str | None) -> str:
    """A setting as one reads it: a text without its quotes, a dash for what is not set."""
    if value is None:
        return "–"
    read = json.loads(value)
    return read if isinstance(read, str) else value
