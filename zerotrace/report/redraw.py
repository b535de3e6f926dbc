"""Draws the page of a stored analysis again, from its tables and ``analysis.json`` alone."""

from __future__ import annotations

from pathlib import Path

from zerotrace.analysis.derived import with_derived
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


def redraw(folder: Path) -> Path:
    """Writes ``report.html`` anew; the traces are not needed. The old page stays whole until the new one is.

    Args:
        folder: a run folder or its ``analysis`` folder.

    Returns:
        The page.

    Raises:
        StoreError: no analysis is there, another version wrote it, a table is missing or damaged or has
            other rows than were written, or the page cannot be written.
    """
    place = analysis_folder(folder)
    analysis = read_analysis(place)
    require_events(place, analysis)
    require_rows(place, analysis)
    if analysis.totals is None:
        # of a version that stored no figure that follows from others
        analysis = with_derived(analysis, count_timed(place))
    page = render(analysis, read_events(place, list(EVENT_COLUMNS)), read_tables(place, analysis, TABLES))
    with new_file(place / REPORT_FILE, replace=True) as stream:
        stream.write(page_bytes(page))
    return place / REPORT_FILE
