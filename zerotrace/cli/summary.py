"""An analysis as one screen of text."""

from __future__ import annotations

import re
from collections.abc import Callable

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from zerotrace.analysis.diagnostics import DiagnosticGroup, group_diagnostics
from zerotrace.cli.gathers import gather_lines
from zerotrace.cli.memory import memory_lines
from zerotrace.cli.terminal import printable
from zerotrace.cli.traffic import collectives_table, wire_lines
from zerotrace.model import (
    MOST_FINDINGS,
    STEP_ALL,
    Analysis,
    Bound,
    Finding,
    Level,
    Mode,
    RankSummary,
    Stragglers,
    StragglerVerdict,
    Verdict,
)
from zerotrace.report.trust_words import trust_sentence
from zerotrace.units import format_bytes, format_count, format_ns, format_ratio

_MAX_RANKS = 16

# What is to be done ends where an alternative or a reason begins, unless that is in brackets.
_CLAUSE = re.compile(r"((?:[^;,(]|\([^)]*\)|,(?! which ))*)")


def print_summary(analysis: Analysis, console: Console | None = None) -> None:
    """Prints the verdict, one line a rank, and what weakens the figures."""
    console = console or Console(highlight=False)
    console.print(Text(printable(f"{analysis.run_name}  {_described(analysis)}")))
    groups = group_diagnostics(analysis.diagnostics)
    for group in (group for group in groups if group.level is Level.ERROR):
        _print_diagnostics(console, group)
    console.print(Text(analysis.verdict.headline, style="bold"))
    console.print(_ranks_table(analysis))
    if analysis.verdict.unprofiled_step_ns is not None:
        console.print(_unprofiled(analysis))
    if analysis.verdict.baseline_name is not None:
        console.print(_against_baseline(analysis.verdict))
    for finding in analysis.findings[:MOST_FINDINGS]:
        _print_finding(console, finding)
    if (more := len(analysis.findings) - MOST_FINDINGS) > 0:
        console.print(Text(f"• {more} more finding{'' if more == 1 else 's'} in analysis.json", style="dim"))
    if analysis.collectives is not None:
        table = collectives_table(analysis.collectives, {window.step for window in analysis.windows} == {STEP_ALL})
        if table is not None:
            console.print(table)
    if analysis.wire is not None:
        for line in wire_lines(analysis.wire):
            console.print(line)
    for sentence in gather_lines(analysis):
        console.print(Text(printable(sentence)))
    if analysis.stragglers is not None:
        console.print(Text(printable(_straggler_line(analysis.stragglers))))
    if analysis.memory is not None:
        for line in memory_lines(analysis.memory):
            console.print(line)
    if analysis.overlap_tax is not None:
        console.print(Text(_first_sentences(analysis.overlap_tax.sentence, 1)))
    if analysis.trust is not None:
        console.print(Text(printable(trust_sentence(analysis.trust))))
    for group in (group for group in groups if group.level is not Level.ERROR):
        _print_diagnostics(console, group)


def _first_clause(text: str) -> str:
    """A knob without its alternatives and reasons, which the page has."""
    first = _CLAUSE.match(text)
    return first[0].rstrip() if first else text


def _first_sentences(text: str, count: int) -> str:
    """The beginning of a text; all of it is on the page and in analysis.json."""
    return ". ".join(text.split(". ")[:count]).removesuffix(".") + "."


def _straggler_line(found: Stragglers) -> str:
    """Who is late; or that nobody is, with what chance has to do with it."""
    if found.group is not None or found.is_immaterial:
        return _first_sentences(found.sentence, 3)  # how much it is, and what else it may be, belong to it
    if found.verdict is not StragglerVerdict.WITHIN_NOISE:
        return _first_sentences(found.sentence, 2)
    odds = found.sentence.rpartition("; ")[2]
    return f"{_first_sentences(found.sentence, 2).removesuffix('.')}; {odds}"


def _print_diagnostics(console: Console, group: DiagnosticGroup) -> None:
    style = {Level.ERROR: "red", Level.WARNING: "yellow", Level.INFO: "dim"}[group.level]
    place = f" ({group.place})" if group.place else ""
    console.print(Text(printable(f"{group.level.value}: {group.message}{place}"), style=style))
    if group.others:
        console.print(Text(printable(f"  {group.others}"), style=style))
    if group.hint and group.level is not Level.INFO:
        console.print(Text(printable(f"  {group.hint}"), style="dim"))


def _print_finding(console: Console, finding: Finding) -> None:
    console.print(Text(printable(f"• {finding.claim}")))
    if finding.knob:
        gain = f"{finding.gain.amount}: " if finding.gain else ""
        console.print(Text(printable(f"  → {gain}{_first_clause(finding.knob)}"), style="dim"))


def _described(analysis: Analysis) -> str:
    manifest = analysis.manifest
    num_events = sum(source.num_events for source in analysis.sources)
    num_ranks, num_steps = len(analysis.sources), len({part.step for part in analysis.partition})
    counts = ((num_events, "event"), (num_ranks, "rank"), (num_steps, "step"))
    read = ", ".join(f"{format_count(count)} {noun}{'' if count == 1 else 's'}" for count, noun in counts)
    if manifest is None:
        return read
    return f"{manifest.scheme}, {manifest.model.name}, {manifest.world_size} × {manifest.device} · {read}"


def _ranks_table(analysis: Analysis) -> Table:
    unit = "device" if analysis.mode is Mode.DEVICE else "host"
    table = Table(
        caption=f"mean step, {unit} time; wait is part of exposed, overlap of comm",
        caption_justify="left",
        box=None,
    )
    table.add_column("rank", justify="right")
    for name in ("step", "compute", "exposed", "wait", "idle", "overlap"):
        table.add_column(name, justify="right")
    ranks = analysis.ranks
    shown, which = ranks, ""
    if len(ranks) > _MAX_RANKS and analysis.rank_overview is not None:
        those = {one.rank for one in analysis.rank_overview.shown}
        shown = tuple(summary for summary in ranks if summary.rank in those)
        which = (
            f"{len(those)} of {analysis.rank_overview.num_ranks} ranks, those that matter most; the page has the rest"
        )
    several = len({(r.rank, r.device) for r in ranks}) > len({r.rank for r in ranks})
    for summary in shown:
        label = f"{summary.rank}/{summary.device}" if several else str(summary.rank)
        table.add_row(label, *_figures(summary))
    if which:
        table.caption = escape(which)
    return table


def _figures(summary: RankSummary) -> list[str]:
    def share(value: float | None) -> str:
        if value is None:
            return "–"
        return f"{format_ns(value)} ({100 * value / summary.span_ns:.0f} %)"

    def bound(value: Bound, text: Callable[[float], str]) -> str:
        low, high = text(value.low), text(value.high)
        return low if low == high else f"{low} to {high}"

    bounds = summary.bounds
    overlap = None if bounds is None else bounds.overlap_ratio
    return [
        format_ns(summary.span_ns),
        share(summary.compute_ns) if bounds is None else bound(bounds.compute_ns, format_ns),
        share(summary.exposed_ns) if bounds is None else bound(bounds.exposed_ns, format_ns),
        format_ns(summary.exposed_wait_ns),
        share(summary.idle_ns),
        format_ratio(summary.overlap_ratio) if overlap is None else bound(overlap, format_ratio),
    ]


def _against_baseline(verdict: Verdict) -> Text:
    line = (
        f"Against {verdict.baseline_name} ({format_ns(verdict.baseline_step_ns)}): study-style exposed, that is "
        f"step − baseline, {format_ns(verdict.study_exposed_ns)}"
    )
    if verdict.exposed_ns is not None:
        low, high = (format_ns(value) for value in (verdict.exposed_ns.min, verdict.exposed_ns.max))
        line += f"; exposed communication in the trace {low if low == high else f'{low} to {high}'}"
    return Text(printable(f"{line}."))


def _unprofiled(analysis: Analysis) -> Text:
    verdict = analysis.verdict
    line = f"Unprofiled step {format_ns(verdict.unprofiled_step_ns)}"
    if verdict.dilation_ratio is not None:
        words = "the profiler dilates it" if verdict.dilation_ratio >= 1 else "profiled no longer, within noise:"
        line += f"; {words} {verdict.dilation_ratio:.2f} ×"
    if verdict.peak_bytes is not None and verdict.resident_bytes is not None:
        line += f"; resident {format_bytes(verdict.resident_bytes.max)}, peak {format_bytes(verdict.peak_bytes.max)}"
    return Text(line + ".")
