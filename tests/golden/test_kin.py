"""torch's own engines beside DeepSpeed's stages, on the captures of two GPUs that ship: GPT-2 Large, bf16."""

from __future__ import annotations

from pathlib import Path

import pytest

from zerotrace.analysis.captured import CapturedRun
from zerotrace.analysis.compare import compare
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Analysis
from zerotrace.store import require_manifest

TRACES = Path(__file__).resolve().parents[2] / "traces"
PSI = 774_090_240
#: Embeddings and the last LayerNorm, which FSDP2 keeps from forward to backward.
ROOT = 65_702_400

ENGINES = ("ddp", "zero1", "fsdp2", "fsdp2-kept")
STAGES = ("stage0", "stage1", "stage3")


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Analysis]:
    base = tmp_path_factory.mktemp("kin")
    return {name: analyze([TRACES / name], base / name, AnalyzeOptions(hta=False))[0] for name in ENGINES}


@pytest.mark.parametrize(
    ("name", "theory", "causes"),
    [
        ("ddp", 2.0, {}),
        ("zero1", 2.0, {"all_reduce": 1.0}),
        ("fsdp2", 3.0, {"kept": -ROOT / PSI}),
        ("fsdp2-kept", 2.0, {}),
    ],
)
def test_what_is_sent_is_theory_and_known_causes_to_the_byte(
    found: dict[str, Analysis], name: str, theory: float, causes: dict[str, float]
) -> None:
    wire = found[name].wire
    assert wire is not None
    assert wire.ratio == pytest.approx(theory + sum(causes.values()), abs=1e-6)
    assert (wire.theory_ratio, wire.sizes_by_label, wire.unexplained_bytes) == (theory, False, 0.0)
    assert {cause.code: cause.ratio for cause in wire.causes} == pytest.approx(causes, abs=1e-6)
    assert all(cause.confirmed for cause in wire.causes)


@pytest.mark.parametrize("name", ENGINES)
def test_memory_is_explained_between_steps_and_at_the_peak(found: dict[str, Analysis], name: str) -> None:
    memory = found[name].memory
    assert memory is not None
    for one in (memory.resident, memory.peak):
        assert one is not None
        assert one.unexplained_ratio < 0.001
        # With the allocator's rounding, of which places that others had left give more or less than fresh segments.
        assert abs(one.gap_bytes or 0) < 0.03 * one.measured_bytes


@pytest.mark.parametrize("name", ENGINES)
def test_findings_name_settings_of_torch_s(found: dict[str, Analysis], name: str) -> None:
    knobs = [finding.knob or "" for finding in found[name].findings]
    assert not any("zero_optimization" in knob or "deepspeed" in knob.lower() for knob in knobs)
    assert "stage_contradicts" not in {note.code for note in found[name].diagnostics}


def test_all_engines_do_the_work_of_the_stages(found: dict[str, Analysis]) -> None:
    runs = [CapturedRun(name=name, manifest=require_manifest(TRACES / name)) for name in ("single", *STAGES)]
    runs += [CapturedRun(name=name, manifest=require_manifest(TRACES / name), analysis=found[name]) for name in ENGINES]
    told = compare(runs)
    assert [run.differences for run in told.runs] == [()] * len(runs)
    assert [run.label for run in told.runs] == [
        "single device", "stage 0", "stage 1", "stage 3", "DDP", "ZeRO-1 (torch)", "FSDP2", "FSDP2, kept",
    ]  # fmt: skip
    checks = {run.label: run.loss_check for run in told.runs if run.loss_check is not None}
    assert all(check.equal for check in checks.values())
    pairs = [(told.repeats[d.before].label, told.repeats[d.after].label) for d in told.deltas if not d.is_rung]
    assert pairs == [
        ("stage 0", "DDP"), ("stage 1", "ZeRO-1 (torch)"), ("stage 3", "FSDP2"), ("FSDP2", "FSDP2, kept"),
    ]  # fmt: skip
