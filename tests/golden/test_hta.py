"""HTA with its own loader, against HTA on our tables and against our own figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.golden.test_shared_captures import CAPTURES, RUNS
from zerotrace import to_hta
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.hta import OVERLAP_TOLERANCE
from zerotrace.model import Attribution
from zerotrace.schema import HTA_IDLE, HTA_KERNELS
from zerotrace.store import read_table

TRACES = Path(__file__).resolve().parents[2] / "traces"
FOLDERS = [TRACES / "stage3", *(CAPTURES / "pcie" / run for run in RUNS)]

# In a process of its own: HTA reads the variable that turns its rounding off when it is imported.
OWN_LOADER = """
import json, logging, sys, warnings
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
logging.getLogger("hta").setLevel(logging.ERROR)
folder = sys.argv[1]
files = {rank: f"{folder}/rank_{rank}.pt.trace.json.gz" for rank in range(2)}
hta = TraceAnalysis(trace_files=files, trace_dir=folder, include_last_profiler_step=True)
def overlap():
    return hta.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].tolist()
def temporal():
    found = hta.get_temporal_breakdown(visualize=False)
    return found[["compute_time(us)", "idle_time(us)", "kernel_time(us)"]].values.tolist()
found = {"all": overlap(), "temporal": temporal()}
sync = hta.t.symbol_table.get_sym_id_map().get("cuda_sync", -1)
for rank, frame in hta.t.traces.items():
    hta.t.traces[rank] = frame[frame["cat"] != sync]
found["without_sync"] = overlap()
print(json.dumps(found))
"""


def own_loader(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", OWN_LOADER, str(folder)],
        env={**os.environ, "HTA_DISABLE_NS_ROUNDING": "1"}, capture_output=True, text=True, check=True, timeout=200,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_hta_on_our_tables_is_hta_and_agrees_with_us(folder: Path, tmp_path: Path) -> None:
    if not folder.is_dir():
        pytest.skip("the shared captures are not on this machine")
    theirs = own_loader(folder)
    analysis, _, _ = analyze([folder], tmp_path / "out", AnalyzeOptions(attribution=Attribution.LAUNCH))
    assert analysis.hta is not None
    idle = read_table(tmp_path / "out", HTA_IDLE).to_pylist()
    assert [(row["stream"], row["idle_ns"]) for row in idle] == [
        (entry.stream, entry.idle_ns)
        for entry in sorted(analysis.hta.idle, key=lambda entry: (entry.rank, entry.stream, entry.reason))
    ]
    assert read_table(tmp_path / "out", HTA_KERNELS)["total_ns"].to_pylist()
    for rank, ours in enumerate(analysis.hta.overlap):
        assert ours.our_overlap_percent is not None
        assert ours.hta_overlap_percent == theirs["all"][rank]
        hta_us = [ours.hta_compute_ns / 1000, ours.hta_idle_ns / 1000, ours.hta_total_ns / 1000]
        # its loader aligns epoch-sized floats, which leaves parts of a nanosecond on each border
        assert hta_us == pytest.approx(theirs["temporal"][rank], rel=1e-5)
        assert abs(ours.our_overlap_percent - theirs["without_sync"][rank]) <= OVERLAP_TOLERANCE
        # HTA counts `Stream Wait Event` rows as compute. Where that moves the overlap, the note says it.
        if abs(ours.our_overlap_percent - theirs["all"][rank]) > OVERLAP_TOLERANCE:
            assert "cuda_sync rows as device work" in (ours.note or "")
        steps = [part for part in analysis.partition if part.rank == rank]
        by_launch = 100 * sum(p.overlapped_ns or 0 for p in steps) / sum(p.comm_ns or 0 for p in steps)
        assert abs(by_launch - theirs["without_sync"][rank]) <= OVERLAP_TOLERANCE


@pytest.mark.filterwarnings("ignore::FutureWarning:hta")  # of pandas, about HTA's own code
def test_to_hta_gives_a_ready_trace_analysis(tmp_path: Path) -> None:
    analysis, folder, _ = analyze([TRACES / "stage3"], tmp_path / "out", AnalyzeOptions(hta=False))
    hta = to_hta(folder)
    assert hta.t.get_ranks() == [0, 1]
    (step,) = {part.step for part in analysis.partition}
    assert hta.t.get_iterations(0) == [step]
    kernels, _ = hta.get_gpu_kernel_breakdown(visualize=False)
    assert "COMMUNICATION" in kernels["kernel_type"].tolist()
    stats = hta.get_cuda_kernel_launch_stats(ranks=[0], visualize=False)
    assert len(stats[0]) > 1000
    in_ns = to_hta(folder, unit="ns").get_temporal_breakdown(visualize=False)
    in_us = hta.get_temporal_breakdown(visualize=False)
    assert in_us["compute_time(us)"].tolist() == pytest.approx([value / 1000 for value in in_ns["compute_time(us)"]])
