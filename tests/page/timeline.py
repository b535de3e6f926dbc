"""A timeline on a page, asked for what it shows."""

from __future__ import annotations

from typing import Any

import numpy as np
from playwright.sync_api import Page

from tests.page.runs import MS, Row, Run, make_run

ROLES = ("compute", "overlapped", "exposed", "copy")


def busy(page: Page, lane: str, start: float, end: float) -> float:
    return page.evaluate("([lane, start, end]) => zerotrace.busy(lane, start, end)", [lane, start, end])


def show(page: Page, start: float, end: float) -> dict[str, Any]:
    page.evaluate("([start, end]) => zerotrace.show(start, end)", [start, end])
    page.evaluate("zerotrace.drawn()")
    return picture(page)


def picture(page: Page) -> dict[str, Any]:
    return page.evaluate("zerotrace.picture()")


def window(page: Page) -> tuple[float, float]:
    found = page.evaluate("zerotrace.window()")
    return found["start"], found["end"]


def drawn_busy(lane: dict[str, Any], drawn: dict[str, Any], end: float) -> float:
    """Time that the picture of a lane shows as busy: shapes, clipped to the window, and shares of bins."""
    shapes = sum(min(m["to"], end) - max(m["from"], drawn["start"]) for m in lane["marks"])
    return shapes + sum(lane["share"]) * drawn["bin"]


def dense_run(num_rows: int = 6_000) -> Run:
    """More intervals than are drawn one by one, on four streams, some of them at once."""
    rng = np.random.default_rng(11)
    rows = []
    for rank in range(2):
        for category, stream, share in (
            ("compute", 7, 0.6),
            ("comm", 20, 0.25),
            ("copy", 29, 0.1),
            ("compute", 8, 0.05),
        ):
            count = int(num_rows * share)
            starts = np.cumsum(rng.integers(300, int(10 * MS / count), count))
            durations = np.minimum(rng.integers(200, int(12 * MS / count), count), np.diff(starts, append=20 * MS))
            rows += [
                Row(rank, category, int(s), int(d), f"{category}_{s % 7}", stream=stream)
                for s, d in zip(starts, durations)
            ]
    return make_run(rows, [(rank, 5, 0, 12 * MS) for rank in range(2)])
