"""The page as a reader meets it: numbers, theme, keyboard, narrow windows, and names that mean harm."""

from __future__ import annotations

import csv
import io
import json
from itertools import pairwise
from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Page

from tests.page.accessibility import violations
from tests.page.conftest import OpenReport
from tests.page.runs import HostileTexts, Row, Run, host_run, hta_report, make_run, manifest, training_run
from zerotrace.model import Diagnostic, Level, Mode, Spread
from zerotrace.report.build import plain, render
from zerotrace.report.method import HtaComparison, command_text, definitions
from zerotrace.report.theme import DARK, LIGHT, Theme
from zerotrace.schema import PARTITION

pytestmark = pytest.mark.page

COLUMNS = [column.name for column in PARTITION.columns if column.name != "start_ns"]


def overflow(page: Page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def background(page: Page) -> str:
    return page.evaluate("getComputedStyle(document.body).backgroundColor")


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


def contrast(one: str, other: str) -> float:
    def luminance(colour: str) -> float:
        channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_numbers_of_the_page_are_those_of_the_analysis(open_report: OpenReport) -> None:
    run = training_run(manifest=manifest(), hta=hta_report())
    page = open_report(run)
    assert json.loads(page.text_content("#analysis-data") or "") == plain(run.analysis)
    assert page.text_content("#headline") == run.analysis.verdict.headline
    cells = page.eval_on_selector_all(
        "#partition-table tbody tr", "rows => rows.map(row => [...row.querySelectorAll('data')].map(d => d.value))"
    )
    for part, row in zip(run.analysis.partition, cells, strict=True):
        assert [int(v) if v else None for v in row[:-1]] == [getattr(part, column) for column in COLUMNS]
        assert float(row[-1]) == part.overlap_ratio
        assert int(row[3]) == sum(int(row[i]) for i in (4, 7, 8, 9))
    tile = page.eval_on_selector("[data-tile=exposed]", "tile => Number(tile.dataset.exposedNsMax)")
    assert run.analysis.verdict.exposed_ns is not None
    assert tile == run.analysis.verdict.exposed_ns.max
    kernels = page.eval_on_selector_all(
        "#kernel-table tbody tr",
        "rows => rows.map(r => [+r.dataset.key, r.querySelector('.name').textContent,"
        " +r.querySelectorAll('data')[2].value])",
    )
    assert kernels == [[k.rank, k.name, k.total_ns] for k in run.analysis.top_kernels]


def test_drawn_bars_close(open_report: OpenReport) -> None:
    run = training_run()
    page = open_report(run)
    page.locator("#step-bars").scroll_into_view_if_needed()
    page.wait_for_selector("#step-bars.js-plotly-plot")
    drawn = page.evaluate(
        "document.getElementById('step-bars').data.map(t => [t.meta.role, Array.from(t.x), Array.from(t.base ?? [])])"
    )
    by_role = {role: (x, base) for role, x, base in drawn}
    for index, part in enumerate(run.analysis.partition):
        total = sum(by_role[role][0][index] for role in ("compute", "exposed", "copy", "idle"))
        assert total == pytest.approx(part.span_ns / 1e6, abs=1e-9)
    assert page.locator("#step-bars .bars .point").count() == 5 * len(run.analysis.partition)


def test_click_on_a_bar_moves_the_timeline_to_its_step(open_timeline: OpenReport) -> None:
    run = training_run()
    page = open_timeline(run)
    page.locator("#step-bars").scroll_into_view_if_needed()
    box = page.locator("#step-bars .bars .point").nth(1).bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 8, box["y"] + 6)
    page.mouse.click(box["x"] + 8, box["y"] + 6)
    page.wait_for_function("() => document.getElementById('timeline-title').textContent === 'Timeline, step 3'")


def test_theme_follows_the_system(open_report: OpenReport) -> None:
    page = open_report(training_run(), color_scheme="dark")
    assert background(page) == rgb(DARK.background)
    page.emulate_media(color_scheme="light")
    assert background(page) == rgb(LIGHT.background)
    assert page.get_attribute("#theme-toggle", "aria-pressed") == "false"


def test_stored_theme_wins_before_the_first_paint(open_report: OpenReport) -> None:
    page = open_report(training_run(), color_scheme="light")
    page.click("#theme-toggle")
    assert background(page) == rgb(DARK.background)
    assert page.get_attribute("#theme-toggle", "aria-pressed") == "true"
    # What is painted first is the head's business: the body is not even parsed when this looks.
    page.add_init_script(
        "new MutationObserver(() => { if (document.body && !window.early)"
        " window.early = document.documentElement.dataset.theme; }).observe(document, {childList: true, subtree: true})"
    )
    page.reload()
    assert page.evaluate("window.early") == "dark"
    assert background(page) == rgb(DARK.background)
    page.click("#theme-toggle")
    page.reload()
    assert background(page) == rgb(LIGHT.background)


def test_figures_change_colour_with_the_theme(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run(), color_scheme="light")
    colour = "document.getElementById('step-bars').data[0].marker.color"
    assert page.evaluate(colour) == LIGHT.compute
    page.click("#theme-toggle")
    page.wait_for_function(f"() => {colour} === '{DARK.compute}'")


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_colours_keep_their_contrast(theme: Theme) -> None:
    for mark in (theme.compute, theme.overlapped, theme.exposed, theme.copy, theme.idle):
        assert contrast(mark, theme.background) >= 3
    for text in (theme.text, theme.muted, theme.link, theme.warning, theme.error):
        assert contrast(text, theme.background) >= 4.5
        assert contrast(text, theme.surface) >= 4.5
    assert contrast(theme.on_compute, theme.compute) >= 4.5
    assert contrast(theme.on_exposed, theme.exposed) >= 4.5
    assert contrast(theme.on_exposed, theme.overlapped) >= 4.5
    assert contrast(theme.on_waiting, theme.waiting) >= 4.5
    assert contrast(theme.on_copy, theme.copy) >= 4.5
    assert contrast(theme.on_idle, theme.idle_fill) >= 4.5


def test_hostile_texts_are_shown_and_do_nothing(open_timeline: OpenReport) -> None:
    texts = HostileTexts()
    rows = []
    for index, text in enumerate(texts.all):
        name = {"name": text, "collective": text if index % 2 else None}
        rows.append(Row(0, "comm" if index % 2 else "compute", index * 1000, 900, dtype=text, group_size=2, **name))
    run = make_run(
        rows,
        [(0, 2, 0, 9_000)],
        name=texts.script,
        headline=texts.quotes + texts.script,
        manifest=manifest(
            command=("zerotrace", *texts.all),
            engine=texts.script,
            versions={texts.script: texts.quotes, "torch": texts.script},
            environment={"NCCL_" + text: text for text in texts.all},
            ds_config={text: text for text in texts.all},
        ),
        diagnostics=[Diagnostic(code=t, level=Level.WARNING, message=t, file=t, hint=t) for t in texts.all],
    )
    page = open_timeline(run)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.title() == f"{texts.script} · zerotrace"
    assert page.text_content("h1") == texts.script
    assert page.locator("img, iframe, object, embed").count() == 0
    assert page.locator("script").count() == 4
    assert page.locator("main a").count() == 0
    shown = page.eval_on_selector_all("#kernel-table .name", "cells => cells.map(c => c.textContent)")
    assert texts.script in shown
    assert any("\\u202egnp.exe\\u202c" in text for text in shown)
    assert not any("\u202e" in text or "\x00" in text for text in shown)
    assert "{{ 7*7 }}" in (page.text_content("main") or "")
    # Every interval under the pointer, with its tip: names go through plotly and through the page.
    drawn = page.text_content("#timeline-plot") or ""
    assert "</script>" in drawn
    assert "clickbold" in drawn
    tips = hover_all(page)
    assert any(texts.script in tip for tip in tips)
    assert page.locator("#timeline-plot a").count() == 0


def hover_all(page: Page) -> list[str]:
    """Texts of the tip along the lanes."""
    box = page.locator("#timeline-plot").bounding_box()
    assert box is not None
    tips = []
    for y in range(36, int(box["height"]), 10):
        for x in range(160, int(box["width"]), 25):
            page.mouse.move(box["x"] + x, box["y"] + y)
            if page.is_visible("#timeline-tip"):
                tips.append(page.text_content("#timeline-tip") or "")
    return tips


def test_csv_defuses_formulas_and_keeps_numbers(open_report: OpenReport, tmp_path: Path) -> None:
    names = {"=1+1": "'=1+1", "-2+3": "'-2+3", "@x": "'@x", "+c|' /C'!A0": "'+c|' /C'!A0", 'say "a, b"': 'say "a, b"'}
    page = open_report(make_run([Row(0, "compute", 0, 900, name) for name in names], [(0, 2, 0, 1000)]))
    rows = read_csv(page, "[data-csv=kernel-table]", tmp_path)[1:]
    assert rows == [["0", "compute", names[name], "1", "900", "0.2"] for name in sorted(names)]


def test_partition_csv_has_the_exact_figures(open_report: OpenReport, tmp_path: Path) -> None:
    run = training_run()
    page = open_report(run)
    page.evaluate("document.querySelector('#step details').open = true")
    header, *rows = read_csv(page, "#step [data-csv]", tmp_path)
    assert header == [*COLUMNS, "overlap_ratio"]
    assert [[int(v) if v else None for v in row[:-1]] for row in rows] == [
        [getattr(p, c) for c in COLUMNS] for p in run.analysis.partition
    ]


def read_csv(page: Page, selector: str, folder: Path) -> list[list[str]]:
    with page.expect_download() as waiting:
        page.click(selector)
    path = folder / waiting.value.suggested_filename
    waiting.value.save_as(path)
    return list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))


def test_analysis_json_can_be_saved(open_report: OpenReport, tmp_path: Path) -> None:
    run = training_run(hta=hta_report())
    page = open_report(run)
    with page.expect_download() as waiting:
        page.click("[data-json]")
    waiting.value.save_as(tmp_path / "analysis.json")
    assert json.loads((tmp_path / "analysis.json").read_text(encoding="utf-8")) == plain(run.analysis)


def test_narrow_window_does_not_scroll_sideways(open_timeline: OpenReport) -> None:
    long_name = "void " + "cutlass_80_tensorop" * 12 + "<float>"
    run = training_run(
        manifest=manifest(command=("zerotrace", "capture", "--script", "/very/long/" + "path/" * 30)),
        hta=hta_report(),
        name="traces/" + "stage3_" * 20,
        diagnostics=[Diagnostic(code="file_skipped", level=Level.WARNING, message=long_name, file="x" * 90)],
    )
    run = Run(run.analysis, (*run.rows, Row(0, "compute", 1, 1, long_name)), run.windows)
    page = open_timeline(run, width=320)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width in (320, 560, 768, 1021):
        page.set_viewport_size({"width": width, "height": 800})
        assert overflow(page) <= 0


def test_tiles_hold_their_values_in_narrow_windows(open_report: OpenReport) -> None:
    run = training_run(manifest=manifest())
    spread = Spread(min=888.8e3, median=1e6, max=488.8e6)
    page = open_report(run.with_(verdict=replace(run.analysis.verdict, compute_ns=spread)))
    for width in (320, 360, 570, 1030, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        outside = page.eval_on_selector_all(
            ".tile dd",
            """cells => cells.filter(cell => {
              const range = document.createRange();
              range.selectNodeContents(cell);
              return range.getBoundingClientRect().right > cell.getBoundingClientRect().right + 0.5;
            }).map(cell => cell.textContent)""",
        )
        assert outside == []


def test_box_that_hides_something_says_so(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run(hta=hta_report()), width=320)
    page.evaluate("document.querySelector('#step details').open = true")
    hint = page.locator("#step details .scroll-hint")
    hint.wait_for(state="visible")
    box = page.locator("#step details .scroll")
    assert "more-right" in (box.get_attribute("class") or "")
    box.evaluate("box => box.scrollTo({left: box.scrollWidth, behavior: 'instant'})")
    page.wait_for_selector("#step details .scroll.more-left:not(.more-right)")
    # The figures fit themselves into the window.
    assert page.locator("#timeline .scroll-hint:visible").count() == 0
    beside = page.locator(".scroll-hint:has(+ [aria-label='HTA beside ours'])")
    beside.wait_for(state="visible")
    page.set_viewport_size({"width": 1280, "height": 800})
    beside.wait_for(state="hidden")


def test_command_has_the_variables_that_change_what_is_measured_in_front() -> None:
    variables = {
        "NCCL_P2P_DISABLE": "1",
        "NCCL_VERSION": "2.28.3-1",
        "CUDA_VISIBLE_DEVICES": "0,1; true",
        "DS_ACCELERATOR": "cpu",
        "NCCL_X=1; rm": "2",
    }
    run = training_run(manifest=manifest(environment=variables))
    assert command_text(run.analysis) == (
        "CUDA_VISIBLE_DEVICES='0,1; true' NCCL_P2P_DISABLE=1 zerotrace capture --stage 3 --gpus 2"
    )


def test_definitions_name_every_part_of_the_partition() -> None:
    terms = {entry.term for entry in definitions(Mode.DEVICE)}
    assert {
        "exposed transfer", "waiting for a rank", "queued", "sync", "shadow", "blocking",
        "host-bound", "stalled", "tail", "unlinked",
    } <= terms  # fmt: skip
    assert not {"queued", "host-bound"} & {entry.term for entry in definitions(Mode.HOST)}


def test_what_is_not_different_has_no_sign_and_no_reason(open_report: OpenReport) -> None:
    assert HtaComparison(0, "overlap", "%", 12.249, 12.25, -0.001, None).text(-0.001, points=True) == "0.00 points"
    assert HtaComparison(0, "idle", "ns", 0, 400, -400, None).text(-400) == "0.000 ms"
    assert HtaComparison(0, "idle", "ns", 0, 4e6, -4e6, None).text(-4e6) == "−4.000 ms"
    report = hta_report()
    report = replace(report, overlap=tuple(replace(entry, note=None) for entry in report.overlap))
    page = open_report(training_run(hta=report))
    assert "why they differ" not in (page.text_content("#hta-table thead") or "")


def test_banner_says_what_weakens_the_figures(open_report: OpenReport) -> None:
    diagnostics = [
        Diagnostic(code="missing_rank", level=Level.ERROR, message="rank 1 is missing", hint="copy its trace"),
        Diagnostic(code="file_skipped", level=Level.WARNING, message="no trace", file="result.json"),
        Diagnostic(code="no_hta", level=Level.INFO, message="HTA was not asked"),
    ]
    page = open_report(training_run(diagnostics=diagnostics))
    banner = page.text_content(".banner") or ""
    assert "2 things weaken these figures" in banner
    for text in ("rank 1 is missing", "missing_rank", "copy its trace", "result.json"):
        assert text in banner
    assert "HTA was not asked" not in banner
    assert page.locator("details.infos").get_attribute("open") is None
    assert "HTA was not asked" in (page.text_content("details.infos") or "")
    assert open_report(training_run()).locator(".banner").count() == 0


def test_page_without_manifest_hta_steps_or_rows_still_stands(open_report: OpenReport) -> None:
    page = open_report(make_run([], [(0, 2, 0, 1000)]))
    assert page.locator("[data-tile] .value").all_text_contents() == ["–"] * 6
    assert (
        "nothing to draw" in (page.text_content("#timeline") or "").lower()
        or page.locator("#timeline .empty").count() == 1
    )
    assert "HTA was not run" in (page.text_content("#method") or "")
    assert "without a capture manifest" in (page.text_content("#method") or "")
    page = open_report(make_run([Row(0, "compute", 0, 5)]))
    assert page.locator("#step .empty").count() == 1


def test_hta_stands_beside_ours_with_the_difference(open_report: OpenReport) -> None:
    page = open_report(training_run(hta=hta_report()))
    rows = page.locator("#hta-table tbody tr").all_text_contents()
    overlap = next(row for row in rows if "overlap" in row)
    for text in ("12.50 %", "12.25 %", "0.25 points", "Stream Wait Event"):
        assert text in overlap
    assert any("5.000 ms" in row and "4.000 ms" in row and "1.000 ms" in row for row in rows)
    assert "host wait" in (page.text_content("#hta-idle-table") or "")
    host = open_report(host_run())
    assert "HTA reads device rows only" in (host.text_content("#method") or "")


def test_dialogs_open_by_button_and_key_and_close(open_report: OpenReport) -> None:
    page = open_report(training_run())
    page.click("[data-dialog=help]")
    terms = page.locator("#help dt").all_text_contents()
    assert terms == [entry.term for entry in definitions(training_run().analysis.mode)]
    page.keyboard.press("Escape")
    assert not page.is_visible("#help")
    page.keyboard.press("?")
    assert page.is_visible("#keys")
    page.click("#keys .close")
    assert not page.is_visible("#keys")


def test_structure_serves_a_screen_reader(open_timeline: OpenReport) -> None:
    page = open_timeline(training_run(manifest=manifest(), hta=hta_report()))
    assert page.get_attribute("html", "lang") == "en"
    for selector in ("h1", "main", "header", "footer"):
        assert page.locator(selector).count() == 1
    unnamed = page.evaluate(
        """() => [...document.querySelectorAll('button, select, input, section, dialog, [role=group]')]
          .filter(e => !(e.textContent.trim() || e.ariaLabel || e.getAttribute('aria-labelledby') || e.labels?.length))
          .map(e => e.outerHTML)"""
    )
    assert unnamed == []
    levels = page.eval_on_selector_all(
        "h1, h2, h3, h4", "hs => hs.filter(h => !h.closest('dialog')).map(h => +h.tagName[1])"
    )
    assert all(b - a <= 1 for a, b in pairwise(levels))
    references = page.evaluate(
        """() => ['aria-labelledby', 'aria-describedby', 'aria-controls']
          .flatMap(name => [...document.querySelectorAll(`[${name}]`)].flatMap(e => e.getAttribute(name).split(' ')))
          .filter(id => !document.getElementById(id))"""
    )
    assert references == []
    ids = page.eval_on_selector_all("[id]", "es => es.map(e => e.id)")
    assert len(ids) == len(set(ids))
    page.evaluate("document.body.focus()")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_in_a_report_breaks_wcag(open_timeline: OpenReport, scheme: str) -> None:
    page = open_timeline(training_run(manifest=manifest(), hta=hta_report()), color_scheme=scheme)
    assert violations(page) == []


def test_print_opens_tables_and_draws_all_figures(open_report: OpenReport) -> None:
    page = open_report(training_run(), color_scheme="dark")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.wait_for_selector("#timeline-plot[data-mode]", state="attached")
    assert page.is_visible("#partition-table")
    assert background(page) == rgb(LIGHT.background)
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.locator("#step details[open]").count() == 0


def test_render_is_pure_and_repeatable() -> None:
    run = training_run(manifest=manifest())
    first = render(run.analysis, run.events)
    assert first == render(run.analysis, run.events)
    assert 'http-equiv="Content-Security-Policy"' in first
    assert "unsafe-eval" not in first.split("</head>")[0]


def test_without_scripts_every_number_is_there(open_report: OpenReport, tmp_path: Path) -> None:
    html = render(training_run().analysis, training_run().events)
    page = open_report(training_run())
    browser = page.context.browser
    assert browser is not None
    path = tmp_path / "plain.html"
    path.write_text(html, encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    plain_page = context.new_page()
    plain_page.goto(path.as_uri())
    assert plain_page.locator("#partition-table tbody tr").count() == 4
    assert plain_page.is_visible("main > noscript p")
    assert plain_page.locator("main > noscript p").bounding_box()["y"] < 200  # type: ignore[index]
    assert not plain_page.is_visible("#timeline-mode")
    assert not plain_page.is_visible("#timeline-box")
    assert plain_page.is_visible("#timeline noscript p")
    context.close()
