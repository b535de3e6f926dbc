"""Stage 3's parameter gathers, summed up: what prefetch hides and what it does not."""

from __future__ import annotations

from msgspec import Struct

from zerotrace.labels import GatherKind, Phase
from zerotrace.model.spread import Spread


class GatherTotals(Struct, frozen=True, kw_only=True):
    """Sums over gathers. ``gather = hidden + exposed = transfer + wait``, to the nanosecond."""

    num_gathers: int
    num_collectives: int
    num_bytes: int | None
    """Bytes of the whole parameters; ``None`` if those of any gather are unknown."""
    gather_ns: int
    """Σ time in which the collectives of a gather run."""
    hidden_ns: int
    """Of it, with compute running on the same device."""
    exposed_ns: int
    blocking_ns: int | None
    """Of the exposed time, what holds compute back; ``None`` in host mode."""
    transfer_ns: int | None
    """After the last rank of each collective had arrived; ``None`` where a collective has no partner."""
    wait_ns: int | None
    hidden_transfer_ns: int | None
    hidden_ratio: float | None
    """``hidden / gather``; ``None`` where nothing was gathered."""
    hidden_transfer_ratio: float | None
    """``hidden_transfer / transfer``."""


class GatherGroup(Struct, frozen=True, kw_only=True):
    """Gathers that have something in common; cold steps are left out."""

    kind: GatherKind | None = None
    phase: Phase | None = None
    rank: int | None = None
    module: str | None = None
    """The module that needs them first; ``None`` where unknown, ``""`` is the root."""
    num_late: int | None
    """Prefetches that hold compute back; ``None`` in host mode."""
    num_demand: int
    totals: GatherTotals
    step_gather_ns: float | None = None
    """``gather / warm steps``: gather time a step and rank; ``None`` where no step is warm."""


class GatherStep(Struct, frozen=True, kw_only=True):
    """The gathers of one step of one rank."""

    rank: int
    step: int
    cold: bool | None
    """No prefetch, since the coordinator had no complete trace of modules; ``None`` where it cannot be told."""
    num_demand: int
    num_prefetch: int
    num_refresh: int
    num_unknown: int
    """Gathers whose kind is unknown."""
    num_late: int | None
    totals: GatherTotals
    fetched: GatherTotals
    """The same without the refresh of persisted parameters."""
    demand_blocking_ns: int | None
    """What demands hold compute back; ``None`` in host mode."""
    prefetch_blocking_ns: int | None
    """What prefetches hold compute back."""
    refresh_start_ns: int | None
    """Submission of the first refresh; ``None`` without a refresh."""
    refresh_end_ns: int | None
    """End of the last one."""
    coordinator_ns: int | None
    """Host time in the coordinator's fetches and releases; ``None`` without their labels."""
    coordinator_host_bound_ns: int | None
    """Idle, host-bound time of the device that lies in them; ``None`` in host mode, too."""
    num_forced_syncs: int | None
    """How often the coordinator made the host wait for a pending fetch; ``None`` where it cannot be told."""
    forced_sync_ns: int | None

    @property
    def refresh_ns(self) -> int | None:
        """From the submission of the first refresh to the end of the last."""
        if self.refresh_start_ns is None or self.refresh_end_ns is None:
            return None
        return self.refresh_end_ns - self.refresh_start_ns


class GatherMeans(Struct, frozen=True, kw_only=True):
    """The mean warm step of a rank. ``None`` where a figure is unknown in any of the steps."""

    num_prefetch: float
    num_demand: float
    num_refresh: float
    num_unknown: float
    num_late: float | None
    blocking_ns: float | None
    coordinator_ns: float | None
    coordinator_host_bound_ns: float | None
    num_forced_syncs: float | None
    forced_sync_ns: float | None


class HeldGather(Struct, frozen=True, kw_only=True):
    """A gather that holds compute back."""

    rank: int
    step: int
    gather: int
    """Its number in the table of gathers."""
    phase: Phase | None
    module: str | None
    """The module in whose turn it was submitted."""
    need_module: str | None
    start_ns: int
    end_ns: int
    blocking_ns: int
    slack_ns: int | None
    num_bytes: int | None


class LinkUse(Struct, frozen=True, kw_only=True):
    """How well demands and prefetches use the link, by their size."""

    num_gathers: int
    """Gathers of known bytes and transfer."""
    median_bytes: float
    best_bytes_per_s: float
    """Bytes by transfer of the largest ones, which together carry half of the bytes."""
    transfer_ns: int
    """Σ transfer."""
    at_best_ns: float
    """Σ bytes by the best rate: what the transfers would take at that rate."""


class SlackBin(Struct, frozen=True, kw_only=True):
    """How many gathers end that long before they are needed (a negative slack: after that). Half open."""

    low_ns: int | None
    """``None``: without a lower limit."""
    high_ns: int | None
    num_demand: int
    num_prefetch: int
    num_unknown: int
    num_gathers: int | None = None
    """All three."""


class GatherReport(Struct, frozen=True, kw_only=True):
    """All figures of stage 3's gathers."""

    inferred_ratio: float
    """Part of the demands and prefetches whose kind and phase are inferred, for want of labels."""
    num_unread_labels: int = 0
    """Labels of any kind that could not be read, over all ranks: malformed, or of another version."""
    steps: tuple[GatherStep, ...]
    cold_steps: tuple[int, ...]
    """Steps that are cold on any rank: shown apart, in none of the figures below."""
    total: GatherGroup | None
    """All gathers of all ranks; ``None`` if every step is cold."""
    ranks: tuple[GatherGroup, ...]
    kinds: tuple[GatherGroup, ...]
    phases: tuple[GatherGroup, ...]
    modules: tuple[GatherGroup, ...]
    """By the module that needs them first, in the order in which modules are needed; without refreshes."""
    late: tuple[HeldGather, ...]
    """The late prefetches that hold compute back longest, longest first; at most 200."""
    missed: tuple[HeldGather, ...]
    """The same of demands."""
    link: LinkUse | None
    """``None`` where transfer or bytes are unknown."""
    slack: tuple[SlackBin, ...]
    hidden_ratio: Spread | None = None
    """``hidden / gather`` of each rank; ``None`` where every step is cold, like the next two."""
    hidden_transfer_ratio: Spread | None = None
    """The same over transfer alone; ``None`` where that is unknown, too."""
    means: GatherMeans | None = None
    num_persisted: int | None
    """Parameters that are refreshed in a step: persisted, kept whole on every rank."""
