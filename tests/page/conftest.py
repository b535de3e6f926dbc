"""A real headless Chromium, one for the session, and pages in it that report what they did wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.page.runs import Run
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.report.build import render

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
TRACES = Path(__file__).resolve().parents[2] / "traces"
LOCAL_SCHEMES = ("file:", "data:", "blob:", "about:")

OpenReport = Callable[..., Page]


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        pytest.fail(f"no Chromium on PATH (looked for {', '.join(BROWSERS)}): apt-get install chromium", pytrace=False)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def ladder(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Copies of the captures that ship, analysed; ``again`` is stage 3 once more, with steps 20 ms longer."""
    base = tmp_path_factory.mktemp("ladder") / "traces"
    for name in ("single", "stage0", "stage1", "stage2", "stage3", "zero1", "fsdp2", "again"):
        source = TRACES / ("stage3" if name == "again" else name)
        shutil.copytree(source, base / name, ignore=shutil.ignore_patterns("analysis", "light"))
        if name == "again":
            _repeat(base / name / "manifest.json")
        analyze([base / name], options=AnalyzeOptions(hta=False))
    return {path.name: path for path in base.iterdir()}


def _repeat(path: Path) -> None:
    """Makes another run of the same setup out of a capture."""
    manifest = json.loads(path.read_text(encoding="utf-8"))
    manifest["created"] = "2026-12-01T00:00:00+00:00"
    for window in (window for rank in manifest["ranks"] for window in rank["windows"] if window["kind"] == "timed"):
        window["step_ns"] = [step + 20_000_000 for step in window["step_ns"]]
    path.write_text(json.dumps(manifest), encoding="utf-8")


@pytest.fixture
def open_report(browser: Browser, tmp_path: Path) -> Iterator[OpenReport]:
    """Opens the report of a run from disk, in a window too low for a figure: plotly starts when one scrolls to it.

    When the test ends: nothing on the console, no request, no script of a name.
    """
    contexts: list[BrowserContext] = []
    pages: list[Page] = []
    complaints: list[str] = []
    requests: list[str] = []

    def open_(run: Run | str, *, width: int = 1280, height: int = 200, url_hash: str = "", **options: Any) -> Page:
        html = run if isinstance(run, str) else render(run.analysis, run.events)
        path = tmp_path / f"report{len(contexts)}.html"
        path.write_text(html, encoding="utf-8")
        context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True, **options)
        contexts.append(context)
        page = context.new_page()
        pages.append(page)
        page.on("console", lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: requests.append(request.url))
        page.goto(path.as_uri() + url_hash)
        page.evaluate("zerotrace.ready")
        return page

    yield open_
    hacked = [page.evaluate("window.hacked") for page in pages]
    for context in contexts:
        context.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(LOCAL_SCHEMES)] == []
    assert not any(hacked)


@pytest.fixture
def open_timeline(open_report: OpenReport) -> OpenReport:
    """Opens a report and waits until its timeline is drawn."""

    def open_(run: Run | str, **options: Any) -> Page:
        page = open_report(run, height=900, **options)
        page.locator("#timeline").scroll_into_view_if_needed()
        page.locator("#timeline-box").scroll_into_view_if_needed()
        page.evaluate("zerotrace.drawn()")
        page.wait_for_selector("#timeline-plot[data-mode]", state="attached")
        return page

    return open_
