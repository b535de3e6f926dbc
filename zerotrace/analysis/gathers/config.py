"""What a run's configuration says of stage 3's gathers, with DeepSpeed's defaults."""

from __future__ import annotations

from msgspec import Struct

from zerotrace.model import RunManifest

# DeepSpeed's defaults, in elements: runtime/zero/config.py.
_PREFETCH_BUCKET_SIZE = 50_000_000
_MAX_LIVE_PARAMETERS = 1_000_000_000
_PERSISTENCE_THRESHOLD = 100_000


class ZeroConfig(Struct, frozen=True, kw_only=True):
    """Sizes in elements; ``None`` where the configuration leaves it to others (``auto``)."""

    prefetch_bucket_size: int | None
    max_live_parameters: int | None
    persistence_threshold: int | None
    num_params: int

    @property
    def always_prefetches(self) -> bool | None:
        """Whether every step whose modules are known has prefetches; ``None`` where a limit may stop them."""
        if self.prefetch_bucket_size is None:
            return None
        if self.prefetch_bucket_size == 0:
            return False
        live = self.max_live_parameters
        return True if live is not None and live >= self.num_params else None


def zero_config(manifest: RunManifest | None) -> ZeroConfig | None:
    """The configuration that a manifest holds; ``None`` without one, and for an engine that is none of DeepSpeed's."""
    if manifest is None or (manifest.stage is None and manifest.sharing is not None):
        return None
    stated = manifest.ds_config.get("zero_optimization") if manifest.ds_config is not None else None
    section = stated if isinstance(stated, dict) else {}

    def size(name: str, default: int) -> int | None:
        value = section.get(f"stage3_{name}", section.get(name, default))
        return int(value) if isinstance(value, (int, float)) else None

    return ZeroConfig(
        prefetch_bucket_size=size("prefetch_bucket_size", _PREFETCH_BUCKET_SIZE),
        max_live_parameters=size("max_live_parameters", _MAX_LIVE_PARAMETERS),
        persistence_threshold=size("param_persistence_threshold", _PERSISTENCE_THRESHOLD),
        num_params=manifest.model.num_params,
    )
