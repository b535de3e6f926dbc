"""Draws the pictures of the README: ``python tools/picture.py traces/stage3/analysis/report.html docs``."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    """Writes ``report-light.png`` and ``report-dark.png``: the page down to the end of its timeline."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        for scheme in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": 1120, "height": 1400}, color_scheme=scheme, device_scale_factor=1.5
            )
            page.goto(options.report.resolve().as_uri())
            page.wait_for_selector("#timeline-plot .plot-container")
            page.wait_for_timeout(1500)
            end = page.locator("#timeline-box").bounding_box()
            assert end is not None
            clip = {"x": 0, "y": 0, "width": 1120, "height": end["y"] + end["height"]}
            page.screenshot(path=options.folder / f"report-{scheme}.png", clip=clip, full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
