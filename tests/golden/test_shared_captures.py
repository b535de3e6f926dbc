"""Real DeepSpeed captures on two H200, against figures that were worked out independently.

The captures are not part of the repository; where they are absent, these tests skip and say so. What matters is
covered without them by ``test_traces.py`` and the unit tests.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "captures"
RUNS = ("stage0", "stage1", "stage2", "stage2_reduce", "stage3", "stage3_live1e8")

EXPECTED = json.loads((CAPTURES / "expected.json").read_text()) if CAPTURES.is_dir() else {}

pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the shared captures are not on this machine")


@pytest.mark.parametrize("run", RUNS)
def test_partition_equals_the_independent_figures_to_the_nanosecond(run: str, tmp_path: Path) -> None:
    expected = EXPECTED[f"pcie/{run}"]["ranks"]
    analysis, _, _ = analyze([CAPTURES / "pcie" / run], tmp_path / "a", AnalyzeOptions(hta=False))
    seen = 0
    for part in analysis.partition:
        want = {**expected[str(part.rank)][str(part.step)]}
        del want["bytes"], want["calls"]
        assert {name: getattr(part, name) for name in want} == want
        seen += 1
    assert seen == sum(len(steps) for steps in expected.values())


@pytest.mark.parametrize("run", RUNS)
def test_collectives_equal_the_independent_figures_to_the_byte(run: str, tmp_path: Path) -> None:
    expected = EXPECTED[f"pcie/{run}"]
    analysis, _, _ = analyze([CAPTURES / "pcie" / run], tmp_path / "a", AnalyzeOptions(hta=False))
    assert analysis.stragglers is not None
    assert analysis.stragglers.num_collectives == expected["matched"]
    assert {str(one.rank): one.num_last for one in analysis.stragglers.ranks if one.num_last} == expected[
        "last_arrivals"
    ]
    collectives = pq.read_table(tmp_path / "a" / "collectives.parquet").to_pandas()
    assert collectives["collective"].notna().all()
    once = collectives.drop_duplicates("collective")
    assert len(once) == expected["matched"]
    assert once["transfer_ns"].sum() == expected["transfer_ns_total"]
    assert {str(int(rank)): count for rank, count in once["last_rank"].value_counts().items()} == expected[
        "last_arrivals"
    ]
    for (rank, step), rows in collectives.groupby(["rank", "step"]):
        want = expected["ranks"][str(rank)][str(step)]
        assert rows.groupby("name", observed=True)["size_bytes"].sum().to_dict() == want["bytes"]
        assert rows.groupby("name", observed=True).size().to_dict() == want["calls"]
