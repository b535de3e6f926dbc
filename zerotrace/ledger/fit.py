"""What it would take: stages and knobs by which a model fits a device, and what each sends for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from zerotrace.ledger.activations import Activations
from zerotrace.ledger.deepspeed import deepspeed_ledger
from zerotrace.ledger.settings import Settings, read_settings
from zerotrace.ledger.shapes import Shapes

#: What a process takes of a device outside of torch's allocator: CUDA context and NCCL, 1.16 GiB on two H200 of one
#: host (torch 2.11, NCCL 2.28).
OUTSIDE_BYTES = 1_250_000_000

_ZERO = "zero_optimization"
_SMALL_BUCKET = {f"{_ZERO}.reduce_bucket_size": 50_000_000}
_REDUCE = {f"{_ZERO}.use_multi_rank_bucket_allreduce": False}
_RELEASE = {f"{_ZERO}.stage3_max_live_parameters": 100_000_000, f"{_ZERO}.stage3_max_reuse_distance": 100_000_000}
_OFFLOAD_OPTIMIZER = {f"{_ZERO}.offload_optimizer.device": "cpu"}
_OFFLOAD_PARAMS = {f"{_ZERO}.offload_param.device": "cpu"}

#: Changes that are tried at each stage, from the least to the most costly.
_CHANGES: dict[int, tuple[dict[str, Any], ...]] = {
    0: ({},),
    1: ({}, _REDUCE, _SMALL_BUCKET | _REDUCE, _SMALL_BUCKET | _REDUCE | _OFFLOAD_OPTIMIZER),
    2: ({}, _REDUCE, _SMALL_BUCKET | _REDUCE, _SMALL_BUCKET | _REDUCE | _OFFLOAD_OPTIMIZER),
    3: (
        {},
        _SMALL_BUCKET,
        _SMALL_BUCKET | _RELEASE,
        _SMALL_BUCKET | _RELEASE | _OFFLOAD_OPTIMIZER,
        _SMALL_BUCKET | _RELEASE | _OFFLOAD_OPTIMIZER | _OFFLOAD_PARAMS,
    ),
}


class FitOption(Struct, frozen=True, kw_only=True):
    """One stage and set of keys: what a rank then holds and sends."""

    stage: int
    changes: Mapping[str, Any]
    """Keys that differ from the configuration that was given."""
    resident_bytes: int
    peak_bytes: int
    """Of the allocator; without activations where they are unknown."""
    needed_bytes: int
    """Peak and what lies outside of the allocator."""
    fits: bool
    wire_ratio: float
    """Bytes sent a step in units of 2Ψ × (N−1)/N; see :func:`wire_ratio`."""
    sent_bytes: float
    """The same in bytes of a rank and step."""
    host_bytes: float
    """Bytes that cross to and from the host a rank and step, for what is offloaded."""


def fit(
    shapes: Shapes,
    ds_config: Mapping[str, Any],
    world_size: int,
    capacity_bytes: int,
    *,
    device: str | None = None,
    activations: Activations | int | None = None,
) -> tuple[FitOption, ...]:
    """What fits and what does not, each with its price; the least costly that fits comes first.

    Costly is, in this order: to keep states on the host, to send more bytes, to change more keys, a higher stage.

    Args:
        shapes: the model.
        ds_config: the configuration to start from.
        world_size: N.
        capacity_bytes: memory of the device.
        device: name of the GPU.
        activations: what the forward pass keeps; ``None`` where unknown, and then they have to fit into what is left.
    """
    options = []
    for stage, sets in _CHANGES.items():
        for changes in sets:
            settings = read_settings(with_changes(ds_config, changes), stage)
            ledger = deepspeed_ledger(shapes, settings, world_size, device=device, activations=activations)
            needed = ledger.peak_bytes + OUTSIDE_BYTES
            ratio = wire_ratio(shapes, settings)
            options.append(
                FitOption(
                    stage=stage,
                    changes=changes,
                    resident_bytes=ledger.bytes,
                    peak_bytes=ledger.peak_bytes,
                    needed_bytes=needed,
                    fits=needed <= capacity_bytes,
                    wire_ratio=ratio,
                    sent_bytes=ratio * settings.param_bytes * shapes.num_params * (world_size - 1) / world_size,
                    host_bytes=_host_bytes(shapes, settings, world_size),
                )
            )
    return tuple(sorted(options, key=lambda o: (not o.fits, o.host_bytes, o.wire_ratio, len(o.changes), o.stage)))


def wire_ratio(shapes: Shapes, settings: Settings) -> float:
    """Bytes that this build sends a step, in units of 2Ψ × (N−1)/N (or of 4Ψ for fp32).

    Gradients: an all-reduce counts 2, a reduce or reduce-scatter 1. Stages 1 and 2 all-reduce them unless
    ``use_multi_rank_bucket_allreduce`` is off, and gather the updated parameters: 1. Stage 3 gathers parameters for
    forward (1), and again for backward (1) unless all of them may stay alive in between
    (``stage3_max_live_parameters``). Gradients are reduced after every micro-step from stage 2 on.
    """
    steps = settings.accumulation_steps
    if settings.stage == 0:
        return 2.0
    if settings.stage < 3:
        each = 2.0 if settings.multi_rank_allreduce else 1.0
        return each * (steps if settings.stage == 2 else 1) + 1
    kept = shapes.num_params <= min(settings.max_live_parameters, settings.max_reuse_distance)
    return steps * (1.0 + (1.0 if kept else 2.0))


def with_changes(ds_config: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration with dotted keys set; the one that is given stays as it is."""
    changed = _copy(ds_config)
    for key, value in changes.items():
        *parents, leaf = key.split(".")
        section = changed
        for name in parents:
            inner = section.get(name)
            section[name] = inner if isinstance(inner, dict) else {}
            section = section[name]
        section[leaf] = value
    return changed


def _copy(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(item) if isinstance(item, Mapping) else item for key, item in value.items()}


def _host_bytes(shapes: Shapes, settings: Settings, world: int) -> float:
    """Gradients to the host and parameters back, for a rank's share; with the parameters there, their gathers too."""
    share = settings.param_bytes * shapes.num_params / world
    moved = 2 * share if settings.offload_optimizer else 0.0
    if settings.offload_param:
        moved += 2 * share
    return moved
