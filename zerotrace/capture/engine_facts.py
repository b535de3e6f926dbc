"""What a session needs to know of the engine that trains, DeepSpeed's or any other."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from zerotrace.capture.ddp_buckets import describe_buckets
from zerotrace.capture.ds_settings import plain_config
from zerotrace.capture.engines import DEEPSPEED
from zerotrace.capture.fsdp1 import find_flat_params
from zerotrace.capture.fsdp_groups import describe_groups, has_fsdp2
from zerotrace.capture.handoff import EngineFacts
from zerotrace.capture.torch_engines import find_parallel, is_ddp, name_engine, read_settings
from zerotrace.model import BucketRecord, ShardGroupRecord

if TYPE_CHECKING:
    import torch


class Engine(Protocol):
    """What trains: DeepSpeed's engine, a model in torch's data parallelism, or an object like those of ``runners/``.

    An ``optimizer`` and functions ``forward``, ``backward`` and ``step`` are labelled where it has them; ``parallel``
    is the model as torch's data parallelism has it, where ``module`` is the model alone.
    """

    module: torch.nn.Module
    """The model."""


def is_deepspeed(engine: Any) -> bool:
    """Whether an engine is DeepSpeed's."""
    # A program that has not imported DeepSpeed has none of its engines.
    deepspeed = sys.modules.get("deepspeed")
    return deepspeed is not None and isinstance(engine, deepspeed.DeepSpeedEngine)


def describe_engine(engine: Any) -> EngineFacts | None:
    """What the engine says about itself; ``None`` where it is neither DeepSpeed's nor one of torch's."""
    if not is_deepspeed(engine):
        name = name_engine(engine)
        return EngineFacts(name=name, settings=read_settings(engine)) if name is not None else None
    # The configuration as it was passed; there is no public way to it.
    ds_config = getattr(engine._config, "_param_dict", {})
    return EngineFacts(
        name=DEEPSPEED.name,
        stage=int(engine.zero_optimization_stage()),
        micro_batch=int(engine.train_micro_batch_size_per_gpu()),
        ds_config=plain_config(ds_config),
    )


def count_params(module: torch.nn.Module) -> int:
    """Ψ: elements of all parameters, tied ones once, whole ones where ZeRO-3 or FSDP has partitioned them."""
    flat = [flat.elements for flat in find_flat_params(module)]
    # FSDP1 leaves nothing of its own outside of its flat parameters.
    return sum(flat) or sum(int(getattr(param, "ds_numel", param.numel())) for param in module.parameters())


def find_buckets(engine: Any) -> tuple[BucketRecord, ...]:
    """The buckets in which torch's DDP reduces the gradients of an engine; none where it has none."""
    parallel = find_parallel(engine)
    if not is_ddp(parallel):
        return ()
    return describe_buckets(parallel, {id(param): name for name, param in engine.module.named_parameters()})


def find_shard_groups(engine: Any) -> tuple[ShardGroupRecord, ...]:
    """The groups in which torch's FSDP2 gathers the parameters of an engine; none where it has none."""
    return describe_groups(engine.module) if has_fsdp2(find_parallel(engine)) else ()
