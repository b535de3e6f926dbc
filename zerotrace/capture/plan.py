"""What a capture is asked to do. Checked here as far as that is possible without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotrace.capture.models import DecoderConfig, find_model
from zerotrace.errors import CaptureError


@dataclass(frozen=True, kw_only=True, slots=True)
class CapturePlan:
    """One capture, fully decided: every default is filled in."""

    stage: int
    """ZeRO stage, 0 to 3."""

    num_ranks: int
    """Training processes on this machine; one device each on ``cuda``."""

    device: str
    """``cuda`` (NCCL) or ``cpu`` (gloo)."""

    model: str
    """Name of a model in :data:`zerotrace.capture.models.MODELS`."""

    micro_batch: int
    """Sequences a rank and micro-step."""

    sequence: int
    """Tokens a sequence."""

    seed: int
    """Seed of the weights; rank ``r`` draws its tokens from ``seed + r``."""

    num_warmup: int
    """Steps before anything is measured."""

    num_timed: int
    """Steps that are timed without a profiler."""

    num_profiled: int
    """Steps that are traced on every rank."""

    timeout_s: float
    """Limit for the whole run, from launch to the last file; then all ranks are ended."""

    ds_config: Mapping[str, Any]
    """The whole DeepSpeed configuration, as :func:`zerotrace.capture.ds_config.build_ds_config` makes it."""

    command: tuple[str, ...] = field(default=("zerotrace", "capture"))
    """The command line that asked for this capture; kept in the manifest."""

    def __post_init__(self) -> None:
        for name, least in (("num_ranks", 1), ("micro_batch", 1), ("sequence", 1), ("num_profiled", 1)):
            _at_least(name, getattr(self, name), least)
        for name in ("num_warmup", "num_timed"):
            _at_least(name, getattr(self, name), 0)
        if self.stage not in (0, 1, 2, 3):
            raise ValueError(f"stage is {self.stage}; ZeRO has the stages 0, 1, 2 and 3")
        if self.device not in BACKENDS:
            raise ValueError(f"device is {self.device!r}; expected one of {', '.join(BACKENDS)}")
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {self.timeout_s}; expected a number of seconds above 0")
        check_sequence(self.decoder, self.sequence)

    @property
    def decoder(self) -> DecoderConfig:
        """Shape of the model."""
        return find_model(self.model)

    @property
    def num_steps(self) -> int:
        """All optimizer steps of the run."""
        return self.num_warmup + self.num_timed + NUM_SETTLE + self.num_profiled

    @property
    def backend(self) -> str:
        """Backend of the process group."""
        return BACKENDS[self.device]


#: Steps between the timed and the profiled window, with the profiler on but not recording.
NUM_SETTLE = 1

#: Process-group backend of each device.
BACKENDS = {"cuda": "nccl", "cpu": "gloo"}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkDefaults:
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

DEFAULT_SEED = 1337
DEFAULT_TIMEOUT_S = 900.0


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


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}; expected {least} or more")
