"""What a profiler makes longer: the host's work, and not the device's. Comparisons scale a step by that."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Analysis

TRACES = Path(__file__).resolve().parents[2] / "traces"


@pytest.mark.parametrize("run", ["single", "stage0", "stage1", "stage2", "stage3"])
def test_device_work_is_as_long_under_a_profiler_that_costs_little(run: str, tmp_path: Path) -> None:
    """The light window records the device alone, and its step is half to nine tenths of the detailed one's."""
    options = AnalyzeOptions(hta=False)
    detailed = analyze([TRACES / run], tmp_path / "detailed", options)[0]
    light = analyze([TRACES / run / "light"], tmp_path / "light", options)[0]
    assert mean(light, "span_ns") < 0.9 * mean(detailed, "span_ns")
    assert mean(detailed, "idle_ns") > 1.3 * mean(light, "idle_ns")
    assert mean(detailed, "compute_ns") == pytest.approx(mean(light, "compute_ns"), rel=0.03)
    assert mean(detailed, "exposed_transfer_ns") == pytest.approx(mean(light, "exposed_transfer_ns"), rel=0.1)


def mean(analysis: Analysis, figure: str) -> float:
    """Mean over ranks of their mean steps; nothing is exposed where nothing is sent."""
    return fmean(getattr(rank, figure) or 0.0 for rank in analysis.ranks)
