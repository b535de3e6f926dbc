"""The ledger of a run of one of torch's engines, or of a single device, from its manifest."""

from __future__ import annotations

from zerotrace.ledger import TorchRun, decoder_activations, decoder_shapes, torch_ledger
from zerotrace.model import EngineLedger, RunManifest

#: Whose ledger is known.
_ENGINES = frozenset({"single", "ddp", "zero1", "fsdp2"})

_PARAM_BYTES = 2


def torch_ledger_of(manifest: RunManifest) -> EngineLedger | None:
    """What the engine holds; ``None`` for an engine, and for a program, of which no ledger is known.

    Only of the runners is it known which copies of the parameters their optimizer keeps.
    """
    scheme, model = manifest.sharing, manifest.model
    if scheme is None or manifest.engine not in _ENGINES or model.num_layers is None:
        return None
    groups = sorted(manifest.shard_groups, key=lambda group: group.module != "")
    run = TorchRun(
        engine=manifest.engine,
        stage=scheme.stage,
        settings=manifest.engine_settings or {},
        bucket_bytes=tuple(bucket.bytes for bucket in manifest.buckets),
        group_elements=tuple(group.padded_elements for group in groups),
        kept_elements=sum(group.padded_elements for group in groups if not group.reshard_after_forward),
        param_bytes=_PARAM_BYTES,
    )
    device = "cpu" if manifest.device == "cpu" else manifest.ranks[0].device if manifest.ranks else None
    activations = decoder_activations(model, manifest.micro_batch, manifest.sequence, _PARAM_BYTES)
    return torch_ledger(decoder_shapes(model), run, manifest.world_size, device=device, activations=activations)
