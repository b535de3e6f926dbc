"""Memory by owner of real captures, against the allocator's own gauges and figures that were worked out by hand."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from zerotrace.analysis.memory.naming import Names, name_blocks, total_by_name
from zerotrace.analysis.memory.replay import Lifetimes, replay
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.ingest.owners import read_owners
from zerotrace.ingest.snapshot import Snapshot, read_snapshot
from zerotrace.model import Owner
from zerotrace.tables import BoolArray

TRACES = Path(__file__).resolve().parents[2] / "traces"
SNAPSHOTS = Path(__file__).resolve().parents[3] / "shared" / "snapshots"
RANKS = [(f"stage{stage}", rank) for stage in range(4) for rank in range(2)]
MIB = 1 << 20
PSI = 774_090_240

needs_snapshots = pytest.mark.skipif(not SNAPSHOTS.is_dir(), reason="the shared snapshots are not on this machine")


@cache
def named(path: Path, owners: Path | None = None) -> tuple[Snapshot, Lifetimes, Names]:
    (snapshot,), _ = read_snapshot(path)
    lifetimes = replay(snapshot)
    storages = read_owners(owners)[0].storages if owners else ()
    return snapshot, lifetimes, name_blocks(snapshot, lifetimes, storages)


def by_owner(lifetimes: Lifetimes, names: Names, chosen: BoolArray) -> dict[Owner, int]:
    found: dict[Owner, int] = {}
    for entry in total_by_name(lifetimes, names, chosen):
        found[entry.owner] = found.get(entry.owner, 0) + entry.bytes
    return found


@pytest.mark.parametrize(("run", "rank"), RANKS)
def test_the_replayed_peak_is_the_gauge_to_the_byte(run: str, rank: int) -> None:
    folder = TRACES / run
    snapshot, lifetimes, names = named(folder / f"rank_{rank}.snapshot.pickle.gz", folder / f"rank_{rank}.owners.json")
    gauges = json.loads((folder / f"rank_{rank}.owners.json").read_text())
    timed = json.loads((folder / "manifest.json").read_text())["ranks"][rank]
    levels = lifetimes.levels()
    peak = by_owner(lifetimes, names, lifetimes.live_at(int(levels.argmax()) - 1))
    resident = by_owner(lifetimes, names, lifetimes.alive)
    assert levels.max() == sum(peak.values()) == gauges["peak_bytes"]
    assert sum(resident.values()) == snapshot.allocated_bytes == gauges["allocated_bytes"]
    assert snapshot.reserved_bytes == gauges["reserved_bytes"] == timed["reserved_bytes"]
    # the timed window is another step: a batch's worth of bytes may differ, no more
    assert sum(peak.values()) == pytest.approx(timed["peak_bytes"], rel=0.01)
    assert sum(resident.values()) == pytest.approx(timed["resident_bytes"], abs=100_000)
    for at in (peak, resident):
        assert at.get(Owner.OTHER, 0) < 0.001 * sum(at.values())
    assert resident[Owner.WORKSPACE] == gauges["workspace_bytes"]


@pytest.mark.parametrize(("run", "rank"), RANKS)
def test_stacks_name_what_addresses_name(run: str, rank: int) -> None:
    # Only what was allocated during the history has a stack: what the peak has on top of the resident states.
    folder = TRACES / run
    path = folder / f"rank_{rank}.snapshot.pickle.gz"
    _, lifetimes, with_owners = named(path, folder / f"rank_{rank}.owners.json")
    _, _, without = named(path)
    in_history = lifetimes.start_event >= 0
    for owner in Owner:
        if owner is not Owner.OTHER:
            both = with_owners.owned_by(owner) & in_history
            by_stack = without.owned_by(owner) & in_history
            assert lifetimes.bytes[both].sum() == pytest.approx(lifetimes.bytes[by_stack].sum(), abs=2 * MIB)


#: Live blocks after the step, in MiB, of captures with N = 2 whose snapshots have stacks alone.
WORKED_OUT = {
    0: {"exp_avg": 3025, "exp_avg_sq": 3025, "master": 3023, "params": 1476, "workspace": 65},
    1: {"exp_avg": 1476, "exp_avg_sq": 1476, "master": 1476, "params": 1476, "workspace": 65},
    2: {"exp_avg": 1476, "exp_avg_sq": 1476, "master": 1476, "params": 1476, "workspace": 65},
    3: {"exp_avg": 1476, "exp_avg_sq": 1476, "master": 1476, "reduce_bucket": 954, "grad_partition": 738,
        "params": 738, "workspace": 64, "gathered_params": 1},
}  # fmt: skip
PEAKS_GIB = {0: 17.755, 1: 13.574, 2: 13.574, 3: 15.114}


@needs_snapshots
@pytest.mark.parametrize("stage", range(4))
def test_stacks_alone_give_the_figures_that_were_worked_out(stage: int) -> None:
    _, lifetimes, names = named(SNAPSHOTS / f"stage{stage}_rank0.pickle.gz")
    resident = by_owner(lifetimes, names, lifetimes.alive)
    assert resident.pop(Owner.OTHER) < 0.001 * sum(resident.values())
    assert {owner.value: round(size / MIB) for owner, size in resident.items()} == WORKED_OUT[stage]
    assert lifetimes.levels().max() / 2**30 == pytest.approx(PEAKS_GIB[stage], abs=0.0005)


@pytest.mark.parametrize("run", ["stage0", "stage1", "stage2", "stage3"])
def test_less_than_1_percent_is_unexplained_between_steps_and_at_the_peak(run: str, tmp_path: Path) -> None:
    analysis, _, _ = analyze([TRACES / run], tmp_path / "out", AnalyzeOptions(hta=False))
    assert not analysis.diagnostics
    memory = analysis.memory
    assert memory is not None
    for found in (memory.resident, memory.peak):
        assert found is not None
        assert found.unexplained_ratio < 0.01
        assert found.deepspeed_bytes == pytest.approx(found.measured_bytes, rel=0.01)
        assert sum(gap.measured_bytes for gap in found.owners) == found.measured_bytes
    for rank in memory.ranks:
        assert rank.peak_bytes == rank.window_peak_bytes == sum(entry.bytes for entry in rank.peak)
        assert rank.peak_bytes == pytest.approx(rank.timed_peak_bytes, rel=0.01)
        assert rank.context_bytes == pytest.approx(1.16 * 2**30, rel=0.01)
