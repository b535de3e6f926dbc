"""The owner of every block that lived during a snapshot's history: by address, then by stack."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from zerotrace.analysis.memory.replay import BEFORE, Lifetimes
from zerotrace.analysis.memory.stacks import (
    RULES,
    StackOwner,
    may_be_workspace,
    name_by_free,
    name_stack,
    owners_by_line,
)
from zerotrace.ingest.owners import OwnedStorage, UnlocatedStorage
from zerotrace.ingest.snapshot import Snapshot
from zerotrace.intervals import Int64Array
from zerotrace.model import OwnedBytes, Owner
from zerotrace.tables import BoolArray

#: Sizes that torch asks for cuBLAS and cuBLASLt: 32 MiB on Hopper and later, 8 MiB + 128 KiB elsewhere, 1 MiB for Lt
#: (``aten/src/ATen/cuda/CublasHandlePool.cpp``).
WORKSPACE_BYTES = frozenset({32 << 20, (8 << 20) + (128 << 10), 1 << 20})

#: Places in FSDP2, by how the owners file ends them.
_FSDP_PARTS = {
    ".grad (shard)": "shards of gradients",
    "(shard)": "shards of parameters",
    "(gathered)": "gathered parameters",
    "(resharded after forward)": "parameters resharded after forward",
    "(all-gather)": "buffers of all-gathers",
    "(reduce-scatter)": "buffers of reduce-scatters",
}
_OF_FSDP = re.compile(f"({'|'.join(map(re.escape, _FSDP_PARTS))})$")

_SCALAR_BYTES = 8
_SCALARS = (Owner.OTHER, "single numbers")
_WORKSPACE = (Owner.WORKSPACE, "matrix products (cuBLAS)")

_Name = tuple[Owner, str]


class Names(Struct, frozen=True, eq=False):
    """The name of each lifetime, shape ``(n,)``."""

    distinct: tuple[_Name, ...]
    code: Int64Array
    """Index into ``distinct``."""

    def owned_by(self, owner: Owner) -> BoolArray:
        """Which lifetimes belong to an owner."""
        codes = [code for code, (name, _) in enumerate(self.distinct) if name is owner]
        return np.isin(self.code, codes)


def name_blocks(
    snapshot: Snapshot,
    lifetimes: Lifetimes,
    storages: Sequence[OwnedStorage] = (),
    unlocated: Sequence[UnlocatedStorage] = (),
) -> Names:
    """Names every block.

    What is live at the end and holds a storage of the engine is named by that storage; a storage of which nobody knows
    where it lies, is a block of just its size that holds no other. All else goes by the stack
    that allocated it; where that says no more than that it was in forward or backward, by the stack that freed it
    (a gradient is freed by what reduces it). What survives the step in a matrix product, in one of the sizes that
    torch asks for them, is a workspace.

    Args:
        snapshot: has the stacks.
        lifetimes: the blocks.
        storages: what the owners file lists, of any device; none where there is no such file.
        unlocated: what it lists without addresses.
    """
    names: dict[_Name, int] = {}
    code = np.full(lifetimes.address.size, -1, dtype=np.int64)

    def take(chosen: BoolArray, name: _Name) -> None:
        code[chosen & (code < 0)] = names.setdefault(name, len(names))

    for name, chosen in _by_address(snapshot, lifetimes, storages).items():
        take(chosen, name)
    for name, chosen in _by_size(snapshot, lifetimes, unlocated, code < 0).items():
        take(chosen, name)
    take(lifetimes.requested <= _SCALAR_BYTES, _SCALARS)
    by_stack = [name_stack(stack) for stack in snapshot.stacks]
    candidates = np.array([may_be_workspace(stack) for stack in snapshot.stacks], dtype=bool)
    sizes = np.isin(lifetimes.requested, list(WORKSPACE_BYTES))
    take(lifetimes.alive & sizes & candidates[lifetimes.alloc_stack], _WORKSPACE)
    lines = _names_by_line(lifetimes, by_stack, code < 0)
    for number, found in enumerate(by_stack):
        if found.certain:
            name = lines.get((found.rule, found.line), (found.owner, found.part))
            take(lifetimes.alloc_stack == number, name)
    before = (lifetimes.start_event == BEFORE) & (lifetimes.alloc_stack == 0)
    for number in np.unique(lifetimes.free_stack[code < 0]).tolist():
        freed_here = lifetimes.free_stack == number
        for chosen, from_before in ((freed_here & before, True), (freed_here & ~before & ~lifetimes.alive, False)):
            freed = name_by_free(snapshot.stacks[number], from_before=from_before)
            if freed is not None:
                take(chosen, freed)
    for number, found in enumerate(by_stack):
        take(lifetimes.alloc_stack == number, (found.owner, found.part))
    return Names(tuple(names), code)


def total_by_name(lifetimes: Lifetimes, names: Names, chosen: BoolArray) -> tuple[OwnedBytes, ...]:
    """What the chosen blocks hold by name, most bytes first."""
    codes, count = names.code[chosen], len(names.distinct)
    given = np.zeros(count, dtype=np.int64)
    requested = np.zeros(count, dtype=np.int64)
    np.add.at(given, codes, lifetimes.bytes[chosen])
    np.add.at(requested, codes, lifetimes.requested[chosen])
    blocks = np.bincount(codes, minlength=count)
    found = [
        OwnedBytes(
            owner=owner,
            part=part,
            bytes=int(given[i]),
            requested_bytes=int(requested[i]),
            num_blocks=int(blocks[i]),
        )
        for i, (owner, part) in enumerate(names.distinct)
        if blocks[i]
    ]
    return tuple(sorted(found, key=lambda entry: (-entry.bytes, entry.owner.value, entry.part)))


def part_of_holder(holder: str) -> str:
    """What a storage is, from the place in the engine where it was found, without the numbers of that place."""
    if holder.endswith("(persisted)"):
        return "persisted parameters"
    if holder.startswith("parallel.reducer"):
        return "buckets of DDP"
    if of_fsdp := _OF_FSDP.search(holder):
        return _FSDP_PARTS[of_fsdp[0]]
    if holder.startswith("module."):
        for end, part in ((".ds_tensor", "partitions"), (".ds_secondary_tensor", "secondary partitions"),
                          ("(buffer)", "buffers of the model"), (".grad_accum", "accumulated gradients"),
                          (".grad", "gradients of parameters")):  # fmt: skip
            if holder.endswith(end):
                return part
        return "the model's parameters"
    return re.sub(r"\[\d+\]", "", holder)


def _by_address(
    snapshot: Snapshot, lifetimes: Lifetimes, storages: Sequence[OwnedStorage]
) -> Mapping[_Name, BoolArray]:
    """Lifetimes that hold a storage of the engine at the end, by the name of that storage."""
    here = [s for s in storages if s.device in (f"cuda:{snapshot.device}", f"xpu:{snapshot.device}")]
    alive = np.flatnonzero(lifetimes.alive)
    order = alive[np.argsort(lifetimes.address[alive], kind="stable")]
    if not here or not order.size:
        return {}
    starts = lifetimes.address[order]
    addresses = np.array([storage.address for storage in here], dtype=np.int64)
    place = np.searchsorted(starts, addresses, side="right") - 1
    inside = (place >= 0) & (addresses < starts[place] + lifetimes.bytes[order][place])
    found: dict[_Name, BoolArray] = {}
    # The largest storage decides where several lie in one block; storages come by falling size.
    for storage, where, holds in zip(here, order[np.maximum(place, 0)].tolist(), inside.tolist()):
        if holds:
            name = (storage.owner, part_of_holder(storage.holder))
            found.setdefault(name, np.zeros(lifetimes.address.size, dtype=bool))[where] = True
    return found


def _by_size(
    snapshot: Snapshot, lifetimes: Lifetimes, unlocated: Sequence[UnlocatedStorage], free: BoolArray
) -> Mapping[_Name, BoolArray]:
    """For each storage without an address, a live block of its size; the one that was allocated first."""
    here = [s for s in unlocated if s.device in (f"cuda:{snapshot.device}", f"xpu:{snapshot.device}")]
    candidates = np.flatnonzero(free & lifetimes.alive)
    candidates = candidates[np.argsort(lifetimes.start_event[candidates], kind="stable")]
    waiting: dict[int, list[int]] = {}
    for block in candidates.tolist():
        waiting.setdefault(int(lifetimes.requested[block]), []).append(block)
    found: dict[_Name, BoolArray] = {}
    for storage in here:
        if blocks := waiting.get(storage.bytes):
            name = (storage.owner, part_of_holder(storage.holder))
            found.setdefault(name, np.zeros(lifetimes.address.size, dtype=bool))[blocks.pop(0)] = True
    return found


def _names_by_line(
    lifetimes: Lifetimes, by_stack: Sequence[StackOwner], chosen: BoolArray
) -> dict[tuple[int, int], _Name]:
    """For rules whose function allocates several things: what each line of it allocates."""
    used = set(np.unique(lifetimes.alloc_stack[chosen]).tolist())
    lines: dict[int, set[int]] = {}
    for number, found in enumerate(by_stack):
        if number in used and found.certain and len(RULES[found.rule].owners) > 1:
            lines.setdefault(found.rule, set()).add(found.line)
    named = {(rule, line): name for rule, where in lines.items() for line, name in owners_by_line(rule, where).items()}
    for (rule, line), (owner, _) in list(named.items()):
        if owner is Owner.REDUCE_BUCKET and len(lines[rule]) == 1 and _is_shard(lifetimes, by_stack, rule):
            named[rule, line] = RULES[rule].owners[1]
    return named


def _is_shard(lifetimes: Lifetimes, by_stack: Sequence[StackOwner], rule: int) -> bool:
    """Whether the one thing that stage 3's setup allocated is the gradient shard: as large as the partition.

    Without ``contiguous_gradients`` there is no bucket, with ``offload_optimizer`` no shard on the device.
    """
    stacks = {"here": [n for n, f in enumerate(by_stack) if f.certain and f.rule == rule],
              "params": [n for n, f in enumerate(by_stack) if f.certain and f.owner is Owner.PARAMS]}  # fmt: skip
    here, params = (
        int(lifetimes.requested[lifetimes.alive & np.isin(lifetimes.alloc_stack, numbers)].sum())
        for numbers in stacks.values()
    )
    return bool(params) and here in (params, 2 * params)
