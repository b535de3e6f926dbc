"""Draws the page of a stored analysis again, from its tables and ``analysis.json`` alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from zerotrace.analysis.derived import with_derived
from zerotrace.analysis.ranks import require_ranks, shown_ranks, with_overview
from zerotrace.placing import new_file
from zerotrace.report.build import TABLES, render
from zerotrace.report.rows import EVENT_COLUMNS
from zerotrace.row_counts import count_timed, require_rows
from zerotrace.store import (
    REPORT_FILE,
    analysis_folder,
    page_bytes,
    read_analysis,
    read_events,
    read_tables,
    require_events,
)


def redraw(folder: Path, ranks: Sequence[int] = ()) -> Path:
    """Writes ``report.html`` anew; the traces are not needed. The old page stays whole until the new one is.

    Args:
        folder: a run folder or its ``analysis`` folder.
        ranks: whose lanes and rows the page has; by default those that the analysis chose, if there are many.

    Returns:
        The page.

    Raises:
        RanksError: a rank that is asked for is not in the run.
        StoreError: no analysis is there, another version wrote it, a table is missing or damaged or has
            other rows than were written, or the page cannot be written.
    """
    place = analysis_folder(folder)
    analysis = read_analysis(place)
    require_events(place, analysis)
    require_rows(place, analysis)
    require_ranks(analysis, ranks)
    if analysis.totals is None:
        # of a version that stored no figure that follows from others
        analysis = with_derived(analysis, count_timed(place))
    if ranks or analysis.rank_overview is None:
        # what an earlier version stored has no overview
        analysis = with_overview(analysis, ranks)
    shown = shown_ranks(analysis)
    events, tables = read_events(place, list(EVENT_COLUMNS), shown), read_tables(place, analysis, TABLES, shown)
    page = render(analysis, events, tables)
    with new_file(place / REPORT_FILE, replace=True) as stream:
        stream.write(page_bytes(page))
    return place / REPORT_FILE
