"""What the instants of a step add to what is resident; the largest of them is the peak."""

from __future__ import annotations

from zerotrace.ledger.activations import Activations
from zerotrace.ledger.lines import Book
from zerotrace.ledger.settings import Settings
from zerotrace.ledger.shapes import Shapes
from zerotrace.model import Owner, PeakLedger

_STAGE12 = "runtime/zero/stage_1_and_2.py"
_STAGE3 = "runtime/zero/stage3.py"
_COORDINATOR = "runtime/zero/partitioned_param_coordinator.py"
_TEMPORARY = "torch/optim/adam.py, _multi_tensor_adam"


def peak_ledgers(
    resident: Book, shapes: Shapes, settings: Settings, world: int, activations: Activations | int | None
) -> tuple[PeakLedger, ...]:
    """The instants at which memory can peak.

    ``loss``: all activations, and the gradients of the loss. ``reduce``: the first bucket is filled while nearly all
    activations are still there (at stage 0: after backward, without them). ``step``: gradients for the optimizer and
    its temporaries.

    Args:
        resident: the lines between two steps.
        shapes: the model.
        settings: the configuration.
        world: N.
        activations: in detail, as one number of bytes, or unknown.
    """
    loss, reduce, step = (Book(rounded=resident.rounded) for _ in range(3))
    if settings.stage == 3:
        for book in (loss, reduce):
            _gathered(book, shapes, settings)
    _activations(loss, reduce, settings, activations)
    _reduction(reduce, shapes, settings, activations)
    _step(step, shapes, settings, world)
    meanings = (
        ("loss", "between forward and backward, with all activations", loss),
        ("reduce", "gradients are reduced; from stage 1 on with nearly all activations", reduce),
        ("step", "the optimizer works, after the activations are gone", step),
    )
    return tuple(
        PeakLedger(instant=name, meaning=meaning, lines=tuple(book.lines), bytes=resident.bytes + book.bytes)
        for name, meaning, book in meanings
    )


def _gathered(book: Book, shapes: Shapes, settings: Settings) -> None:
    """Parameters that stage 3 has gathered: all, or as many as may live, and the buffer of one coalesced gather."""
    live = min(shapes.num_params, settings.max_live_parameters)
    book.add(
        Owner.GATHERED_PARAMS, "gathered parameters (stage3_max_live_parameters)", [live], settings.param_bytes,
        f"{_COORDINATOR}, fetch_sub_module",
    )  # fmt: skip
    book.add(
        Owner.GATHERED_PARAMS, "flat buffer of one gather (stage3_prefetch_bucket_size)",
        [min(settings.prefetch_bucket_size, shapes.num_params)], settings.param_bytes,
        "runtime/zero/partition_parameters.py, _all_gather_dtype",
    )  # fmt: skip


def _activations(loss: Book, reduce: Book, settings: Settings, activations: Activations | int | None) -> None:
    # stage 0 reduces after backward, when the activations are gone
    with_reduction = settings.stage > 0
    if isinstance(activations, Activations):
        source, logits = "runners/gpt2.py", activations.logits_bytes
        loss.add(Owner.ACTIVATIONS, "kept for backward", [activations.forward_bytes], 1, source)
        loss.add(Owner.ACTIVATIONS, "gradients of the loss, of the size of the logits", [logits] * 2, 1, source)
        if with_reduction:
            kept = activations.forward_bytes - logits + activations.first_gradients_bytes
            reduce.add(Owner.ACTIVATIONS, "kept for backward, half a layer into it", [kept], 1, source)
    elif activations is not None:
        for book in (loss, reduce) if with_reduction else (loss,):
            book.add(Owner.ACTIVATIONS, "kept for backward, as given", [activations], 1, "given")


def _reduction(book: Book, shapes: Shapes, settings: Settings, activations: Activations | int | None) -> None:
    each, source = settings.param_bytes, f"{_STAGE12}, setup_buckets"
    if settings.stage == 0:
        book.add(Owner.GRADS, "gradients", list(shapes.numels or (shapes.num_params,)), each, "autograd")
        copied = min(settings.reduce_bucket_size, shapes.num_params)
        book.add(Owner.REDUCE_BUCKET, "flat copy of one bucket", [copied], each, "runtime/engine.py, allreduce_bucket")
        return
    if settings.stage in (1, 2) and (settings.contiguous_gradients or settings.offload_optimizer):
        separate = settings.stage == 1 and settings.accumulation_dtype != settings.dtype
        count = 2 if settings.overlap_comm else 1
        book.add(
            Owner.REDUCE_BUCKET, "reduce buckets (two with overlap_comm)", [settings.reduce_bucket_size] * count,
            settings.accumulation_bytes if separate else each, source,
        )  # fmt: skip
    one = activations.first_gradient_elements if isinstance(activations, Activations) else shapes.largest_tensor
    if one:
        book.add(Owner.GRADS, "one gradient not yet in a bucket", [one], each, "autograd")


def _step(book: Book, shapes: Shapes, settings: Settings, world: int) -> None:
    if settings.offload_optimizer and settings.offload_optimizer_ratio == 1:
        return
    if settings.stage == 0:
        each = list(shapes.numels or (shapes.num_params,))
        work = [shapes.num_params] if settings.fused_optimizer else each
        book.add(Owner.GRADS, "gradients", each, settings.param_bytes, "autograd")
        if settings.half_precision:
            book.add(Owner.GRADS, "gradients in fp32", work, 4, "runtime/fp16/unfused_optimizer.py, step")
    else:
        part = shapes.partition_numel(world) if settings.stage == 3 else shapes.flat_partition_numel(world)
        work = [min(part, settings.sub_group_size) if settings.stage == 3 and settings.sub_group_size else part]
        source = f"{_STAGE3}, _prepare_fp32_grad_for_sub_group" if settings.stage == 3 else f"{_STAGE12}, step"
        book.add(Owner.GRADS, "gradients of the partition in fp32", work, settings.master_bytes, source)
    if not settings.fused_optimizer:
        book.add(Owner.WORKSPACE, "temporaries of torch's Adam (foreach)", work, settings.state_bytes, _TEMPORARY)
