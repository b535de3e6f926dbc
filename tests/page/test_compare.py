"""The page of several runs side by side, as a reader meets it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from playwright.sync_api import Page

from tests.page.accessibility import violations
from tests.page.conftest import OpenReport
from tests.page.runs import HostileTexts, manifest, training_run
from tests.page.test_page import background, overflow, rgb
from tests.page.test_traffic import cells, same, see
from tests.unit.test_compare_deltas import again, stage
from zerotrace.analysis.captured import CapturedRun
from zerotrace.analysis.compare import compare
from zerotrace.cli import main
from zerotrace.report.columns import Column, Segment, TheoryLine, column_chart
from zerotrace.report.comparison import render_comparison
from zerotrace.report.theme import DARK, LIGHT

RUNS = ("single", "stage0", "stage1", "stage2", "stage3")
CHARTS = ("step-columns", "resident-columns", "peak-columns", "wire-columns", "hidden-columns", "throughput-columns")
GIB, MS = 1 << 30, 10**6
MAX_PAGE_BYTES = 5_000_000
MAX_MARKS = 3000

Told = dict[str, Any]


def command(*words: str | Path) -> str:
    done = CliRunner().invoke(main, ["compare", *map(str, words)], prog_name="zerotrace", catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def page_of(folders: Sequence[Path], folder: Path) -> tuple[Told, str]:
    """What `compare --json` prints of runs, and the page that it writes of them."""
    path = folder / "compare.html"
    told: Told = json.loads(command(*folders, "--json", "--html", path))
    return told, path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def study(ladder: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, str]:
    return page_of([ladder[name] for name in RUNS], tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def repeated(ladder: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> tuple[Told, str]:
    names = ("stage2", "stage3", "again")
    return page_of([ladder[name] for name in names], tmp_path_factory.mktemp("repeated"))


def lines(page: Page, table: str) -> dict[str, list[str]]:
    """The exact values of a table with a column a run, by the key of the line."""
    found: dict[str, list[str]] = page.eval_on_selector(
        f"#{table}",
        "table => Object.fromEntries([...table.tBodies[0].rows].map(row => [row.dataset.key,"
        " [...row.querySelectorAll('td data')].map(cell => cell.value)]))",
    )
    return found


def holds(found: Mapping[str, Sequence[str]], key: str, values: Sequence[float | None]) -> bool:
    return all(same(text, value) for text, value in zip(found[key], values, strict=True))


def traces(page: Page, chart: str) -> list[Told]:
    found: list[Told] = page.evaluate(
        f"document.getElementById('{chart}').data.map(t => ({{role: t.meta.role, type: t.type,"
        " x: Array.from(t.x), y: Array.from(t.y), base: Array.from(t.base ?? [])}))"
    )
    return found


def heights(page: Page, chart: str) -> list[float]:
    """Where each column ends; strips are part of what they lie in."""
    ends: dict[float, float] = {}
    for trace in traces(page, chart):
        if trace["type"] == "bar":
            for x, y, base in zip(trace["x"], trace["y"], trace["base"], strict=True):
                ends[x] = max(ends.get(x, 0.0), base + y)
    return [ends.get(place, 0.0) for place in range(len(RUNS))]


@pytest.mark.page
def test_the_page_carries_what_json_prints(open_report: OpenReport, study: tuple[Told, str]) -> None:
    told, html = study
    page = open_report(html)
    assert json.loads(page.text_content("#comparison-data") or "") == told
    assert page.text_content("#headline") == told["headline"]
    assert page.locator(".deltas li").all_text_contents() == [delta["words"] for delta in told["deltas"]]
    assert len(told["deltas"]) == 3
    assert len(html.encode()) < MAX_PAGE_BYTES


@pytest.mark.page
def test_tables_hold_the_numbers(open_report: OpenReport, study: tuple[Told, str]) -> None:
    told, html = study
    page = open_report(html)
    runs = told["runs"]
    for row, run in zip(cells(page, "runs-table"), runs, strict=True):
        assert (row["run"], row["stage"]) == (run["name"], run["engine"] if run["stage"] is None else str(run["stage"]))
        for name in ("world_size", "resident_bytes", "peak_bytes", "step_ns", "tokens_per_s", "study_exposed_ns"):
            assert same(row[name], run[name])
        assert same(row["exposed_ns"], run["exposed_ns"]["max"])
    for row, delta in zip(cells(page, "prices-table"), told["deltas"], strict=True):
        assert row["after"] == told["repeats"][delta["after"]]["label"]
        for change in delta["changes"]:
            assert same(row[change["quantity"]], change["difference"])
        assert same(row["step_noise_ns"], delta["changes"][0]["noise"])
    for row, rung in zip(cells(page, "ladder-table"), told["ladder"], strict=True):
        assert all(same(row[name], rung[name]) for name in rung)
    for row, setting in zip(cells(page, "settings-table"), told["settings"], strict=True):
        shown = [json.loads(value) if value and value[0] == '"' else value or "–" for value in setting["values"]]
        assert [row[run["label"]] for run in runs] == shown


@pytest.mark.page
def test_figures_tables_hold_the_numbers(open_report: OpenReport, study: tuple[Told, str]) -> None:
    told, html = study
    page = open_report(html)
    runs = told["runs"]
    step = lines(page, "step-table")
    for kind in ("step_ns", "profiled_ns"):
        for cause in {part["cause"] for run in runs for part in run["causes"]["parts"]}:
            parts = [{part["cause"]: part[kind] for part in run["causes"]["parts"]} for run in runs]
            assert holds(step, f"{cause}_{kind}", [part.get(cause, 0) for part in parts])
    for name in ("span_ns", "overlapped_ns", "device_scale", "host_scale"):
        assert holds(step, name, [run["causes"][name] for run in runs])
    for name in ("step_ns", "step_error_ns", "dilation_ratio"):
        assert holds(step, name, [run[name] for run in runs])
    for instant in ("resident", "peak"):
        table = lines(page, f"{instant}-table")
        owners = [{one["owner"]: one["bytes"] for one in run[instant]["owners"]} for run in runs]
        for owner in {owner for found in owners for owner in found}:
            assert holds(table, f"{owner}_bytes", [found.get(owner, 0) for found in owners])
        for name in ("owners_bytes", "paper_bytes", "deepspeed_bytes"):
            assert holds(table, name, [run[instant][name] for run in runs])
        assert holds(table, f"{instant}_bytes", [run[f"{instant}_bytes"] for run in runs])
    wire = lines(page, "wire-table")
    for kind in ("all_reduce", "all_gather", "reduce_scatter"):
        sent = [{one["kind"]: one["sent_bytes"] for one in run["sent"]["kinds"]} for run in runs]
        assert holds(wire, f"{kind}_sent_bytes", [found.get(kind, 0) for found in sent])
    for name in ("sent_bytes", "theory_bytes", "ratio", "theory_ratio"):
        assert holds(wire, name, [run["sent"][name] for run in runs])
    others = {**lines(page, "hidden-table"), **lines(page, "throughput-table")}
    for name in ("overlap_ratio", "hidden_ratio", "hidden_transfer_ratio", "tokens", "tokens_per_s"):
        assert holds(others, name, [run[name] for run in runs])


@pytest.mark.page
def test_charts_draw_what_the_tables_say(open_report: OpenReport, study: tuple[Told, str]) -> None:
    told, html = study
    page = open_report(html, color_scheme="light")
    see(page, *CHARTS)
    runs = told["runs"]
    assert [end * MS for end in heights(page, "step-columns")] == pytest.approx([run["step_ns"] for run in runs])
    for instant in ("resident", "peak"):
        ends = [end * GIB for end in heights(page, f"{instant}-columns")]
        assert ends == pytest.approx([run[instant]["owners_bytes"] for run in runs])
        for role, name in (("paper", "paper_bytes"), ("ledger", "deepspeed_bytes")):
            drawn = [trace for trace in traces(page, f"{instant}-columns") if trace["role"] == role]
            values = [run[instant][name] for run in runs if run[instant][name] is not None]
            assert [y * GIB for trace in drawn for y in trace["y"][1::4]] == pytest.approx(values)
    assert [end * 1e9 for end in heights(page, "wire-columns")] == pytest.approx(
        [run["sent"]["sent_bytes"] for run in runs]
    )
    theory = next(trace for trace in traces(page, "wire-columns") if trace["role"] == "paper")
    assert [y * 1e9 for y in theory["y"][1::4]] == pytest.approx([run["sent"]["theory_bytes"] for run in runs[1:]])
    assert heights(page, "hidden-columns") == pytest.approx([100 * (run["overlap_ratio"] or 0) for run in runs])
    assert heights(page, "throughput-columns") == pytest.approx([run["tokens_per_s"] / 1000 for run in runs])
    assert page.evaluate("document.querySelectorAll('.main-svg path').length") < MAX_MARKS
    # Both memory charts have one axis.
    ranges = page.evaluate("['resident', 'peak'].map(n => document.getElementById(`${n}-columns`).layout.yaxis.range)")
    assert ranges[0] == ranges[1]


@pytest.mark.page
def test_the_ladder_of_the_captures_that_ship(study: tuple[Told, str]) -> None:
    told, _ = study
    assert told["headline"] == (
        "Stage 0 and stage 2 are fastest: 231 ms a step. Stage 1 and stage 2 hold least between steps: 5.83 GiB. "
        "Left out: single device, on 1 rank."
    )
    assert told["deltas"][2]["words"] == (
        "Stage 3 costs 235 ms more a step than stage 2, holds 954 MiB more between steps and 1.53 GiB more at the "
        "peak, and sends 753 MB less."
    )
    changed = {one["owner"]: one["bytes"] / GIB for one in told["deltas"][2]["owners"][:3]}
    # The reduce bucket of 5e8 elements; this rank's shares of gradients and parameters.
    assert changed == pytest.approx({"reduce_bucket": 0.931, "grad_partition": 0.721, "params": -0.721}, abs=1e-3)


@pytest.mark.page
def test_a_single_device_is_nearly_all_compute(study: tuple[Told, str]) -> None:
    """What the profiled step shows as host-bound is the profiler's doing: unprofiled, the device is busy throughout."""
    single = study[0]["runs"][0]["causes"]
    parts = {part["cause"]: part for part in single["parts"]}
    assert parts["host_bound"]["profiled_ns"] > 0.25 * single["span_ns"]
    assert parts["compute"]["step_ns"] > 0.9 * study[0]["runs"][0]["step_ns"]


@pytest.mark.page
@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 1280), ("light", 320)])
def test_nothing_breaks_wcag(open_report: OpenReport, study: tuple[Told, str], scheme: str, width: int) -> None:
    page = open_report(study[1], color_scheme=scheme, width=width)
    see(page, *CHARTS)
    assert violations(page) == []


@pytest.mark.page
def test_axe_sees_what_is_broken(open_report: OpenReport, study: tuple[Told, str]) -> None:
    page = open_report(study[1], color_scheme="light")
    page.evaluate("document.querySelector('.lead').style.color = '#ccc'")
    page.evaluate("document.documentElement.removeAttribute('lang')")
    assert [line.split(":")[0] for line in violations(page)] == ["color-contrast", "html-has-lang"]


@pytest.mark.page
def test_the_page_fits_any_window(open_report: OpenReport, study: tuple[Told, str]) -> None:
    page = open_report(study[1], width=320, height=800)
    see(page, *CHARTS)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    for width in (320, 560, 800, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert overflow(page) <= 0
    page.set_viewport_size({"width": 320, "height": 800})
    page.wait_for_timeout(300)
    # Five columns have room on a telephone, names and all.
    assert page.locator("figure .scroll.more-right").count() == 0
    names = page.eval_on_selector_all(
        "#step-columns .xtick text", "ts => ts.map(t => t.getBoundingClientRect()).map(r => [r.left, r.right])"
    )
    assert all(right <= left for (_, right), (left, _) in pairwise(names))


@pytest.mark.page
def test_many_runs_scroll_in_their_own_box(open_report: OpenReport) -> None:
    runs = [stage(3, 100 + n, name=f"traces/{'long_' * 6}{n}", zero={"reduce_bucket_size": n}) for n in range(30)]
    page = open_report(render_comparison(compare(runs)), width=560)
    see(page, "step-columns")
    assert overflow(page) <= 0
    page.wait_for_selector("#step .scroll.more-right")


@pytest.mark.page
def test_colours_follow_the_theme(open_report: OpenReport, study: tuple[Told, str]) -> None:
    page = open_report(study[1], color_scheme="light")
    see(page, "resident-columns")
    line = "document.getElementById('resident-columns').data.find(t => t.meta.role === 'ledger').line.color"
    fill = "document.getElementById('resident-columns').data.find(t => t.meta.role === 'compute').marker.color"
    assert (page.evaluate(line), page.evaluate(fill)) == (LIGHT.text, LIGHT.compute)
    page.click("#theme-toggle")
    page.wait_for_function(f"() => {fill} === '{DARK.compute}'")
    assert page.evaluate(line) == DARK.text
    assert background(page) == rgb(DARK.background)


@pytest.mark.page
def test_repeats_give_a_spread_within_which_differences_are_equal(
    open_report: OpenReport, repeated: tuple[Told, str]
) -> None:
    told, html = repeated
    assert [group["runs"] for group in told["repeats"]] == [[0], [1, 2]]
    width = told["repeats"][1]["figures"]["step_ns"]
    assert width["max"] - width["min"] == pytest.approx(20 * MS)
    page = open_report(html)
    rows = cells(page, "repeats-table")
    assert [row["figure"] for row in rows] == ["step", "resident", "peak", "sent"]
    for row, spread in zip(rows, told["repeats"][1]["figures"].values(), strict=True):
        assert all(same(row[name], spread[name]) for name in ("min", "median", "max"))
    assert "stage3 and again repeat one configuration" in (page.text_content("#verdict") or "")
    (price,) = told["deltas"]
    step = price["changes"][0]
    assert (step["noise"] >= 20 * MS, step["equal"]) == (True, False)


@pytest.mark.page
def test_what_is_within_noise_is_called_equal(open_report: OpenReport) -> None:
    zero = stage(0, 100)
    runs = [zero, again(zero, "traces/again", 140), stage(1, 130, gib=6)]
    page = open_report(render_comparison(compare(runs)))
    row = page.locator("#prices-table tbody tr td").all_text_contents()
    assert row == ["stage 1", "equal", "± 40.0 ms", "−4.00 GiB", "equal", "–"]
    assert cells(page, "prices-table")[0]["step_ns"] == str(10.0 * MS)
    assert "takes as long a step as stage 0 (within noise" in (page.text_content(".deltas") or "")


@pytest.mark.page
def test_equal_configurations_are_said_to_be(open_report: OpenReport) -> None:
    run = stage(3, 100)
    twin = again(run, "traces/again", 101)
    runs = [run, replace(twin, manifest=replace(twin.manifest, seed=run.manifest.seed))]
    page = open_report(render_comparison(compare(runs)))
    assert "Configurations are equal" in (page.text_content("#setups") or "")
    assert page.locator("#settings-table").count() == 0


@pytest.mark.page
def test_other_work_is_said_and_not_compared(open_report: OpenReport) -> None:
    page = open_report(render_comparison(compare([stage(0, 100), stage(1, 90, micro_batch=8)])))
    assert "does other work than traces/stage0" in (page.text_content(".banner") or "")
    assert page.locator("#prices-table").count() == 0
    micro = next(row for row in cells(page, "settings-table") if row["key"] == "micro-batch")
    assert (micro["stage 0"], micro["stage 1"]) == ("4", "8")


@pytest.mark.page
def test_runs_that_are_not_analysed_have_bars_without_parts(open_report: OpenReport) -> None:
    page = open_report(render_comparison(compare([stage(0, 100), stage(3, 300, gib=7)])))
    assert "Without parts: stage 0 and stage 3: not analysed." in (page.text_content("#step") or "")
    see(page, "step-columns", "resident-columns")
    (bars,) = (trace for trace in traces(page, "step-columns") if trace["type"] == "bar")
    assert (bars["role"], bars["y"]) == ("unknown", [100, 300])
    roles = [trace["role"] for trace in traces(page, "resident-columns")]
    assert roles == ["unknown", "halo", "paper", "halo", "ledger"]
    assert "No analysed run sends anything." in (page.text_content("#wire") or "")


@pytest.mark.page
def test_a_run_of_which_nothing_is_known_still_stands(open_report: OpenReport) -> None:
    bare = manifest(device="cpu", sequence=None, ds_config=None, engine="mine", stage=None)
    page = open_report(render_comparison(compare([CapturedRun(name="traces/bare", manifest=bare)])))
    assert page.locator("[data-chart]").count() == 0
    assert "No run has a timed window." in (page.text_content("#step") or "")
    assert "Nothing is known of memory." in (page.text_content("#memory") or "")


@pytest.mark.page
def test_hostile_names_are_shown_and_do_nothing(open_report: OpenReport) -> None:
    texts = HostileTexts()
    analysis = training_run().analysis
    runs = []
    for number, text in enumerate(texts.all):
        run = stage(number % 3, 100 + number, name=f"traces/{text}", environment={"NCCL_" + text: text})
        changed = replace(run.manifest, engine=text, versions={text: text}, ds_config={text: {text: text}})
        runs.append(CapturedRun(name=run.name, manifest=changed, analysis=analysis))
    page = open_report(render_comparison(compare(runs, notes=texts.all)))
    see(page, "step-columns")
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.locator("img, iframe, object, embed").count() == 0
    assert page.locator("script").count() == 5
    assert page.locator("main a, #step-columns a").count() == 0
    shown = page.text_content("main") or ""
    assert texts.script in shown
    assert "{{ 7*7 }}" in shown
    assert "\u202e" not in shown and "\x00" not in shown
    assert "<img" in (page.text_content("#step-columns") or "")


@pytest.mark.page
def test_a_folder_may_be_called_as_it_likes(
    open_report: OpenReport, ladder: Mapping[str, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "x<" / "script><img src=x onerror=window.hacked=1>"
    shutil.copytree(ladder["stage3"], folder)
    told, html = page_of([folder, ladder["stage0"]], tmp_path)
    page = open_report(html)
    assert told["runs"][0]["name"] == "x</script><img src=x onerror=window.hacked=1>"
    assert cells(page, "runs-table")[0]["run"] == told["runs"][0]["name"]
    assert page.locator("img").count() == 0


@pytest.mark.page
def test_tables_can_be_saved(open_report: OpenReport, study: tuple[Told, str], tmp_path: Path,
                             ladder: Mapping[str, Path]) -> None:  # fmt: skip
    page = open_report(study[1])

    def saved(selector: str) -> str:
        with page.expect_download() as waiting:
            page.click(selector)
        waiting.value.save_as(tmp_path / waiting.value.suggested_filename)
        return (tmp_path / waiting.value.suggested_filename).read_text(encoding="utf-8")

    assert saved("[data-text=study-csv]") == command(*(ladder[name] for name in RUNS), "--csv")
    assert json.loads(saved("[data-json]")) == study[0]
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    header, *rows = (line.split(",") for line in saved("[data-csv=peak-table]").splitlines())
    assert header == ["figure", *(run["label"] for run in study[0]["runs"])]
    peaks = next(row for row in rows if row[0] == "owners_bytes")
    assert [int(value) for value in peaks[1:]] == [run["peak"]["owners_bytes"] for run in study[0]["runs"]]


@pytest.mark.page
def test_without_scripts_every_number_is_there(
    open_report: OpenReport, study: tuple[Told, str], tmp_path: Path
) -> None:
    browser = open_report(study[1]).context.browser
    assert browser is not None
    (tmp_path / "plain.html").write_text(study[1], encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto((tmp_path / "plain.html").as_uri())
    assert page.is_visible("main > noscript p")
    assert page.locator("#step-table tbody tr").count() > 10
    assert not page.is_visible("#step-columns")
    context.close()


@pytest.mark.page
def test_structure_serves_a_screen_reader(open_report: OpenReport, study: tuple[Told, str]) -> None:
    page = open_report(study[1])
    for selector in ("h1", "main", "header", "footer"):
        assert page.locator(selector).count() == 1
    ids = page.eval_on_selector_all("[id]", "es => es.map(e => e.id)")
    assert len(ids) == len(set(ids))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.click("[data-dialog=help]")
    assert page.is_visible("#help")
    page.keyboard.press("Escape")
    assert not page.is_visible("#help")


def test_the_same_runs_give_the_same_page() -> None:
    found = compare([stage(0, 100), stage(1, 110)])
    assert render_comparison(found) == render_comparison(found)


def test_plotly_accepts_a_chart_and_axes_can_be_shared() -> None:
    columns = [Column("a", (Segment("compute", 2, "two"), Segment("idle", 1, "one")), "3"), Column("b", (), "–")]
    line = TheoryLine("paper", (4.0, None), ("four", ""))
    chart = column_chart(columns, (line,), id="x", caption="", label="", suffix="ms", reach=10)
    go.Figure(chart.figure)
    assert chart.figure["layout"]["yaxis"]["range"] == [0, pytest.approx(10.4)]
    assert [trace["meta"]["role"] for trace in chart.figure["data"]] == ["compute", "idle", "halo", "paper"]
    assert chart.figure["data"][3]["y"] == [4, 4, 4, None]


@pytest.mark.parametrize(
    ("label", "shown"),
    [
        ("stage 3", "stage 3"),
        ("stage2_reduce_small", "stage2_<br>reduce_<br>small"),
        ("x" * 60, "<br>".join(["x" * 11] * 3 + ["x" * 10 + "…"])),
        ("a<b>", "a&lt;b&gt;"),
        ("", "–"),
    ],
)
def test_names_are_broken_to_the_width_of_a_column(label: str, shown: str) -> None:
    chart = column_chart([Column(label, (), "1")], id="x", caption="", label="", suffix="ms")
    assert chart.figure["layout"]["xaxis"]["ticktext"] == [f"{shown}<br><b>1</b>"]
