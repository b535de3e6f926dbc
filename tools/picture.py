"""Draws the pictures of the README.

``python tools/picture.py traces/stage3/analysis/report.html docs``; of a page of ``zerotrace compare --html``,
``python tools/picture.py ladder.html docs --memory``.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

WIDTH = 1120


def main() -> None:
    """Writes ``report-light.png`` and ``report-dark.png``: the page down to the end of its timeline.

    Of a comparison, ``ladder-light.png`` and ``ladder-dark.png``: its memory by owner, with the lines of theory.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--memory", action="store_true", help="the memory figure of a comparison")
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": WIDTH, "height": 1400}, color_scheme=scheme, device_scale_factor=1.5
            )
            page.goto(options.page.resolve().as_uri())
            clip = memory(page) if options.memory else down_to_timeline(page)
            name = f"{'ladder' if options.memory else 'report'}-{scheme}.png"
            page.screenshot(path=options.folder / name, clip=clip, full_page=True)
        browser.close()


def down_to_timeline(page: Page) -> dict[str, float]:
    """The place of a report down to the end of its timeline, once that is drawn."""
    page.wait_for_selector("#timeline-plot .plot-container")
    page.wait_for_timeout(1500)
    end = page.locator("#timeline-box").bounding_box()
    assert end is not None
    return {"x": 0, "y": 0, "width": WIDTH, "height": end["y"] + end["height"]}


def memory(page: Page) -> dict[str, float]:
    """The place of a comparison's memory by owner, without the tables below."""
    for chart in ("resident-columns", "peak-columns"):
        page.locator(f"#{chart}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{chart}.js-plotly-plot .main-svg", state="attached")
    page.evaluate("scrollTo({top: 0, behavior: 'instant'})")
    page.wait_for_timeout(500)
    start, end = page.locator("#memory").bounding_box(), page.locator("#memory .side-by-side").bounding_box()
    assert start is not None
    assert end is not None
    return {"x": 0, "y": start["y"] + 16, "width": WIDTH, "height": end["y"] + end["height"] - start["y"]}


if __name__ == "__main__":
    main()
