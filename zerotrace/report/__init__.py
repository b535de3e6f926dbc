"""The report: one HTML file that opens from disk, drawn from an analysis and its events.

Python computes every number; the page's JavaScript draws and selects. :mod:`zerotrace.report.build` is the way in; it
is not imported here, because the terminal uses some of the page's words and none of its machinery.
"""
