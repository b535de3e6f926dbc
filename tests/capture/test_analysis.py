"""What `zerotrace analyze` makes of real DeepSpeed runs on two CPU ranks over gloo."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import NUM_PROFILED, NUM_RANKS, CpuCaptures
from zerotrace.analysis.run import AnalyzeOptions, Renderer, analyze
from zerotrace.model import Level, Mode
from zerotrace.report.build import render
from zerotrace.report.rows import EVENT_COLUMNS

pytestmark = pytest.mark.capture


@pytest.mark.parametrize("stage", range(4))
def test_a_gloo_capture_closes_on_the_hosts_time(stage: int, cpu_captures: CpuCaptures, tmp_path: Path) -> None:
    analysis, _, _ = analyze([cpu_captures[stage]], tmp_path / "out", AnalyzeOptions(hta=False))
    assert analysis.mode is Mode.HOST
    assert analysis.manifest is not None
    assert analysis.manifest.stage == stage
    assert len(analysis.partition) == NUM_RANKS * NUM_PROFILED
    for part in analysis.partition:
        assert part.comm_ns == part.overlapped_ns + part.exposed_ns  # type: ignore[operator]
        assert part.span_ns == part.compute_ns + part.exposed_ns + part.copy_only_ns + part.idle_ns  # type: ignore[operator]
        assert part.compute_ns
        assert part.comm_ns
    # The window of the trace is what the rank's own clock saw around the step.
    measured = {(r.rank, w.first_step + i): ns for r in analysis.manifest.ranks for w in r.windows
                for i, ns in enumerate(w.step_ns)}  # fmt: skip
    for part in analysis.partition:
        assert part.span_ns == pytest.approx(measured[part.rank, part.step], rel=0.1, abs=2e6)
    assert analysis.verdict.dilation_ratio is not None
    # A busy machine may start one rank's profiler late; that is then true of the run.
    weak = {note.code for note in analysis.diagnostics if note.level is not Level.INFO}
    assert weak <= {"profiler_start_skew"}


def test_its_report_is_drawn(cpu_captures: CpuCaptures, tmp_path: Path) -> None:
    _, folder, _ = analyze([cpu_captures[3]], tmp_path / "out", render=Renderer(render, EVENT_COLUMNS))
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "ZeRO-3" in page
