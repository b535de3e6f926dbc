"""The committed baseline does the compute work of a rank at stage 0, kernel by kernel."""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from pathlib import Path
from statistics import median

from zerotrace.analysis.run import AnalyzeOptions, analyze

TRACES = Path(__file__).resolve().parents[2] / "traces"

#: Kernels of the model's forward and backward and of AdamW, by what their names have in common.
WORK = {
    "matrix products": re.compile("nvjet|gemm|cutlass"),
    "attention": re.compile("sdpa.*fprop"),
    "attention's backward": re.compile("sdpa.*bprop"),
    "LayerNorm": re.compile("layer_norm"),
    "GELU": re.compile("Gelu"),
    "softmax": re.compile("SoftMax"),
    "AdamW": re.compile("multi_tensor_apply"),
}
NCCL = re.compile("nccl", re.IGNORECASE)


def kernels(run: str) -> tuple[Counter[str], dict[str, float]]:
    """Calls and milliseconds of each kind of kernel on rank 0, over the one step."""
    document = json.loads(gzip.decompress((TRACES / run / "rank_0.pt.trace.json.gz").read_bytes()))
    calls: Counter[str] = Counter()
    times: Counter[str] = Counter()
    for event in document["traceEvents"]:
        if event.get("cat") != "kernel":
            continue
        for kind, pattern in {**WORK, "NCCL": NCCL}.items():
            if pattern.search(event["name"]):
                calls[kind] += 1
                times[kind] += event["dur"]
    return calls, {kind: total / 1000 for kind, total in times.items()}


def test_the_baseline_runs_the_kernels_of_a_rank_at_stage_0() -> None:
    (alone, alone_ms), (rank, rank_ms) = kernels("single"), kernels("stage0")
    assert {kind: alone[kind] for kind in WORK} == {kind: rank[kind] for kind in WORK}
    assert min(alone[kind] for kind in WORK) > 0
    assert (alone["NCCL"], rank["NCCL"]) == (0, 2)
    for kind in WORK:
        assert 0.9 < alone_ms[kind] / rank_ms[kind] < 1.1


def test_the_step_of_a_stage_is_held_against_it(tmp_path: Path) -> None:
    options = AnalyzeOptions(hta=False, baseline=TRACES / "single")
    verdict = analyze([TRACES / "stage0"], tmp_path / "out", options)[0].verdict
    assert verdict.baseline_name == "traces/single"
    assert verdict.study_exposed_ns is not None and verdict.unprofiled_step_ns is not None
    (rank,) = json.loads((TRACES / "single" / "manifest.json").read_text())["ranks"]
    (steps,) = (window["step_ns"] for window in rank["windows"] if window["kind"] == "timed")
    assert verdict.study_exposed_ns == verdict.unprofiled_step_ns - median(steps)
