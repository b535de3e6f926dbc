"""Real DeepSpeed captures on two H200, against figures that were worked out independently.

The captures are not part of the repository; where they are absent, these tests skip and say so. What matters is
covered without them by ``test_traces.py`` and the unit tests.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "captures"
RUNS = ("stage0", "stage1", "stage2", "stage2_reduce", "stage3", "stage3_live1e8")

pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the shared captures are not on this machine")


@pytest.mark.parametrize("run", RUNS)
def test_partition_equals_the_independent_figures_to_the_nanosecond(run: str, tmp_path: Path) -> None:
    expected = json.loads((CAPTURES / "expected.json").read_text())[f"pcie/{run}"]["ranks"]
    analysis, _, _ = analyze([CAPTURES / "pcie" / run], tmp_path / "a", AnalyzeOptions(hta=False))
    seen = 0
    for part in analysis.partition:
        want = expected[str(part.rank)][str(part.step)]
        figures = {key: value for key, value in asdict(part).items() if key in want}
        assert figures == {key: want[key] for key in figures}
        assert figures.keys() >= {
            "span_ns",
            "compute_ns",
            "comm_ns",
            "overlapped_ns",
            "exposed_ns",
            "copy_only_ns",
            "idle_ns",
        }
        seen += 1
    assert seen == sum(len(steps) for steps in expected.values())
