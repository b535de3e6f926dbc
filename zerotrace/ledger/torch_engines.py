"""What torch's own engines hold on each rank: line by line, each with its source.

Read in torch 2.4 to 2.13, with the optimizer of ``runners/``: Adam on fp32 master weights. Held against captures on
CPUs in ``tests/capture``, and against captures on GPUs in ``tests/golden``.
"""

from __future__ import annotations

from collections.abc import Sequence

from zerotrace.ledger.activations import Activations
from zerotrace.ledger.lines import Book
from zerotrace.ledger.shapes import Shapes
from zerotrace.ledger.torch_peaks import Held, torch_peaks
from zerotrace.ledger.torch_run import TorchRun
from zerotrace.ledger.workspaces import add_workspaces
from zerotrace.model import EngineLedger, Owner

_REDUCER = "torch/csrc/distributed/c10d/reducer.cpp, initialize_buckets"
_ZERO = "torch/distributed/optim/zero_redundancy_optimizer.py"
_FSDP = "torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _init_sharded_param"
_MASTER = "runners/master_adamw.py, __init__"
_ADAM = "torch/optim/adam.py, _init_group"

_MOMENTS = ((Owner.EXP_AVG, "first moment"), (Owner.EXP_AVG_SQ, "second moment"))


def torch_ledger(
    shapes: Shapes,
    run: TorchRun,
    world_size: int,
    *,
    device: str | None = None,
    activations: Activations | None = None,
) -> EngineLedger:
    """The ledger of the rank that holds most between two steps, and what the instants of a step add to it.

    Args:
        shapes: the model.
        run: engine and settings.
        world_size: N.
        device: name of the GPU; ``cpu`` for no workspaces and no rounding.
        activations: what the forward pass keeps; ``None`` where unknown.
    """
    book = Book(rounded=device != "cpu" and shapes.numels is not None)
    notes = ["the optimizer is taken to be that of zerotrace's runners: Adam on fp32 master weights"]
    if shapes.numels is None:
        notes.append("sizes of single parameters are unknown: rounding and the split of whole parameters are left out")
    whole = tuple(shapes.numels or (shapes.num_params,))
    mine = _share(whole, run, world_size, known=shapes.numels is not None)
    if run.engine == "fsdp2":
        _fully_sharded(book, mine, world_size)
    else:
        _whole_parameters(book, whole, mine, run, world_size)
    add_workspaces(book, device, with_lt=True)
    held = Held(whole=whole, mine=mine, run=run)
    return EngineLedger(
        engine=run.engine,
        stage=run.stage,
        world_size=world_size,
        num_params=shapes.num_params,
        lines=tuple(book.lines),
        bytes=book.bytes,
        peaks=torch_peaks(book, held, activations),
        activations_bytes=activations.forward_bytes if activations is not None else None,
        estimate_bytes=None,
        estimate_source="torch has no estimator of its own",
        notes=tuple(notes),
    )


def deal_out(numels: Sequence[int], world_size: int) -> list[list[int]]:
    """Elements of the parameters that ZeroRedundancyOptimizer gives each rank.

    Whole ones, the largest first, each to the rank that has least so far. Source:
    ``torch/distributed/optim/zero_redundancy_optimizer.py``, ``_partition_parameters``.
    """
    shares: list[list[int]] = [[] for _ in range(world_size)]
    for numel in sorted(numels, reverse=True):
        min(shares, key=sum).append(numel)
    return shares


def _share(whole: Sequence[int], run: TorchRun, world: int, *, known: bool) -> tuple[int, ...]:
    """Elements of the tensors whose optimizer states a rank keeps, on the rank that has most."""
    if run.engine == "zero1":
        if not known:
            return (-(-sum(whole) // world),)
        # Of equal shares, that of more tensors takes more.
        book, shares = Book(), deal_out(whole, world)
        fullest = max((sum(share), book.given(share, 4), tuple(share)) for share in shares)
        return fullest[2]
    if run.engine == "fsdp2":
        shards = [-(-numel // world) for numel in whole]
        # Each is padded to whole rows: what single sizes do not tell, groups do.
        beyond = -(-sum(run.group_elements) // world) - sum(shards)
        return (*shards, beyond) if beyond > 0 else tuple(shards)
    return tuple(whole)


def _whole_parameters(book: Book, whole: Sequence[int], mine: Sequence[int], run: TorchRun, world: int) -> None:
    """DDP, with or without ZeroRedundancyOptimizer, or one device: parameters of the forward pass are whole."""
    flat = run.engine == "zero1" and bool(run.settings.get("parameters_as_bucket_view"))
    if flat:
        held = [sum(share) for share in deal_out(whole, world)]
        book.add(Owner.PARAMS, "one bucket a rank", held, run.param_bytes, f"{_ZERO}, _build_param_buckets")
    else:
        book.add(Owner.PARAMS, "parameters", list(whole), run.param_bytes, "torch/nn/modules/module.py")
    what = "fp32 copies of this rank's share" if run.engine == "zero1" else "fp32 copies, one a parameter"
    book.add(Owner.MASTER, what, list(mine), 4, _MASTER)
    for owner, what in _MOMENTS:
        book.add(owner, what, list(mine), 4, _ADAM)
    if run.engine != "single":
        sizes = run.bucket_bytes or (sum(whole) * run.param_bytes,)
        book.add(Owner.REDUCE_BUCKET, "buckets, kept between steps (bucket_cap_mb)", list(sizes), 1, _REDUCER)
    book.note(Owner.GRADS, "gradients: freed by the step that used them", "runners/master_adamw.py, step")


def _fully_sharded(book: Book, mine: Sequence[int], world: int) -> None:
    """FSDP2: what is sharded is fp32, the master weights; whole parameters are there while they are used."""
    book.add(Owner.MASTER, f"fp32 shards, each parameter padded to {world} equal ones", list(mine), 4, _FSDP)
    for owner, what in _MOMENTS:
        book.add(owner, what, list(mine), 4, _ADAM)
    source = "torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, reshard"
    book.note(Owner.GATHERED_PARAMS, "gathered parameters: freed after backward", source)
    book.note(Owner.GRAD_PARTITION, "shards of gradients: freed by zero_grad", "runners/fsdp2.py, step")
