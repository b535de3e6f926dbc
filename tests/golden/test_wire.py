"""The wire ledger of real DeepSpeed runs: GPT-2 Large, Ψ = 774,090,240, on two ranks.

``traces/`` ships with its manifests. The other captures are not part of the repository and have none, so that stage and
Ψ are read off the traffic; where they are absent, their tests skip and say so.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import CollectiveKind, Origin, WireLedger, WireRole

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared" / "captures" / "pcie"

PSI = 774_090_240
PERSISTED = 601_600

#: Elements a step and rank by kind, without norm and overflow; wire ratio; theory; ratio of each cause.
AR, RS, AG, RED = (
    CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE,
)  # fmt: skip
TABLE: dict[str, tuple[dict[CollectiveKind, int], float, float, dict[str, int]]] = {
    "stage0": ({AR: PSI}, 2, 2, {}),
    "stage1": ({AR: PSI, AG: PSI}, 3, 2, {"all_reduce": PSI}),
    "stage2": ({AR: PSI, AG: PSI}, 3, 2, {"all_reduce": PSI}),
    "stage2_reduce": ({RED: PSI, AG: PSI}, 2, 2, {}),
    "stage3": (
        {RS: PSI, AG: 801_615_360},
        2.04,
        3,
        {"kept": PERSISTED - PSI, "gathered_again": 27_525_120, "persisted": -PERSISTED},
    ),
    "stage3_live1e8": (
        {RS: PSI, AG: 1_577_561_600},
        3.04,
        3,
        {"kept": -39_321_600, "gathered_again": 69_304_320, "persisted": -PERSISTED},
    ),
}

SHIPPED = TABLE | {
    "stage3": (
        {RS: PSI, AG: 795_061_760},
        2.03,
        3,
        {"kept": PERSISTED - PSI, "gathered_again": 20_971_520, "persisted": -PERSISTED},
    )
}


def ledger_of(folder: Path, out: Path, **options: Any) -> WireLedger:
    found = analyze([folder], out, AnalyzeOptions(hta=False, **options))[0].wire
    assert found is not None
    return found


def check(
    found: WireLedger, elements: dict[CollectiveKind, int], ratio: float, theory: float, causes: dict[str, int]
) -> None:
    seen: dict[CollectiveKind, float] = {}
    for traffic in found.traffic:
        if traffic.role is not WireRole.CONTROL:
            seen[traffic.kind] = seen.get(traffic.kind, 0) + (traffic.elements or 0)
    assert seen == elements
    assert (found.num_params, found.group_size, found.theory_ratio) == (PSI, 2, theory)
    assert found.ratio is not None
    assert round(found.ratio, 2) == ratio
    # On two ranks, an element of two bytes costs one byte.
    assert {cause.code: cause.sent_bytes for cause in found.causes if cause.code != "control"} == causes
    assert sum(cause.sent_bytes for cause in found.causes if cause.code == "control") <= 8
    assert (found.unexplained_bytes, found.unexplained_ratio) == (0, 0)
    assert found.theory_bytes is not None
    assert found.theory_bytes + sum(cause.sent_bytes for cause in found.causes) == found.sent_bytes


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared captures are not on this machine")
@pytest.mark.parametrize("run", TABLE)
def test_traces_alone_give_bytes_stage_and_every_cause(run: str, tmp_path: Path) -> None:
    found = ledger_of(SHARED / run, tmp_path / "a")
    check(found, *TABLE[run])
    stage = int(run[5])
    assert stage in found.stages
    assert (found.stage_origin, found.params_origin) == (Origin.INFERRED, Origin.INFERRED)
    assert all(cause.confirmed is None for cause in found.causes)


@pytest.mark.parametrize("stage", range(4))
def test_shipped_captures_confirm_every_cause_by_their_configuration(stage: int, tmp_path: Path) -> None:
    found = ledger_of(ROOT / "traces" / f"stage{stage}", tmp_path / "a")
    check(found, *SHIPPED[f"stage{stage}"])
    assert (found.stages, found.stage_origin, found.params_origin) == ((stage,), Origin.MANIFEST, Origin.MANIFEST)
    for cause in found.causes:
        if cause.code != "control":
            assert cause.confirmed is True
            assert all(key.is_default for key in cause.keys)
    keys = {key.key.partition(".")[2]: key.value for cause in found.causes for key in cause.keys}
    if stage in (1, 2):
        assert keys == {"use_multi_rank_bucket_allreduce": "true"}
    if stage == 3:
        assert keys == {
            "stage3_max_live_parameters": "1000000000",
            "stage3_max_reuse_distance": "1000000000",
            "stage3_param_persistence_threshold": "100000",
        }


def test_every_collective_of_a_shipped_capture_has_its_phase(tmp_path: Path) -> None:
    ledger_of(ROOT / "traces" / "stage3", tmp_path / "a")
    rows = pq.read_table(tmp_path / "a" / "collectives.parquet", columns=["name", "phase"]).to_pylist()
    counted: dict[tuple[str, str], int] = {}
    for row in rows:
        counted[row["name"], row["phase"]] = counted.get((row["name"], row["phase"]), 0) + 1
    assert counted == {
        ("_allgather_base", "forward"): 30,
        ("_allgather_base", "step"): 580,
        ("_reduce_scatter_base", "backward"): 4,
        ("allreduce", "step"): 2,
    }


def found_in(folder: Path, out: Path) -> set[str]:
    analysis, _, _ = analyze([folder], out, AnalyzeOptions(hta=False))
    return {finding.code for finding in analysis.findings}


TRAFFIC_CODES = {"gradients_by_all_reduce", "few_reduce_buckets", "parameters_gathered_again"}


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared captures are not on this machine")
@pytest.mark.parametrize(
    ("run", "codes"),
    [
        ("stage0", set()),
        ("stage1", {"gradients_by_all_reduce", "few_reduce_buckets"}),
        ("stage2", {"gradients_by_all_reduce", "few_reduce_buckets"}),
        ("stage2_reduce", set()),
        ("stage3", {"few_reduce_buckets"}),
        ("stage3_live1e8", {"parameters_gathered_again"}),
    ],
)
def test_what_costs_these_runs_is_found_and_nothing_else_of_the_kind(run: str, codes: set[str], tmp_path: Path) -> None:
    assert found_in(SHARED / run, tmp_path / "a") & TRAFFIC_CODES == codes


def test_the_shipped_stage_1_is_found_to_all_reduce_two_buckets(tmp_path: Path) -> None:
    found = found_in(ROOT / "traces" / "stage1", tmp_path / "a")
    assert found & TRAFFIC_CODES == {"gradients_by_all_reduce", "few_reduce_buckets"}
