"""Traces that others have published: read without an error, and their tools' figures met or the difference named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from zerotrace.analysis.launches import find_launches
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.hta import OVERLAP_TOLERANCE
from zerotrace.ingest.rank import ingest_rank
from zerotrace.intervals import Intervals
from zerotrace.model import Category, Level
from zerotrace.tables import BoolArray, codes_and_names, equals, ints, optional_ints

PUBLIC = Path(__file__).resolve().parents[3] / "shared" / "public"

pytestmark = pytest.mark.skipif(not PUBLIC.is_dir(), reason="the published traces are not on this machine")

#: What is said of each, beside infos. One of eight ranks, or one of several, is all that was published of most.
WARNED = {
    "a100_ddp": {"missing_ranks"},
    "b200_vllm": {"missing_ranks", "no_profiler_step"},
    "dlrm_8ranks": {"profiler_start_skew"},
    "resnet_rccl": {"missing_ranks"},
    "v100_216k_events": {"missing_ranks"},
}

#: Operators of a forward pass that this model runs again inside of its backward pass.
FORWARD = ("aten::miopen_convolution", "aten::native_batch_norm", "aten::clamp_min_", "aten::add_")


@pytest.mark.parametrize("name", WARNED)
def test_a_published_trace_is_read_and_hta_agrees(name: str, tmp_path: Path) -> None:
    analysis, _, _ = analyze([PUBLIC / name], tmp_path / "out", AnalyzeOptions(jobs=1))
    assert {note.code for note in analysis.diagnostics if note.level is not Level.INFO} == WARNED[name]
    assert analysis.hta is not None
    assert len(analysis.hta.overlap) == len(analysis.sources)
    for rank in analysis.hta.overlap:
        assert rank.our_overlap_percent == pytest.approx(rank.hta_overlap_percent, abs=OVERLAP_TOLERANCE)
        assert (rank.our_idle_ns, rank.our_total_ns) == (rank.hta_idle_ns, rank.hta_total_ns)
        if rank.our_compute_ns != rank.hta_compute_ns:
            # HTA knows communication by `nccl` alone.
            assert (name, "multimem_all_reduce_kernel" in (rank.note or "")) == ("b200_vllm", True)


def test_tracelens_figures_of_the_rccl_trace() -> None:
    """TraceLens: 47.200 ms of communication, 38.343 ms of it exposed, outside of recomputation.

    It counts rows with an operator alone: the first five of seventeen collectives were called before the trace began
    and have none, so that our total is 71.517 ms. Over its rows communication is the same to the microsecond. Beside
    all compute 35.283 ms are exposed. It leaves the recomputation out of compute; which operators that is, is a guess
    in both tools: without the forward operators that run inside the backward pass it is 38.446 ms here, 0.3 % more.
    """
    events = ingest_rank(PUBLIC / "resnet_rccl" / "rank_0.json.gz").events
    start = ints(events, "start_ns")
    end = start + ints(events, "dur_ns")
    external_id, called = optional_ints(events, "external_id")

    def union(rows: BoolArray) -> Intervals:
        return Intervals.union(start[rows], end[rows])

    comm, compute = (equals(events, "category", kind.value) for kind in (Category.COMM, Category.COMPUTE))
    assert int(comm.sum()) == 17
    assert union(comm).length == 71_516_523
    theirs = union(comm & called)
    assert theirs.length / 1e6 == pytest.approx(47.200, abs=0.0005)
    assert (theirs - union(compute)).length / 1e6 == pytest.approx(35.283, abs=0.0005)

    names, distinct = codes_and_names(events, "name")
    operators = equals(events, "cat", "cpu_op")
    forward = operators & np.isin(names, [distinct.index(name) for name in FORWARD])
    backward = operators & np.isin(
        names, [code for code, name in enumerate(distinct) if name.startswith("autograd::engine::evaluate_function")]
    )
    launch = find_launches(events)
    repeated = compute & called & np.isin(external_id, external_id[forward])
    repeated &= union(backward).holds(launch.start)
    exposed = (theirs - union(compute & ~repeated)).length / 1e6
    assert exposed == pytest.approx(38.446, abs=0.0005)
    assert exposed == pytest.approx(38.343, rel=0.003)
