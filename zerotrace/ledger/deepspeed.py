"""What a build of DeepSpeed holds on each rank for a configuration: line by line, each with its source.

Read in DeepSpeed 0.19.8, with torch's Adam; held against real engines of that version in ``tests/capture``, and
against captures on GPUs in ``tests/golden``.
"""

from __future__ import annotations

from zerotrace.ledger.activations import Activations
from zerotrace.ledger.estimators import estimate
from zerotrace.ledger.lines import Book
from zerotrace.ledger.peaks import peak_ledgers
from zerotrace.ledger.settings import Settings
from zerotrace.ledger.shapes import Shapes
from zerotrace.ledger.workspaces import add_workspaces
from zerotrace.model import EngineLedger, Owner

_ENGINE = "runtime/engine.py"
_STAGE12 = "runtime/zero/stage_1_and_2.py"
_STAGE3 = "runtime/zero/stage3.py"
_PARTITION = "runtime/zero/partition_parameters.py"
_UNFUSED, _FUSED = "runtime/fp16/unfused_optimizer.py", "runtime/fp16/fused_optimizer.py"
_BF16 = "runtime/bf16_optimizer.py"
_ADAM = "torch/optim/adam.py, _init_group"

_MOMENTS = ((Owner.EXP_AVG, "first moment"), (Owner.EXP_AVG_SQ, "second moment"))


def deepspeed_ledger(
    shapes: Shapes,
    settings: Settings,
    world_size: int,
    *,
    device: str | None = None,
    activations: Activations | int | None = None,
) -> EngineLedger:
    """The ledger of one rank between two steps, and what the instants of a step add to it.

    Args:
        shapes: the model.
        settings: the configuration.
        world_size: N, the ranks that share the model states.
        device: name of the GPU, which decides the size of workspaces; ``cpu`` for none of them, and no rounding.
            By default a GPU of the Hopper generation.
        activations: what the forward pass keeps, in detail or as one number of bytes; ``None`` where unknown.
    """
    book = Book(rounded=device != "cpu" and shapes.numels is not None)
    notes = [*settings.notes]
    if shapes.numels is None:
        notes.append(
            "sizes of single parameters are unknown: rounding, persisted parameters and largest tensors are left out"
        )
    if settings.half_precision and settings.accumulation_dtype == "fp32" and settings.stage == 0:
        notes.append("DeepSpeed refuses 16-bit parameters with fp32 accumulation at stage 0")
    add = (_stage_0, _stage_1, _stage_2, _stage_3)[settings.stage]
    add(book, shapes, settings, world_size)
    # DeepSpeed's own linear function, which stage 3 puts in the place of torch's, multiplies without cuBLASLt.
    add_workspaces(book, device, with_lt=settings.stage < 3 or not settings.memory_efficient_linear)
    peaks = peak_ledgers(book, shapes, settings, world_size, activations)
    bytes_, source = estimate(shapes, settings, world_size)
    known = activations.forward_bytes if isinstance(activations, Activations) else activations
    return EngineLedger(
        stage=settings.stage,
        world_size=world_size,
        num_params=shapes.num_params,
        lines=tuple(book.lines),
        bytes=book.bytes,
        peaks=peaks,
        activations_bytes=known,
        estimate_bytes=bytes_,
        estimate_source=source,
        notes=tuple(dict.fromkeys(notes)),
    )


def _stage_0(book: Book, shapes: Shapes, settings: Settings, _: int) -> None:
    """No sharding. 16-bit parameters get a wrapper with fp32 copies, flat for DeepSpeed's own fused Adam."""
    each = list(shapes.numels or (shapes.num_params,))
    flat = [shapes.num_params]
    if not settings.half_precision:
        book.add(Owner.PARAMS, "parameters", each, 4, f"{_ENGINE}, _configure_distributed_model")
        _add_moments(book, settings, each, offloaded=False)
    elif settings.fused_optimizer:
        book.add(Owner.PARAMS, "flat parameters", flat, 2, f"{_FUSED}, __init__")
        book.add(Owner.MASTER, "flat fp32 copy", flat, 4, f"{_FUSED}, __init__")
        _add_moments(book, settings, flat, offloaded=False)
    else:
        book.add(Owner.PARAMS, "parameters", each, 2, f"{_ENGINE}, _configure_distributed_model")
        book.add(Owner.MASTER, "fp32 copies, one a parameter", each, 4, f"{_UNFUSED}, __init__")
        _add_moments(book, settings, each, offloaded=False)
    book.note(Owner.GRADS, "gradients: freed by the step that used them", f"{_ENGINE}, _take_model_step")


def _stage_1(book: Book, shapes: Shapes, settings: Settings, world: int) -> None:
    """The optimizer is sharded; with fp32 accumulation of bf16 gradients another class takes over."""
    if settings.dtype == "bf16" and settings.accumulation_dtype == "fp32" and not settings.offload_optimizer:
        part = shapes.flat_partition_numel(world)
        book.add(Owner.PARAMS, "flat parameters", [part * world], 2, f"{_BF16}, _setup_for_real_optimizer")
        book.add(Owner.MASTER, "flat partition", [part], 4, f"{_BF16}, _setup_for_real_optimizer")
        book.add(
            Owner.GRADS, "flat fp32 gradients, whole, kept between steps", [part * world], 4,
            f"{_BF16}, _setup_for_real_optimizer",
        )  # fmt: skip
        _add_moments(book, settings, [part], offloaded=False)
        return
    _stage_2(book, shapes, settings, world)


def _stage_2(book: Book, shapes: Shapes, settings: Settings, world: int) -> None:
    """Flat parameters whole, the rest by partitions; gradients and their buckets live within the step alone."""
    part, offloaded = shapes.flat_partition_numel(world), settings.offload_optimizer
    each = settings.param_bytes
    book.add(Owner.PARAMS, "flat parameters, padded to 2N", [part * world], each, f"{_STAGE12}, __init__")
    book.add(
        Owner.MASTER, "flat partition", [part], settings.master_bytes, f"{_STAGE12}, __init__", offloaded=offloaded
    )
    _add_moments(book, settings, [part], offloaded=offloaded)
    if offloaded:
        book.add(
            Owner.GRADS, "fp32 gradients for the optimizer on the host", [part], settings.master_bytes,
            f"{_STAGE12}, initialize_optimizer_states", offloaded=True,
        )  # fmt: skip
    if offloaded and shapes.largest_tensor:
        book.add(
            Owner.OTHER, "buffer for one gradient on its way to the host", [shapes.largest_tensor], each,
            f"{_STAGE12}, temp_grad_buffer_for_gpu_offload",
        )  # fmt: skip
    book.note(Owner.GRADS, "gradients: streamed through buckets, freed by the step", f"{_STAGE12}, step")
    book.note(Owner.REDUCE_BUCKET, "reduce buckets: freed after backward", f"{_STAGE12}, _release_ipg_buffers")


def _stage_3(book: Book, shapes: Shapes, settings: Settings, world: int) -> None:
    """All states by partitions; reduce bucket and gradient shard stay between steps."""
    part = shapes.partition_numel(world)
    each = settings.param_bytes
    book.add(
        Owner.PARAMS, "flat partitions, each parameter padded to N", [part], each,
        f"{_STAGE3}, _create_fp16_partitions_with_defragmentation", offloaded=settings.offload_param,
    )  # fmt: skip
    if settings.hpz_partition_size > 1:
        second = [
            -(-numel // world) * world // settings.hpz_partition_size for numel in shapes.numels or (part * world,)
        ]
        book.add(Owner.PARAMS, "secondary partitions (hpZ)", second, each, f"{_PARTITION}, _partition_param_sec")
    book.add(
        Owner.GATHERED_PARAMS, "persisted parameters, whole, padded to N",
        [-(-numel // world) * world for numel in persisted(shapes, settings)], each,
        "runtime/zero/parameter_offload.py, mark_persistent_parameters",
    )  # fmt: skip
    on_device, on_host = _split_by_ratio(part, settings)
    for elements, offloaded in ((on_device, False), (on_host, True)):
        book.add(
            Owner.MASTER, "flat partition", [elements], settings.master_bytes, f"{_STAGE3}, _create_fp32_partitions",
            offloaded=offloaded,
        )  # fmt: skip
        _add_moments(book, settings, [elements], offloaded=offloaded)
    book.add(
        Owner.GRADS, "fp32 gradients for the optimizer on the host", [on_host], settings.master_bytes,
        f"{_STAGE3}, initialize_optimizer_states", offloaded=True,
    )  # fmt: skip
    if settings.contiguous_gradients:
        book.add(
            Owner.REDUCE_BUCKET, "reduce bucket, kept between steps", [settings.reduce_bucket_size],
            settings.communication_bytes, f"{_STAGE3}, _setup_for_real_optimizer",
        )  # fmt: skip
    book.add(
        Owner.GRAD_PARTITION, "flat gradient shard, kept between steps", [part], settings.accumulation_bytes,
        f"{_STAGE3}, _setup_for_real_optimizer", offloaded=settings.offload_optimizer,
    )  # fmt: skip


def persisted(shapes: Shapes, settings: Settings) -> list[int]:
    """Elements of the parameters that stage 3 keeps whole, in the model's order; none where shapes are unknown."""
    found: list[int] = []
    for numel in shapes.numels or ():
        limit = settings.model_persistence_threshold
        if numel <= settings.param_persistence_threshold and (limit is None or numel + sum(found) <= limit):
            found.append(numel)
    return found


def _split_by_ratio(part: int, settings: Settings) -> tuple[int, int]:
    """Elements of the optimizer on device and host: whole sub-groups, as ``offload_optimizer.ratio`` says."""
    if not settings.offload_optimizer:
        return part, 0
    count = max(1, -(-part // settings.sub_group_size)) if settings.sub_group_size else 1
    kept = int((1 - settings.offload_optimizer_ratio) * count)
    on_device = min(part, kept * settings.sub_group_size)
    return on_device, part - on_device


def _add_moments(book: Book, settings: Settings, numels: list[int], *, offloaded: bool) -> None:
    for owner, what in _MOMENTS[: settings.num_states]:
        book.add(owner, what, numels, settings.state_bytes, _ADAM, offloaded=offloaded)
