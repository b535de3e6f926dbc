"""What the instants of a step add to what torch's own engines hold between steps; the largest of them is the peak."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from zerotrace.ledger.activations import Activations
from zerotrace.ledger.lines import Book
from zerotrace.ledger.torch_run import TorchRun
from zerotrace.model import Owner, PeakLedger

_COLLECTIVES = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py"
_TEMPORARY = "torch/optim/adam.py, _multi_tensor_adam"


class Held(Struct, frozen=True, kw_only=True):
    """What is held, and by whom."""

    whole: Sequence[int]
    """Elements of each parameter."""
    mine: Sequence[int]
    """Elements of each tensor whose states the rank keeps."""
    run: TorchRun


def torch_peaks(resident: Book, held: Held, activations: Activations | None) -> tuple[PeakLedger, ...]:
    """The instants at which memory can peak.

    ``loss``: all activations, and the gradients of the loss. ``reduce``: gradients are reduced, half a layer into the
    backward pass; without activations of which nothing is known. ``step``: fp32 gradients for the optimizer, and its
    temporaries.

    Args:
        resident: the lines between two steps.
        held: tensors.
        activations: in detail; ``None`` where unknown.
    """
    loss, reduce, step = (Book(rounded=resident.rounded) for _ in range(3))
    if held.run.engine == "fsdp2":
        _gathered(loss, reduce, held.run)
    if activations is not None:
        source, logits = "runners/decoder.py", activations.logits_bytes
        loss.add(Owner.ACTIVATIONS, "kept for backward", [activations.forward_bytes], 1, source)
        loss.add(Owner.ACTIVATIONS, "gradients of the loss, of the size of the logits", [logits] * 2, 1, source)
        kept = activations.forward_bytes - logits + activations.first_gradients_bytes
        reduce.add(Owner.ACTIVATIONS, "kept for backward, half a layer into it", [kept], 1, source)
        first = activations.first_gradient_elements
        reduce.add(Owner.GRADS, "one gradient not yet in a bucket", [first], held.run.param_bytes, "autograd")
    _step(step, held)
    meanings = (
        ("loss", "between forward and backward, with all activations", loss),
        ("reduce", "gradients are reduced, with nearly all activations", reduce),
        ("step", "the optimizer works, after the activations are gone", step),
    )
    return tuple(
        PeakLedger(instant=name, meaning=meaning, lines=tuple(book.lines), bytes=resident.bytes + book.bytes)
        for name, meaning, book in meanings
    )


def _gathered(loss: Book, reduce: Book, run: TorchRun) -> None:
    """Whole parameters: what is kept for backward; in backward two groups besides, and the gradients of one."""
    groups, each = list(run.group_elements), run.param_bytes
    largest = max(groups[1:], default=0)
    for book in (loss, reduce):
        book.add(
            Owner.GATHERED_PARAMS, "gathered parameters that are kept (reshard_after_forward)", [run.kept_elements],
            each, f"{_COLLECTIVES}, foreach_all_gather_copy_out",
        )  # fmt: skip
    if run.kept_elements < sum(groups):
        loss.add(
            Owner.GATHERED_PARAMS, "the last group, on its way for the backward pass", [largest], each,
            f"{_COLLECTIVES}, foreach_all_gather",
        )  # fmt: skip
        reduce.add(
            Owner.GATHERED_PARAMS, "the group at work and the next one", [largest] * 2, each,
            f"{_COLLECTIVES}, foreach_all_gather",
        )  # fmt: skip
    reduce.add(Owner.REDUCE_BUCKET, "input of a reduce-scatter", [largest], each, f"{_COLLECTIVES}, foreach_reduce")


def _step(book: Book, held: Held) -> None:
    source = "torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, foreach_reduce"
    if held.run.engine == "fsdp2":
        book.add(Owner.GRAD_PARTITION, "fp32 shards of gradients", list(held.mine), 4, source)
    else:
        book.add(Owner.GRADS, "gradients in fp32", list(held.mine), 4, "runners/master_adamw.py, step")
    if held.run.engine == "zero1":
        others = sum(held.whole) - sum(held.mine)
        view = bool(held.run.settings.get("gradient_as_bucket_view"))
        book.add(
            Owner.GRADS, "gradients of the other ranks' shares", [0 if view else others], held.run.param_bytes,
            "autograd",
        )  # fmt: skip
    book.add(Owner.WORKSPACE, "temporaries of torch's Adam (foreach)", list(held.mine), 4, _TEMPORARY)
