"""What a capture did, as ``manifest.json`` holds it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from zerotrace.model.schemes import Scheme, scheme_of
from zerotrace.model.vocabulary import WindowKind

MANIFEST_VERSION = "1.4"


class ModelShape(Struct, frozen=True, kw_only=True):
    """The model of a run. The shape is that of a GPT-2 decoder; of a user's own program only name and Ψ are known."""

    name: str
    """Name of one of zerotrace's own models, else the file name of the training program."""
    num_params: int
    """Ψ, counted on the built model (tied weights once)."""
    num_layers: int | None = None
    num_heads: int | None = None
    hidden_size: int | None = None
    vocab_size: int | None = None


class WindowRecord(Struct, frozen=True, kw_only=True):
    """The step times of one window of a capture, as one rank's host clock saw them."""

    kind: WindowKind
    first_step: int
    step_ns: tuple[int, ...]
    """Duration of each step, device work included (the device is synchronised between steps)."""
    stride: int = 1
    """From one of these steps to the next: 2 where two kinds of step take turns."""


class RankRecord(Struct, frozen=True, kw_only=True):
    """What one rank measured about itself."""

    rank: int
    host: int
    """Index of the rank's host among the hosts of the run; host names are not kept."""
    device: str
    """Marketing name of the device, for example ``NVIDIA H200`` or ``cpu``."""
    windows: tuple[WindowRecord, ...]
    resident_bytes: int | None = None
    """``memory_allocated`` after the last timed step; ``None`` on CPU."""
    peak_bytes: int | None = None
    """``max_memory_allocated`` over the timed window; ``None`` on CPU."""
    reserved_bytes: int | None = None
    """``memory_reserved`` after the last timed step."""
    device_used_bytes: int | None = None
    """Memory in use on the device by all that runs there, as the driver reports it."""
    trace_file: str | None = None
    """File name of the Kineto trace of the detailed window, beside the manifest."""
    light_trace_file: str | None = None
    """The Kineto trace of the light window, in a folder of its own so that no analysis mixes the two up."""
    owners_file: str | None = None
    """Which storage belongs to what after the last step of the memory window."""
    snapshot_file: str | None = None
    """The allocator's snapshot of the same moment, with the history of the memory window; ``None`` on CPU."""


class LabelsRecord(Struct, frozen=True, kw_only=True):
    """How the trace of the detailed window was labelled."""

    version: int
    """Version of the name format, see :mod:`zerotrace.labels`."""
    hooks: tuple[str, ...]
    """Hooks that were in place."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Hook -> why it was not: what it marks is absent from the trace."""
    overhead_ratio: float | None = None
    """Step with the hooks in place / without, both unprofiled and in turn: 1 + median of the differences between
    neighbours / median step without. ``None`` without such steps."""


class BucketRecord(Struct, frozen=True, kw_only=True):
    """A bucket in which torch's DDP reduces gradients."""

    elements: int
    """Of all its gradients."""
    bytes: int
    dtype: str
    """``bfloat16``, ``float32`` ..."""
    params: tuple[str, ...]
    """All parameters whose gradients it holds, in the order in which these are expected."""


class ShardGroupRecord(Struct, frozen=True, kw_only=True):
    """Parameters that torch's FSDP2 gathers, and whose gradients it reduces, together."""

    module: str
    """Qualified name of the module that ``fully_shard`` was called on; ``""`` is the root."""
    elements: int
    """Of the whole parameters, without padding."""
    padded_elements: int
    """As they are gathered: each parameter is padded to equal shards."""
    dtype: str
    """In which they are gathered."""
    reduce_dtype: str
    """In which their gradients are reduced."""
    num_ranks: int
    """Ranks over which they are sharded."""
    reshard_after_forward: bool
    """Whether they are given back after the forward, and gathered again for the backward."""
    params: tuple[str, ...]
    """All of them, in the order in which they are gathered."""


class RunManifest(Struct, frozen=True, kw_only=True):
    """What a capture did: enough to repeat it, and to know what its figures mean."""

    schema_version: str = MANIFEST_VERSION
    created: str
    """Start of the capture, ISO 8601, UTC."""
    zerotrace_version: str
    command: tuple[str, ...]
    engine: str
    """A name that ``zerotrace capture --engine`` has: ``deepspeed``, ``ddp``, ``single`` ..."""
    stage: int | None = None
    """ZeRO stage; ``None`` for an engine that has none."""
    world_size: int
    device: str
    """``cuda`` or ``cpu``."""
    backend: str
    """``nccl`` or ``gloo``."""
    model: ModelShape
    micro_batch: int | None = None
    """Sequences a rank and micro-step; ``None`` where a program without a DeepSpeed configuration has not said it."""
    sequence: int | None = None
    """Tokens a sequence; ``None`` where a user's own program ran."""
    seed: int | None = None
    ds_config: Mapping[str, Any] | None = None
    """The whole DeepSpeed configuration as passed to ``deepspeed.initialize``; ``None`` for another engine."""
    engine_settings: Mapping[str, Any] | None = None
    """The settings of one of torch's engines as they were in effect; ``None`` for DeepSpeed and a single device, and
    before version 1.4."""
    buckets: tuple[BucketRecord, ...] = ()
    """The buckets of torch's DDP in the order of their reductions; empty for another engine, and where DDP had not
    settled them."""
    shard_groups: tuple[ShardGroupRecord, ...] = ()
    """The groups of torch's FSDP2, in the order of the model's modules; empty for another engine."""
    versions: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that change what is measured (``NCCL_*``, ``OMP_NUM_THREADS`` ...)."""
    losses: tuple[float | None, ...] = ()
    """Rank 0's loss after each step, warm-up first: two runs of equal work can be told by it. ``None`` where it was no
    finite number."""
    ranks: tuple[RankRecord, ...]
    labels: LabelsRecord | None = None
    """``None`` if nothing was labelled."""
    notes: tuple[str, ...] = ()
    """What a reader of the figures should know about how the capture came about, one sentence each."""

    @property
    def sharing(self) -> Scheme | None:
        """What the engine is in ZeRO's terms; ``None`` where that is unknown."""
        return scheme_of(self.engine, self.stage, self.engine_settings)

    @property
    def scheme(self) -> str:
        """How the model was trained, in words: ``ZeRO-3``, ``single device``."""
        return self.sharing.name if self.sharing is not None else self.engine
