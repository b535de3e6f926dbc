"""torch's own engines over gloo, analysed: what they send and hold beside theory, and whether their work is equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.capture.kin import KinCaptures
from zerotrace.analysis.captured import CapturedRun
from zerotrace.analysis.compare import compare
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Analysis, Owner

pytestmark = pytest.mark.capture

SMALL_BUCKETS = {"bucket_cap_mb": 1, "gradient_as_bucket_view": True}
KEPT = {"reshard_after_forward": False}
ENGINES: dict[str, tuple[str, dict[str, Any]]] = {
    "DDP": ("ddp", SMALL_BUCKETS),
    "ZeRO-1 (torch)": ("zero1", {}),
    "FSDP2": ("fsdp2", {}),
    "FSDP2, kept": ("fsdp2", KEPT),
    "ZeRO-0": ("deepspeed", {}),
}


@pytest.fixture(scope="module")
def found(kin: KinCaptures, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Analysis]:
    """Each engine by its scheme, analysed."""
    base = tmp_path_factory.mktemp("analyses")
    return {name: analysed(kin.of(engine, **settings), base / name) for name, (engine, settings) in ENGINES.items()}


def analysed(folder: Path, output: Path) -> Analysis:
    analysis, _, _ = analyze([folder], output, AnalyzeOptions(hta=False, jobs=1))
    return analysis


@pytest.mark.parametrize("name", ENGINES)
def test_steps_close_and_nothing_contradicts_the_manifest(found: dict[str, Analysis], name: str) -> None:
    analysis = found[name]
    assert analysis.partition
    for part in analysis.partition:
        assert part.idle_ns is not None
        assert part.compute_ns + part.exposed_ns + part.copy_only_ns + part.idle_ns == part.span_ns
    assert "stage_contradicts" not in {note.code for note in analysis.diagnostics}
    assert analysis.manifest is not None
    assert analysis.manifest.scheme == name


@pytest.mark.parametrize(
    ("name", "ratio", "theory", "causes"),
    [
        ("DDP", 2.0, 2.0, {}),
        ("ZeRO-0", 2.0, 2.0, {}),
        # DDP's all-reduce, and every parameter broadcast by its rank.
        ("ZeRO-1 (torch)", 3.0, 2.0, {"all_reduce": 1.0}),
        # The root, 246,144 of 2,025,600 parameters, is gathered once.
        ("FSDP2", 3 - 246_144 / 2_025_600, 3.0, {"kept": -246_144 / 2_025_600}),
        ("FSDP2, kept", 2.0, 2.0, {}),
    ],
)
def test_the_wire_ratio_is_what_the_engine_s_collectives_come_to(
    found: dict[str, Analysis], name: str, ratio: float, theory: float, causes: dict[str, float]
) -> None:
    wire = found[name].wire
    assert wire is not None
    assert wire.ratio == pytest.approx(ratio)
    assert (wire.theory_ratio, wire.sizes_by_label, wire.unexplained_bytes) == (theory, True, 0.0)
    assert {cause.code: cause.ratio for cause in wire.causes} == pytest.approx(causes)
    assert all(cause.confirmed for cause in wire.causes)


@pytest.mark.parametrize("name", ENGINES)
def test_what_a_rank_holds_is_what_the_ledger_says(found: dict[str, Analysis], name: str) -> None:
    memory = found[name].memory
    assert memory is not None
    assert memory.resident is not None
    assert memory.deepspeed is not None
    # Step counters of Adam, 4 bytes a parameter.
    assert memory.resident.unexplained_ratio < 1e-4
    assert abs(memory.resident.gap_bytes or 0) < 1000
    assert {gap.owner for gap in memory.resident.owners if gap.gap_bytes} <= {Owner.OTHER}


def test_no_finding_names_a_key_of_deepspeed_s(found: dict[str, Analysis]) -> None:
    for name in set(ENGINES) - {"ZeRO-0"}:
        assert not [finding.knob for finding in found[name].findings if "zero_optimization" in (finding.knob or "")]


def test_losses_say_that_all_engines_do_the_same_work(found: dict[str, Analysis]) -> None:
    runs = []
    for name in ("ZeRO-0", "DDP", "ZeRO-1 (torch)", "FSDP2", "FSDP2, kept"):
        manifest = found[name].manifest
        assert manifest is not None
        runs.append(CapturedRun(name=name, manifest=manifest, analysis=found[name]))
    told = compare(runs)
    assert [run.differences for run in told.runs] == [()] * 5
    checks = [run.loss_check for run in told.runs[1:]]
    assert all(check is not None and check.equal and check.num_steps == 9 for check in checks)
    assert [run.label for run in told.runs] == ["stage 0", "DDP", "ZeRO-1 (torch)", "FSDP2", "FSDP2, kept"]


def test_losses_of_other_work_are_told(found: dict[str, Analysis]) -> None:
    manifest = found["DDP"].manifest
    assert manifest is not None
    other = replace(manifest, losses=tuple((loss or 0) * 1.02 for loss in manifest.losses))
    told = compare([CapturedRun(name="a", manifest=manifest), CapturedRun(name="b", manifest=other)])
    assert len(told.runs[1].differences) == 1
