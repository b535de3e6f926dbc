"""Whether two runs do the same work in a step, so that their step times may be held against each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotrace.model import RunManifest, Work
from zerotrace.units import format_count

_HALVES = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16"}

_TYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


def work_of(manifest: RunManifest) -> Work:
    """What a rank computes in a step of a run."""
    return Work(
        model=manifest.model.name,
        num_params=manifest.model.num_params,
        micro_batch=manifest.micro_batch,
        num_micro_steps=_num_micro_steps(manifest),
        sequence=manifest.sequence,
        precision=_precision_of(manifest),
        device=", ".join(sorted({rank.device for rank in manifest.ranks})),
    )


def differences(work: Work, other: Work) -> tuple[str, ...]:
    """What makes the first work another one than the second: ``micro-batch 2, not 4``; empty where they are equal.

    What neither run knows counts as equal.
    """
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("model", work.model, other.model),
        ("Ψ", format_count(work.num_params), format_count(other.num_params)),
        ("micro-batch", work.micro_batch, other.micro_batch),
        ("micro-steps a step", work.num_micro_steps, other.num_micro_steps),
        ("tokens a sequence", work.sequence, other.sequence),
        ("precision", work.precision, other.precision),
        ("device", work.device, other.device),
    )
    return tuple(f"{what} {_known(ours)}, not {_known(theirs)}" for what, ours, theirs in pairs if ours != theirs)


def tokens_a_step(manifest: RunManifest) -> int | None:
    """Tokens that all ranks together train on in a step; ``None`` where that is unknown."""
    work = work_of(manifest)
    if work.sequence is None or work.micro_batch is None:
        return None
    return manifest.world_size * work.micro_batch * work.num_micro_steps * work.sequence


def _num_micro_steps(manifest: RunManifest) -> int:
    """Gradient accumulation: as configured, or as it follows from the whole batch, as DeepSpeed has it."""
    config = manifest.ds_config or {}
    given, batch = (config.get(key) for key in ("gradient_accumulation_steps", "train_batch_size"))
    if isinstance(given, int):
        return given
    if not isinstance(batch, int) or manifest.micro_batch is None:
        return 1
    return batch // (manifest.micro_batch * manifest.world_size)


def _precision_of(manifest: RunManifest) -> str | None:
    """The type of the forward pass: as configured, else that of what FSDP2 gathers or DDP reduces.

    The runners train in bf16, as the study does.
    """
    if manifest.ds_config is not None:
        return _precision(manifest.ds_config)
    types = {group.dtype for group in manifest.shard_groups} or {bucket.dtype for bucket in manifest.buckets}
    if types:
        return _TYPES.get(types.pop()) if len(types) == 1 else None
    return "bf16" if manifest.model.num_layers is not None or manifest.engine == "single" else None


def _precision(config: Mapping[str, Any]) -> str | None:
    sections = {name: config.get(name) for name in (*_HALVES, "torch_autocast")}
    on = {name: section.get("enabled") for name, section in sections.items() if isinstance(section, dict)}
    if "auto" in on.values():
        return None
    if on.get("torch_autocast"):
        return "autocast"
    return next((half for name, half in _HALVES.items() if on.get(name)), "fp32")


def _known(value: Any) -> Any:
    return "unknown" if value is None else value
