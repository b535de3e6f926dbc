"""Findings on real captures, with the numbers that they rest on.

The captures beside this repository, and the constructed cases, are not part of it; where they are absent, these tests
skip and say so. What they show is covered by ``traces`` and by hand-made traces in ``tests/unit``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Analysis, Finding

ROOT = Path(__file__).resolve().parents[2]
CAPTURES = ROOT.parent / "shared" / "captures"
CASES = ROOT.parent / "shared" / "cases"

with_captures = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the shared captures are not on this machine")
with_cases = pytest.mark.skipif(not CASES.is_dir(), reason="the shared cases are not on this machine")

#: Ψ, and the elements that a bucket of 5e8 takes: the gradients that fit, in the order in which they come.
PSI = 774_090_240


def analysed(folder: Path, out: Path) -> Analysis:
    return analyze([folder], out, AnalyzeOptions(hta=False))[0]


def one(analysis: Analysis, code: str) -> Finding:
    (finding,) = (finding for finding in analysis.findings if finding.code == code)
    return finding


def check_stage1(analysis: Analysis) -> None:
    """Gradients go by all-reduce, in two buckets, of which the last has nothing left to hide behind."""
    wire = one(analysis, "gradients_by_all_reduce")
    # On two ranks an all-reduce sends each element of two bytes once, a reduce to its owner half of that.
    assert (wire.numbers["sent_bytes"], wire.numbers["extra_bytes"]) == (2 * PSI, PSI)
    assert wire.numbers["wire_ratio"] == pytest.approx(3, abs=1e-6)
    assert "774,090,240 elements are reduced by 2 all-reduces a step" in wire.evidence
    assert wire.knob == "zero_optimization.use_multi_rank_bucket_allreduce: false"
    buckets = one(analysis, "few_reduce_buckets")
    assert buckets.claim.startswith("The gradients go in 2 buckets, so that the last one cannot overlap")
    assert buckets.numbers["num_buckets"] == 2
    assert 0.6 < buckets.numbers["largest_bucket_bytes"] / (2 * PSI) < 2 * 5e8 / (2 * PSI)
    for finding in (wire, buckets):
        assert analysis.collectives is not None
        kinds = analysis.collectives.kinds
        reduces = [kind for kind in kinds if (kind.kind.value, kind.dtype) == ("all_reduce", "BFloat16")]
        assert finding.numbers["transfer_ns"] == sum(kind.transfer_ns or 0 for kind in reduces)
        assert finding.cost_ns == min(finding.numbers["transfer_ns"], finding.numbers["exposed_ns"])
        assert finding.gain is None or (finding.gain.step_ns or 0) <= (finding.cost_ns or 0)


def check_host_bound(analysis: Analysis) -> None:
    """It is bound by its host, on the rank with the most idle time of that cause, and that is the worst."""
    finding = one(analysis, "host_bound")
    assert analysis.findings[0] is finding
    worst = max(analysis.ranks, key=lambda rank: rank.host_bound_ns or 0)
    assert finding.numbers["host_bound_ns"] == finding.cost_ns == worst.host_bound_ns
    assert f"for {100 * (worst.host_bound_ns or 0) / worst.span_ns:.0f} %" in finding.claim
    assert (worst.host_bound_ns or 0) / worst.span_ns > 0.5


def test_the_shipped_stage_1_all_reduces_two_buckets(tmp_path: Path) -> None:
    check_stage1(analysed(ROOT / "traces" / "stage1", tmp_path / "out"))


def test_the_shipped_stage_3_is_host_bound(tmp_path: Path) -> None:
    check_host_bound(analysed(ROOT / "traces" / "stage3", tmp_path / "out"))


@with_captures
def test_stage_1_over_host_memory_all_reduces_two_buckets(tmp_path: Path) -> None:
    analysis = analysed(CAPTURES / "pcie" / "stage1", tmp_path / "out")
    check_stage1(analysis)
    assert one(analysis, "few_reduce_buckets").numbers["largest_bucket_bytes"] == 996_997_120


@with_captures
def test_stage_3_over_host_memory_is_host_bound(tmp_path: Path) -> None:
    check_host_bound(analysed(CAPTURES / "pcie" / "stage3", tmp_path / "out"))


@with_captures
def test_over_nvlink_neither_bucket_nor_bytes_are_what_costs(tmp_path: Path) -> None:
    codes = {finding.code for finding in analysed(CAPTURES / "nvlink" / "stage3", tmp_path / "out").findings}
    assert "host_bound" in codes
    assert not codes & {"few_reduce_buckets", "gradients_by_all_reduce", "overlap_costs_more"}


@with_cases
def test_a_cold_step_is_a_finding_with_the_hiding_of_each_step(tmp_path: Path) -> None:
    folder = next(CASES.glob("c32_*"))
    shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("expected.json", "README"))
    analysis = analysed(tmp_path / "run", tmp_path / "out")
    expected = json.loads((folder / "expected.json").read_text())["prefetch"]["0"]
    finding = one(analysis, "prefetch_cache_cold")
    assert finding.numbers["num_cold_steps"] == 1
    assert finding.numbers["cold_hidden_ratio"] == expected["2"]["hidden_fraction"]
    assert finding.numbers["warm_hidden_ratio"] == pytest.approx(expected["3"]["hidden_fraction"], abs=1e-6)
    assert finding.place is not None
    assert finding.place.step == 2
    # half of the steps are cold
    blocking = finding.numbers["cold_blocking_ns"], finding.numbers["warm_blocking_ns"]
    assert finding.cost_ns == (blocking[0] - blocking[1]) / 2
    assert any("Invalidate trace cache @ step 1: expected module 2" in note.message for note in analysis.diagnostics)


@pytest.mark.parametrize("stage", range(4))
def test_no_rank_of_the_shipped_captures_is_called_a_straggler_and_overlap_is_not_to_blame(
    stage: int, tmp_path: Path
) -> None:
    codes = {finding.code for finding in analysed(ROOT / "traces" / f"stage{stage}", tmp_path / "out").findings}
    assert not codes & {"straggler", "overlap_tax", "overlap_costs_more"}
