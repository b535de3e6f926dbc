"""Allocator snapshots: what is read, what is refused, and the history replayed to the byte."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.allocator import MIB, Stack, TinyAllocator
from zerotrace.analysis.memory.naming import name_blocks, part_of_holder, total_by_name
from zerotrace.analysis.memory.replay import BEFORE, replay
from zerotrace.errors import SnapshotError
from zerotrace.ingest.owners import OwnedStorage
from zerotrace.ingest.pickles import PickleLimits
from zerotrace.ingest.snapshot import Snapshot, read_snapshot
from zerotrace.model import Owner

STAGE3 = "deepspeed/runtime/zero/stage3.py"
ENGINE = (("deepspeed/runtime/engine.py", "_configure_zero_optimizer", 1), ("train.py", "<module>", 1))


def stack(file: str, function: str, line: int = 1, *outer: tuple[str, str, int]) -> Stack:
    return ((file, function, line), *outer)


FORWARD = stack("torch/nn/modules/linear.py", "forward", 134, ("train.py", "forward", 9))
BACKWARD = stack("deepspeed/runtime/zero/linear.py", "backward", 126)


def read(memory: TinyAllocator, folder: Path) -> Snapshot:
    (snapshot,), _ = read_snapshot(memory.write(folder / "rank_0.snapshot.pickle.gz"))
    return snapshot


def by_owner(memory: TinyAllocator, folder: Path, *, storages: tuple[OwnedStorage, ...] = ()) -> dict[Owner, int]:
    snapshot = read(memory, folder)
    lifetimes = replay(snapshot)
    found: dict[Owner, int] = {}
    for entry in total_by_name(lifetimes, name_blocks(snapshot, lifetimes, storages), lifetimes.alive):
        found[entry.owner] = found.get(entry.owner, 0) + entry.bytes
    return found


SIZES = (1, 500, 40_000, MIB, MIB + 1, 25 * MIB // 2, 25 * MIB)
STEPS = st.lists(st.tuples(st.integers(0, 7), st.sampled_from(SIZES), st.integers(0, 3 * MIB)), max_size=60)


@settings(deadline=None)
@given(STEPS, st.integers(0, 20))
def test_the_replay_finds_the_size_of_every_block_and_the_peak(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]], history_from: int
) -> None:
    memory = TinyAllocator()
    held: list[int] = []
    sizes: dict[int, list[int]] = {}
    for number, (kind, size, extra) in enumerate(steps):
        if number == history_from:
            memory.record()
        if held and kind < 3:
            memory.free(held.pop(extra % len(held)))
        else:
            held.append(memory.allocate(size + extra))
            sizes.setdefault(held[-1], []).append(memory.block(held[-1]).size)
    if memory.events is None:
        memory.record()
    if not memory.segments:
        return
    snapshot = read(memory, tmp_path_factory.mktemp("snapshot"))
    lifetimes = replay(snapshot)
    levels = lifetimes.levels()
    assert levels[-1] == snapshot.allocated_bytes == memory.allocated
    assert levels.max() == memory.peak
    for address, given_sizes in sizes.items():
        mine = np.flatnonzero(lifetimes.address == address)
        found = lifetimes.bytes[mine[np.argsort(lifetimes.start_event[mine])]].tolist()
        assert found == given_sizes[len(given_sizes) - len(found) :]


def test_what_was_there_before_the_history_counts_from_the_beginning(tmp_path: Path) -> None:
    memory = TinyAllocator()
    kept, freed = memory.allocate(3 * MIB), memory.allocate(5 * MIB)
    memory.record()
    memory.free(freed)
    late = memory.allocate(MIB // 2)
    lifetimes = replay(read(memory, tmp_path))
    assert lifetimes.levels().tolist()[0] == 8 * MIB
    assert dict(zip(lifetimes.address.tolist(), (lifetimes.start_event == BEFORE).tolist())) == {
        kept: True,
        freed: True,
        late: False,
    }


def test_a_snapshot_without_history_has_blocks_and_no_events(tmp_path: Path) -> None:
    memory = TinyAllocator()
    memory.allocate(3 * MIB)
    snapshot = read(memory, tmp_path)
    assert (snapshot.allocated_bytes, snapshot.reserved_bytes) == (3 * MIB, 20 * MIB)
    assert replay(snapshot).levels().tolist() == [3 * MIB]


def test_owners_by_stack(tmp_path: Path) -> None:
    memory = TinyAllocator()
    memory.record()
    expected = {
        Owner.MASTER: memory.allocate(4 * MIB, stack(STAGE3, "_create_fp32_partitions", 1172, *ENGINE)),
        Owner.PARAMS: memory.allocate(2 * MIB, stack("deepspeed/runtime/zero/utils.py", "defragment", 237, *ENGINE)),
        Owner.REDUCE_BUCKET: memory.allocate(6 * MIB, stack(STAGE3, "_setup_for_real_optimizer", 782, *ENGINE)),
        Owner.GRAD_PARTITION: memory.allocate(2 * MIB, stack(STAGE3, "_setup_for_real_optimizer", 791, *ENGINE)),
        Owner.EXP_AVG: memory.allocate(4 * MIB, stack("torch/optim/adam.py", "_init_group", 178)),
        Owner.EXP_AVG_SQ: memory.allocate(4 * MIB, stack("torch/optim/adam.py", "_init_group", 182)),
        Owner.WORKSPACE: memory.allocate(32 * MIB, FORWARD),
        Owner.ACTIVATIONS: memory.allocate(7 * MIB, FORWARD),
        Owner.OTHER: memory.allocate(9 * MIB, stack("train.py", "load_batch")),
    }
    assert by_owner(memory, tmp_path) == {owner: memory.block(at).size for owner, at in expected.items()}


def test_frames_of_c_plus_plus_are_left_out(tmp_path: Path) -> None:
    engine = ("torch/csrc/autograd/engine.cpp", "torch::autograd::Engine::thread_main(step)", 99)
    memory = TinyAllocator()
    memory.record()
    memory.allocate(2 * MIB, (("??", "c10::Allocator::allocate", 0), engine, *FORWARD))
    memory.allocate(3 * MIB, (("??", "c10::Allocator::allocate", 0), engine))
    snapshot = read(memory, tmp_path)
    assert snapshot.stacks == ((), FORWARD)
    assert by_owner(memory, tmp_path) == {Owner.ACTIVATIONS: 5 * MIB}


@pytest.mark.parametrize(("size", "owner"), [(2 * MIB, Owner.GRAD_PARTITION), (6 * MIB, Owner.REDUCE_BUCKET)])
def test_of_stage_3_with_one_of_bucket_and_shard_the_size_decides(size: int, owner: Owner, tmp_path: Path) -> None:
    memory = TinyAllocator()
    memory.record()
    memory.allocate(2 * MIB, stack("deepspeed/runtime/zero/utils.py", "defragment", 237))
    memory.allocate(size, stack(STAGE3, "_setup_for_real_optimizer", 790))
    assert by_owner(memory, tmp_path) == {Owner.PARAMS: 2 * MIB, owner: size}


def test_gradients_are_told_from_other_work_of_autograd_by_who_frees_them(tmp_path: Path) -> None:
    memory = TinyAllocator()
    memory.record()
    gradient, between, workspace = memory.allocate(4 * MIB), memory.allocate(2 * MIB), memory.allocate(32 * MIB)
    memory.free(gradient, stack(STAGE3, "__add_grad_to_ipg_bucket", 1640))
    memory.free(between)
    snapshot = read(memory, tmp_path)
    lifetimes = replay(snapshot)
    names = name_blocks(snapshot, lifetimes)
    peak = total_by_name(lifetimes, names, lifetimes.live_at(int(lifetimes.levels().argmax()) - 1))
    assert {entry.owner: entry.bytes for entry in peak} == {
        Owner.GRADS: 4 * MIB,
        Owner.ACTIVATIONS: 2 * MIB,
        Owner.WORKSPACE: 32 * MIB,
    }
    assert memory.block(workspace).live


def test_the_address_of_a_storage_decides_before_its_stack(tmp_path: Path) -> None:
    memory = TinyAllocator()
    memory.record()
    address = memory.allocate(3 * MIB, FORWARD)
    kept = OwnedStorage(address, 3 * MIB, "cuda:0", Owner.GATHERED_PARAMS, "module.a.weight (persisted)")
    elsewhere = OwnedStorage(address, 3 * MIB, "cuda:1", Owner.MASTER, "optimizer.fp32_groups[0]")
    on_host = OwnedStorage(address, 3 * MIB, "cpu", Owner.MASTER, "optimizer.fp32_groups[1]")
    assert by_owner(memory, tmp_path, storages=(elsewhere, on_host)) == {Owner.ACTIVATIONS: 3 * MIB}
    assert by_owner(memory, tmp_path, storages=(elsewhere, on_host, kept)) == {Owner.GATHERED_PARAMS: 3 * MIB}


@pytest.mark.parametrize(
    ("holder", "part"),
    [
        ("optimizer.state[17].exp_avg", "optimizer.state.exp_avg"),
        ("optimizer.ipg_buckets[bfloat16].buffer", "optimizer.ipg_buckets[bfloat16].buffer"),
        ("module.blocks.9.fc.bias (persisted)", "persisted parameters"),
        ("module.tokens.weight.ds_tensor", "partitions"),
        ("module.tokens.weight.grad", "gradients of parameters"),
        ("module.tokens.weight", "the model's parameters"),
    ],
)
def test_holders_are_named_without_numbers(holder: str, part: str) -> None:
    assert part_of_holder(holder) == part


def refusal(path: Path, limits: PickleLimits | None = None) -> str:
    with pytest.raises(SnapshotError, match=path.name) as caught:
        read_snapshot(path, limits)
    assert caught.value.hint, "what to do is said, too"
    return caught.value.code


def test_a_gzip_bomb_is_met_by_its_limit(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.pickle.gz"
    bomb.write_bytes(gzip.compress(b"\x80\x04" + b"N0" * 20_000_000 + b"N."))
    assert bomb.stat().st_size < 200_000
    assert refusal(bomb, PickleLimits(unpacked_bytes=1 << 20)) == "pickle_too_large"
    nested = tmp_path / "members.pickle.gz"
    nested.write_bytes(gzip.compress(b"\x80\x04" + b"N0" * 300_000) * 4)
    assert refusal(nested, PickleLimits(unpacked_bytes=1 << 20)) == "pickle_too_large"
    assert refusal(nested, PickleLimits(file_bytes=100)) == "pickle_too_large"


def test_parts_that_are_shared_a_million_times_are_not_walked(tmp_path: Path) -> None:
    block = {"size": 512, "state": "active_allocated"}
    segment = {"device": 0, "address": 0, "total_size": 512, "blocks": [block] * 3000}
    path = tmp_path / "shared.pickle"
    path.write_bytes(pickle.dumps({"segments": [segment] * 3000, "device_traces": []}))
    assert path.stat().st_size < 50_000
    assert refusal(path, PickleLimits(num_containers=10_000)) == "snapshot_invalid"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([], "it holds one list where a dict is expected"),
        (None, "it holds nothing where a dict is expected"),
        ({}, "segments is missing"),
        ({"segments": 3}, "of another kind than torch writes"),
        ({"segments": []}, "a snapshot without segments"),
        ({"segments": [{"device": 0}]}, "blocks is missing in a part of it"),
        ({"segments": [{"device": 0, "address": "0", "total_size": 1, "blocks": []}]}, "is no whole number"),
        ({"segments": [{"device": 0, "address": 1 << 70, "total_size": 1, "blocks": []}]}, "of another kind"),
        ({"segments": [{"device": 0, "address": 1.5, "total_size": 1, "blocks": []}]}, "is no whole number"),
        (
            {"segments": [{"device": 0, "address": 1, "total_size": 1, "blocks": []}], "device_traces": [[{}]]},
            "action is missing in a part of it",
        ),
        ({"segments": [{"device": [], "address": 1, "total_size": 1, "blocks": []}]}, "of another kind"),
    ],
    ids=repr,
)
def test_a_sound_pickle_of_something_else_is_no_snapshot(content: Any, said: str, tmp_path: Path) -> None:
    path = tmp_path / "other.pickle"
    path.write_bytes(pickle.dumps(content))
    assert refusal(path) == "snapshot_invalid"
    with pytest.raises(SnapshotError, match=said) as caught:
        read_snapshot(path)
    assert "Error" not in str(caught.value)


def test_damaged_and_missing_files_are_said_to_be(tmp_path: Path) -> None:
    whole = TinyAllocator()
    whole.allocate(MIB)
    path = whole.write(tmp_path / "rank_0.snapshot.pickle.gz")
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    assert refusal(path) == "pickle_invalid"
    path.write_bytes(data[:10] + b"\xff" * 20 + data[30:])
    assert refusal(path) == "pickle_invalid"
    assert refusal(tmp_path / "absent.pickle") == "unreadable"
    assert refusal(tmp_path) == "unreadable"
