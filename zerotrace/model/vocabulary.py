"""The words that records are written in: enums, each value with one meaning."""

from __future__ import annotations

from enum import Enum


class Category(str, Enum):
    """What a row of device time is spent on (host time, in host mode)."""

    COMPUTE = "compute"
    COMM = "comm"
    COPY = "copy"


class Owner(str, Enum):
    """What a block of memory belongs to."""

    PARAMS = "params"
    """Parameters in the dtype of the forward pass: whole ones, or this rank's partitions."""
    GRADS = "grads"
    MASTER = "master"
    """The optimizer's own copy of the parameters."""
    EXP_AVG = "exp_avg"
    EXP_AVG_SQ = "exp_avg_sq"
    REDUCE_BUCKET = "reduce_bucket"
    """Flat buffers in which gradients are collected for their reduction."""
    GRAD_PARTITION = "grad_partition"
    """This rank's share of the reduced gradients."""
    GATHERED_PARAMS = "gathered_params"
    """Stage 3's whole parameters: gathered for a moment, or persisted."""
    ACTIVATIONS = "activations"
    WORKSPACE = "workspace"
    OTHER = "other"


#: What each owner's blocks are, in a few words.
OWNER_MEANINGS = {
    Owner.PARAMS: "parameters, whole or this rank's partitions",
    Owner.GRADS: "gradients of parameters",
    Owner.MASTER: "the optimizer's own copy of the parameters",
    Owner.EXP_AVG: "first moments",
    Owner.EXP_AVG_SQ: "second moments",
    Owner.REDUCE_BUCKET: "flat buffers in which gradients are collected for their reduction",
    Owner.GRAD_PARTITION: "this rank's share of the reduced gradients",
    Owner.GATHERED_PARAMS: "stage 3's whole parameters, gathered or persisted",
    Owner.ACTIVATIONS: "what forward keeps for backward, and what backward makes on its way",
    Owner.WORKSPACE: "workspaces of libraries, and temporaries of the optimizer",
    Owner.OTHER: "anything else",
}


class Mode(str, Enum):
    """Where the time of a run is read from."""

    DEVICE = "device"
    """Kernels, copies and sets on a device."""
    HOST = "host"
    """CPU operators and ``gloo:*`` annotations; used when there are no device rows and the backend is gloo."""


class Attribution(str, Enum):
    """How device rows are given to steps."""

    CLIP = "clip"
    """Each row is cut at the borders of the host's step window."""
    LAUNCH = "launch"
    """Each row belongs, whole, to the step in which it was launched."""


class Level(str, Enum):
    """How much a diagnostic weakens the result."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class WindowKind(str, Enum):
    """The parts of a capture, in the order in which they run."""

    WARMUP = "warmup"
    TIMED = "timed"
    """Without a profiler: the run as it is."""
    UNLABELLED = "unlabelled"
    """Like timed: every second step of the window in which labels are weighed."""
    LABELLED = "labelled"
    """The steps between these, with the label hooks in place: what they cost."""
    LIGHT = "light"
    """The profiler records what the device does, and nothing of the host."""
    DETAILED = "detailed"
    """The profiler records host and device, with labels."""
    MEMORY = "memory"
    """The allocator's history is recorded."""

    @classmethod
    def _missing_(cls, value: object) -> WindowKind | None:
        # Its name in manifests of version 1.0.
        return cls.DETAILED if value == "profiled" else None


# --------------------------------------------------------------------------- capture
