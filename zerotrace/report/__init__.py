"""The report: one HTML file that opens from disk, drawn from an analysis and its events.

Python computes every number; the page's JavaScript draws and selects.
"""

from zerotrace.report.build import render
from zerotrace.report.redraw import redraw
from zerotrace.report.rows import EVENT_COLUMNS

__all__ = ["EVENT_COLUMNS", "redraw", "render"]
