"""How far an analysis is, on a terminal: a bar for each trace that is read, and one for all of them."""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from zerotrace.analysis.progress import Board, Meter, ReadingPhase, TraceProgress, Unwatched, Watch
from zerotrace.cli.terminal import printable
from zerotrace.ingest.files import rank_in_name
from zerotrace.units import format_traffic

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

# Traces that have a bar at once, and the widths that fill 80 columns.
_MOST_BARS = 8
_NAME_WIDTH, _BAR_WIDTH, _PART_WIDTH, _RATE_WIDTH, _EVENTS_WIDTH, _LEFT_WIDTH = 20, 16, 5, 11, 12, 10

# Sooner than this, a rate would be chance.
_SOONEST_S = 0.2

_AT_WORK = (ReadingPhase.FETCHING, ReadingPhase.READING)


@contextmanager
def watching(quiet: bool = False) -> Iterator[Watch]:
    """Somebody to watch an analysis: on stderr if that is a terminal, and nobody else.

    Args:
        quiet: whether nobody watches in any case.
    """
    if quiet or not sys.stderr.isatty():
        yield Unwatched()
        return
    from rich.console import Console

    folder = Path(tempfile.mkdtemp(prefix="zerotrace-"))
    watch = _TerminalWatch(folder, Console(stderr=True, highlight=False, markup=False))
    try:
        yield watch
    finally:
        watch.close()
        shutil.rmtree(folder, ignore_errors=True)


class _TerminalWatch:
    """Bars, which a thread draws while traces are read, and after that a line a stage, without a thread."""

    def __init__(self, folder: Path, console: Console) -> None:
        self._folder = folder
        self._console = console
        self._bars: Live | None = None
        self._line: Live | None = None

    def hand_out(self, names: Sequence[str], sizes: Sequence[int | None]) -> Sequence[Meter]:
        board = Board(self._folder / "board", len(names))
        self._bars = _bars(board, names, sizes, self._console)
        return [board.meter(number) for number in range(len(names))]

    def look(self) -> None:
        if self._bars is not None:
            self._bars.start()

    def stage(self, words: str) -> None:
        from rich.live import Live

        if self._bars is not None:
            self._bars.stop()  # its thread, too: the next processes are to be forked
            self._bars = None
        if self._line is None:
            self._line = Live(console=self._console, transient=True, auto_refresh=False)
            self._line.start()
        self._line.update(f"{words} …", refresh=True)

    def close(self) -> None:
        """Leaves the terminal as it was."""
        for shown in (self._bars, self._line):
            if shown is not None:
                shown.stop()
        self._bars = self._line = None


class Pace(Protocol):
    """Since when something goes on."""

    def seconds(self, has_begun: bool) -> float:
        """Since it began; 0 before."""


class _Pace:
    """By the clock of this machine."""

    def __init__(self) -> None:
        self._began: float | None = None

    def seconds(self, has_begun: bool) -> float:
        """Since it began; 0 before."""
        if self._began is None and has_begun:
            self._began = time.monotonic()
        return 0.0 if self._began is None else time.monotonic() - self._began


def _bars(board: Board, names: Sequence[str], sizes: Sequence[int | None], console: Console) -> Live:
    from rich.live import Live
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    pace = _Pace()
    paces: defaultdict[tuple[int, ReadingPhase], Pace] = defaultdict(_Pace)

    def draw() -> Table:
        traces = board.read()
        shown = [number for number, trace in enumerate(traces) if trace.phase in _AT_WORK][:_MOST_BARS]
        rows = [trace_row(names[number], traces[number], paces[number, traces[number].phase]) for number in shown]
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(width=_NAME_WIDTH, no_wrap=True)
        table.add_column(width=_BAR_WIDTH)
        for width in (_PART_WIDTH, _RATE_WIDTH, _EVENTS_WIDTH, _LEFT_WIDTH):
            table.add_column(width=width, no_wrap=True, justify="right")
        for row in (*rows, whole_row(traces, sizes, pace)):
            bar = ProgressBar(total=row.total, completed=row.num_bytes, pulse=row.total is None)
            table.add_row(Text(row.name), bar, *map(Text, (row.part, row.rate, row.events, row.left)))
        return table

    return Live(get_renderable=draw, console=console, transient=True, refresh_per_second=5)


class Row(Struct, frozen=True, kw_only=True):
    """What is shown of one trace, or of all of them."""

    name: str
    num_bytes: int
    total: int | None
    part: str
    rate: str
    events: str
    left: str


def trace_row(name: str, trace: TraceProgress, pace: Pace) -> Row:
    """What is shown of one trace."""
    rank = rank_in_name(Path(name))
    named = f"rank {rank}" if rank is not None else printable(name)
    if trace.phase is ReadingPhase.FETCHING:
        named = f"{named}, fetching"
    return _row(named, trace.num_bytes, trace.total_bytes, trace.num_events, pace.seconds(has_begun=True))


def whole_row(traces: Sequence[TraceProgress], sizes: Sequence[int | None], pace: Pace) -> Row:
    """What is shown of all traces: bytes that are read, not those that are fetched."""
    read = sum(trace.num_bytes for trace in traces if trace.phase in (ReadingPhase.READING, ReadingPhase.DONE))
    total = sum(size if size is not None else trace.total_bytes for size, trace in zip(sizes, traces))
    done = sum(trace.phase is ReadingPhase.DONE for trace in traces)
    has_begun = any(trace.phase is not ReadingPhase.WAITING for trace in traces)
    events = sum(trace.num_events for trace in traces)
    return _row(f"{done} of {len(traces)} read", read, total, events, pace.seconds(has_begun))


def _row(name: str, num_bytes: int, total: int, events: int, seconds: float) -> Row:
    rate = num_bytes / seconds if seconds >= _SOONEST_S else 0.0
    left = (total - num_bytes) / rate if rate and total else None
    return Row(
        name=_fitted(name),
        num_bytes=num_bytes,
        total=total or None,
        part=f"{100 * num_bytes / total:.0f} %" if total else "",
        rate=f"{format_traffic(rate)}/s" if rate else "",
        events=f"{_short(events / seconds)} ev/s" if events and rate else "",
        left=f"{_clock(left)} left" if left is not None and left >= 0 else "",
    )


def _fitted(name: str) -> str:
    from rich.cells import cell_len, set_cell_size

    if cell_len(name) > _NAME_WIDTH:
        name = set_cell_size(name, _NAME_WIDTH - 1) + "…"
    return set_cell_size(name, _NAME_WIDTH)


def _short(value: float) -> str:
    for divisor, unit in ((1e6, " M"), (1e3, " k")):
        if value >= divisor:
            return f"{value / divisor:.3g}{unit}"
    return f"{value:.0f}"


def _clock(seconds: float) -> str:
    """``0:07``, ``12:30``; above an hour ``2 h``."""
    if seconds >= 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
