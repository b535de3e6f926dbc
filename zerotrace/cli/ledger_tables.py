"""Ledgers as text."""

from __future__ import annotations

import os
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from zerotrace.cli.terminal import printable
from zerotrace.ledger import FitOption
from zerotrace.model import EngineLedger, PaperLedger, RankMemory
from zerotrace.units import format_bytes, format_traffic

Entry = tuple[PaperLedger, EngineLedger, Sequence[str]]

# A file or a pipe has no width of its own, and a table should not be folded for it, unless COLUMNS says how wide it is.
_WIDTH_WITHOUT_TERMINAL = 200


def _console() -> Console:
    console = Console(highlight=False)
    if console.is_terminal or os.environ.get("COLUMNS", "").isdigit():
        return console
    return Console(highlight=False, width=_WIDTH_WITHOUT_TERMINAL)


def _table(*names: str, left: Sequence[str] = ()) -> Table:
    """A table whose cells fold where there is no room: none is ever cut."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for name in names:
        table.add_column(name, justify="left" if name in left else "right", vertical="bottom", overflow="fold")
    return table


def print_ledgers(entries: Sequence[Entry], console: Console | None = None) -> None:
    """Prints the totals of one or several stages; of one alone also each line with formula and source."""
    console = console or _console()
    first = entries[0][1]
    console.print(Text(f"Ψ = {first.num_params:,}, N = {first.world_size}; bytes of one rank", style="bold"))
    table = _table("stage", "paper", "DeepSpeed holds", "peak of a step", "DeepSpeed's estimator")
    for paper, held, _ in entries:
        peak = max(held.peaks, key=lambda instant: instant.bytes)
        table.add_row(
            str(held.stage),
            format_bytes(paper.bytes),
            format_bytes(held.bytes),
            f"{format_bytes(peak.bytes)} ({peak.instant})",
            "has none" if held.stage < 2 else format_bytes(held.estimate_bytes),
        )
    console.print(table)
    if first.activations_bytes is None:
        console.print(Text("Peaks are those of the model states: activations are unknown.", style="dim"))
    for _, held, words in entries:
        console.print()
        console.print(Text(f"Stage {held.stage}", style="bold"))
        for sentence in words:
            console.print(Text(printable(sentence)))
    if len(entries) == 1:
        console.print()
        console.print(_lines(entries[0][1]))
        console.print(_paper_line(entries[0][0]))
    for note in dict.fromkeys(note for _, held, _ in entries for note in held.notes):
        console.print(Text(printable(f"note: {note}"), style="dim"))
    if len(entries) > 1:
        console.print(Text("--stage N shows the lines of a ledger, with formulas and sources.", style="dim"))


def _lines(held: EngineLedger) -> Table:
    """Owner and size of each line, and one below the other what it is, its formula and its source."""
    table = _table("owner", "bytes", "what, formula, source", left=("owner", "what, formula, source"))
    for column in table.columns:
        column.vertical = "top"
    instants = [("", held.lines), *((f"{peak.instant}: ", peak.lines) for peak in held.peaks)]
    for prefix, lines in instants:
        for line in lines:
            size = format_bytes(line.bytes)
            if line.offloaded_bytes:
                size = f"host {format_bytes(line.offloaded_bytes)}"
            texts = (Text(prefix + line.what), Text(line.formula), Text(line.source, style="dim"))
            table.add_row(line.owner.value, size, Text("\n").join(texts))
        table.add_section()
    return table


def _paper_line(paper: PaperLedger) -> Text:
    theory = ", ".join(f"{line.owner.value} {format_bytes(line.bytes)}" for line in paper.lines)
    return Text(f"paper: {theory}", style="dim")


def print_memory(memory: RankMemory, console: Console | None = None) -> None:
    """Prints a measured device by owner, between steps and at the peak."""
    console = console or _console()
    table = _table("owner", "resident", "at the peak", "what", left=("owner", "what"))
    names = dict.fromkeys((entry.owner, entry.part) for entry in (*memory.resident, *memory.peak))
    resident = {(entry.owner, entry.part): entry.bytes for entry in memory.resident}
    peak = {(entry.owner, entry.part): entry.bytes for entry in memory.peak}
    for key in names:
        at_peak = format_bytes(peak.get(key, 0)) if memory.peak else "–"
        table.add_row(key[0].value, format_bytes(resident.get(key, 0)), at_peak, Text(printable(key[1])))
    table.add_row("total", format_bytes(memory.resident_bytes), format_bytes(memory.peak_bytes), "", style="bold")
    console.print(Text(f"device {memory.device}", style="bold"))
    console.print(table)
    free = format_bytes(memory.fragmentation_bytes)
    line = f"reserved {format_bytes(memory.reserved_bytes)}, of it {free} not allocated"
    if memory.peak_bytes is None:
        line += "; the snapshot has no history, so that its peak is unknown"
    elif memory.peak_phase is not None:
        line += f"; the peak is in {memory.peak_phase}"
    console.print(Text(line))


def print_fit(
    options: Sequence[FitOption], capacity: int, *, activations_known: bool, console: Console | None = None
) -> None:
    """Prints what fits a device, the least costly first, and what does not."""
    console = console or _console()
    fitting = [option for option in options if option.fits]
    if fitting:
        best = fitting[0]
        with_keys = " with " + ", ".join(_setting(key, value) for key, value in best.changes.items())
        console.print(
            Text(
                f"Stage {best.stage}{with_keys if best.changes else ''} fits {format_bytes(capacity)}: it needs "
                f"{format_bytes(best.needed_bytes)} and sends {format_traffic(best.sent_bytes)} a rank and step.",
                style="bold",
            )
        )
    else:
        least = min(options, key=lambda option: option.needed_bytes)
        console.print(
            Text(
                f"Nothing here fits {format_bytes(capacity)}: stage {least.stage} with all knobs needs "
                f"{format_bytes(least.needed_bytes)}.",
                style="bold",
            )
        )
    if not activations_known:
        console.print(Text("Activations are unknown, and have to fit into what is left: give --activations."))
    above = ("", "", "", "", "", "wire", "sent", "over")
    names = ("fits", "stage", "needed", "resident", "peak", "ratio", "a step", "the host")
    lines = _aligned([above, names, *map(_fit_cells, options)])
    console.print(Text("\n".join(lines[:2]), style="bold"), soft_wrap=True)
    # There is no room for the keys beside the figures: they stand below.
    for row, option in zip(lines[2:], options):
        keys = " ".join(_setting(key, value) for key, value in option.changes.items())
        console.print(Text(row), soft_wrap=True)
        console.print(Padding(Text(keys or "as given", style="dim"), (0, 0, 0, 5), expand=False))


def _fit_cells(option: FitOption) -> tuple[str, ...]:
    return (
        "yes" if option.fits else "no",
        str(option.stage),
        *map(format_bytes, (option.needed_bytes, option.resident_bytes, option.peak_bytes)),
        f"{option.wire_ratio:g}",
        format_traffic(option.sent_bytes),
        format_bytes(option.host_bytes) if option.host_bytes else "–",
    )


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return [
        "  ".join([first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(rest, widths[1:]))]).rstrip()
        for first, *rest in rows
    ]


def _setting(key: str, value: object) -> str:
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{key.removeprefix('zero_optimization.')}={text}"
