"""What a capture is asked to do. Checked here as far as that is possible without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from zerotrace.capture.engines import DEEPSPEED, ENGINES, EngineKind
from zerotrace.capture.models import DecoderConfig, find_model
from zerotrace.errors import CaptureError

DEFAULT_SEED = 1337
DEFAULT_TIMEOUT_S = 900.0


class Script(Struct, frozen=True, kw_only=True):
    """A training program of the user, which runs unchanged."""

    path: Path
    args: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    """Keys of the DeepSpeed configuration to set over the program's own, dotted."""
    keep_running: bool = False
    """Whether the program goes on after the last window."""


class Nodes(Struct, frozen=True, kw_only=True):
    """The machines of a run, and which of them this is."""

    num_nodes: int = 1
    node_rank: int = 0
    endpoint: str | None = None
    """``HOST:PORT`` where the nodes meet, on node 0; ``None`` on a single node."""


class CapturePlan(Struct, frozen=True, kw_only=True):
    """One capture, fully decided: every default is filled in.

    What trains is zerotrace's own GPT-2, which ``model``, ``micro_batch``, ``sequence``, ``seed`` and ``ds_config``
    describe, or a ``script``, which brings all of that itself.
    """

    engine: str = DEEPSPEED.name
    """What trains: a name in :data:`zerotrace.capture.engines.ENGINES`."""

    stage: int | None = None
    """ZeRO stage, 0 to 3; ``None`` for an engine that has none."""

    num_ranks: int
    """Training processes on this machine; one device each on ``cuda``."""

    device: str
    """``cuda`` (NCCL) or ``cpu`` (gloo)."""

    script: Script | None = None
    """The user's own program; ``None`` for the GPT-2."""

    model: str | None = None
    """Name of a model in :data:`zerotrace.capture.models.MODELS`."""

    micro_batch: int = 1
    """Sequences a rank and micro-step."""

    sequence: int = 1
    """Tokens a sequence."""

    seed: int = DEFAULT_SEED
    """Seed of the weights; rank ``r`` draws its tokens from ``seed + r``."""

    num_warmup: int
    """Steps before anything is measured."""

    num_timed: int
    """Steps that are timed without a profiler."""

    num_profiled: int
    """Steps of the detailed window, which every rank traces."""

    num_labelled: int = 0
    """Steps that are timed without a profiler, but with the label hooks in place."""

    num_light: int = 0
    """Steps of the light window."""

    num_memory: int = 0
    """Steps of the memory window."""

    timeout_s: float
    """Limit for the whole run, from launch to the last file; then all ranks are ended."""

    ingest: bool = False
    """Whether each rank reads its own trace at the end, and leaves its tables beside it."""

    ds_config: Mapping[str, Any] | None = None
    """The whole DeepSpeed configuration, as :func:`zerotrace.capture.ds_config.build_ds_config` makes it; ``None`` for
    another engine, or where a script brings its own."""

    engine_settings: Mapping[str, Any] = field(default_factory=dict)
    """What an engine other than DeepSpeed is told, by the names in its table; the rest is as its runner has it."""

    nodes: Nodes = Nodes()
    """The machines of the run."""

    command: tuple[str, ...] = field(default=("zerotrace", "capture"))
    """The command line that asked for this capture; kept in the manifest."""

    def __post_init__(self) -> None:
        for name, least in (("num_ranks", 1), ("micro_batch", 1), ("sequence", 1)):
            at_least(name, getattr(self, name), least)
        counts = ("num_warmup", "num_timed", "num_labelled", "num_light", "num_profiled", "num_memory")
        for name in counts:
            at_least(name, getattr(self, name), 0)
        if self.num_steps == self.num_warmup:
            raise ValueError(f"{', '.join(counts[1:])} are all 0; expected a window that measures something")
        self._check_engine()
        if self.device not in BACKENDS:
            raise ValueError(f"device is {self.device!r}; expected one of {', '.join(BACKENDS)}")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; expected a number of seconds above 0")
        if (self.script is None) == (self.model is None):
            raise ValueError(f"model is {self.model!r} and script {self.script!r}; expected one of the two")
        if self.model is not None:
            check_sequence(find_model(self.model), self.sequence)
        elif self.num_warmup < 1:
            # Its first step begins when deepspeed.initialize returns: data loading and the like lie in it.
            raise ValueError(f"num_warmup is {self.num_warmup}; a script needs 1 or more")

    def _check_engine(self) -> None:
        if self.engine not in ENGINES:
            raise ValueError(f"engine is {self.engine!r}; expected one of {', '.join(ENGINES)}")
        kind = self.engine_kind
        if kind.has_stages and self.stage not in (0, 1, 2, 3):
            raise ValueError(f"stage is {self.stage}; ZeRO has the stages 0, 1, 2 and 3")
        if not kind.has_stages and (self.stage, self.ds_config) != (None, None):
            raise ValueError(f"stage and ds_config are for DeepSpeed; the engine is {self.engine!r}")
        if self.script is not None and not kind.takes_scripts:
            raise ValueError(f"the engine {self.engine!r} trains zerotrace's own model alone; expected no script")
        if self.script is None and kind.runner is None:
            raise ValueError(f"the engine {self.engine!r} needs a script")
        unknown = set(self.engine_settings) - {setting.name for setting in kind.settings}
        if unknown:
            raise ValueError(f"engine_settings has {min(unknown)!r}, which the engine {self.engine!r} does not know")
        if kind.num_ranks not in (None, self.world_size):
            raise ValueError(f"num_ranks is {self.world_size}; the engine {self.engine!r} has {kind.num_ranks}")

    @property
    def engine_kind(self) -> EngineKind:
        """What trains, with what it needs."""
        return ENGINES[self.engine]

    @property
    def title(self) -> str:
        """The run in words: ``gpt2-large at stage 3``."""
        how = f"at stage {self.stage}" if self.stage is not None else f"with the engine {self.engine}"
        return f"{self.program} {how}"

    @property
    def default_name(self) -> str:
        """Name of the folder where none is asked for."""
        return self.engine if self.stage is None else f"stage{self.stage}"

    @property
    def program(self) -> str:
        """What trains, by name."""
        return self.model or (self.script.path.name if self.script else "")

    @property
    def world_size(self) -> int:
        """Ranks of the run, over all nodes."""
        return self.num_ranks * self.nodes.num_nodes

    @property
    def first_rank(self) -> int:
        """Global rank of the first process on this machine."""
        return self.num_ranks * self.nodes.node_rank

    @property
    def local_ranks(self) -> range:
        """Global ranks of the processes on this machine."""
        return range(self.first_rank, self.first_rank + self.num_ranks)

    @property
    def num_steps(self) -> int:
        """All optimizer steps of the run."""
        traced = [steps + NUM_SETTLE for steps in (self.num_light, self.num_profiled) if steps]
        # Each labelled step has one without labels beside it.
        return self.num_warmup + self.num_timed + 2 * self.num_labelled + sum(traced) + self.num_memory

    @property
    def backend(self) -> str:
        """Backend of the process group."""
        return BACKENDS[self.device]


#: Steps before each window with a profiler, with the profiler on but not recording.
NUM_SETTLE = 1

#: The windows that can be asked for, in the order in which they run. The warm-up comes before all of them.
WINDOWS = ("timed", "light", "detailed", "memory")

#: Steps of the memory window: one is all that its ledger needs, and the history grows with each.
NUM_MEMORY = 1

#: Process-group backend of each device.
BACKENDS = {"cuda": "nccl", "cpu": "gloo"}


class WorkDefaults(Struct, frozen=True, kw_only=True):
    """What is run where the user does not say: the study's set-up on GPUs, a few seconds' worth on CPUs."""

    model: str
    micro_batch: int
    sequence: int
    num_warmup: int
    num_timed: int
    num_profiled: int


DEFAULTS = {
    "cuda": WorkDefaults(model="gpt2-large", micro_batch=4, sequence=1024, num_warmup=5, num_timed=15, num_profiled=2),
    "cpu": WorkDefaults(model="nano", micro_batch=4, sequence=64, num_warmup=2, num_timed=5, num_profiled=2),
}


class WindowSteps(Struct, frozen=True, kw_only=True):
    """Steps of each window but the warm-up, named as in the plans."""

    num_timed: int
    num_labelled: int
    num_light: int
    num_profiled: int
    num_memory: int


def choose_steps(device: str, *, timed: int, profiled: int, windows: Sequence[str] = WINDOWS) -> WindowSteps:
    """How many steps each window takes.

    Args:
        device: on ``cpu`` there is no light window, for want of device activities.
        timed: steps of the timed window, and of its likes without and with the label hooks in place, which only the
            detailed window needs.
        profiled: steps of the detailed and of the light window.
        windows: the windows that are asked for.
    """
    timed = timed if "timed" in windows else 0
    return WindowSteps(
        num_timed=timed,
        num_labelled=timed if "detailed" in windows else 0,
        num_light=profiled if "light" in windows and device != "cpu" else 0,
        num_profiled=profiled if "detailed" in windows else 0,
        num_memory=NUM_MEMORY if "memory" in windows else 0,
    )


def check_sequence(decoder: DecoderConfig, sequence: int) -> None:
    """Refuse a sequence that the model has no positions for.

    Raises:
        CaptureError: the sequence is too long.
    """
    if sequence > decoder.num_positions:
        raise CaptureError(
            f"The sequence has {sequence} tokens, but {decoder.name} has {decoder.num_positions} positions.",
            code="sequence_too_long",
            hint=f"Pass --sequence {decoder.num_positions} or less, or a larger --model.",
        )


def order_windows(names: str | Sequence[str]) -> tuple[str, ...]:
    """Windows in the order in which they run, from their names or from a text with commas between them.

    Raises:
        ValueError: there is no window of such a name, or none is named.
    """
    asked = [name.strip() for name in (names.split(",") if isinstance(names, str) else names)]
    if unknown := [name for name in asked if name not in WINDOWS]:
        raise ValueError(f"{unknown[0]!r} is none of {', '.join(WINDOWS)}.")
    if not asked:
        raise ValueError(f"windows is empty; expected some of {', '.join(WINDOWS)}")
    return tuple(name for name in WINDOWS if name in asked)


def at_least(name: str, value: int, least: int) -> None:
    """Refuse what is no whole number, or too small a one.

    Raises:
        ValueError: it is.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}; expected a whole number of {least} or more")
