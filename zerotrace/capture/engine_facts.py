"""What a session needs to know of the engine that trains, DeepSpeed's or any other."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol

from zerotrace.capture.ds_settings import plain_config
from zerotrace.capture.engines import DEEPSPEED
from zerotrace.capture.handoff import EngineFacts

if TYPE_CHECKING:
    import torch


class Engine(Protocol):
    """What trains: DeepSpeed's engine, or an object like the one of ``runners/single.py``.

    An ``optimizer`` and functions ``forward``, ``backward`` and ``step`` are labelled where it has them.
    """

    module: torch.nn.Module
    """The model."""


def is_deepspeed(engine: Any) -> bool:
    """Whether an engine is DeepSpeed's."""
    # A program that has not imported DeepSpeed has none of its engines.
    deepspeed = sys.modules.get("deepspeed")
    return deepspeed is not None and isinstance(engine, deepspeed.DeepSpeedEngine)


def describe_engine(engine: Any) -> EngineFacts | None:
    """What the engine says about its configuration; ``None`` where it is none of DeepSpeed's."""
    if not is_deepspeed(engine):
        return None
    # The configuration as it was passed; there is no public way to it.
    ds_config = getattr(engine._config, "_param_dict", {})
    return EngineFacts(
        name=DEEPSPEED.name,
        stage=int(engine.zero_optimization_stage()),
        micro_batch=int(engine.train_micro_batch_size_per_gpu()),
        ds_config=plain_config(ds_config),
    )


def count_params(module: torch.nn.Module) -> int:
    """Ψ: elements of all parameters, tied ones once, whole ones where ZeRO-3 has partitioned them."""
    return sum(int(getattr(param, "ds_numel", param.numel())) for param in module.parameters())
