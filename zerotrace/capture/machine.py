"""What this machine has: packages, devices, and the variables that change what a capture measures."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from zerotrace.capture.engines import EngineKind
from zerotrace.capture.nodes import find_interface
from zerotrace.capture.plan import Nodes
from zerotrace.capture.scrub import scrub_text
from zerotrace.errors import CaptureError

#: Variables kept in the manifest: they change what is measured. Whole names, and prefixes that end with ``_``.
RECORDED_VARIABLES = (
    "NCCL_",
    "TORCH_NCCL_",
    "GLOO_",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "DS_ACCELERATOR",
)

#: Among them, those whose values name hosts.
_NAMES_HOSTS = frozenset({"NCCL_COMM_ID", "NCCL_HOSTID"})


def require_packages(names: Sequence[str]) -> None:
    """Check that what the ranks need is installed, without importing it.

    Args:
        names: packages to look for.

    Raises:
        CaptureError: a package is missing.
    """
    missing = missing_packages(names)
    if missing:
        raise CaptureError(
            f"A capture needs {' and '.join(missing)}, which this Python does not have.",
            code="package_missing",
            hint="pip install 'zerotrace[capture]'",
        )


def require_engine(kind: EngineKind) -> None:
    """Check that what the ranks of an engine need is installed, without importing it.

    Args:
        kind: the engine.

    Raises:
        CaptureError: a package is missing, torch is too old, or nothing can be captured with the engine at all.
    """
    if kind.unavailable is not None:
        raise CaptureError(
            f"--engine {kind.name}: nothing can be captured with it. {kind.unavailable}.",
            code="engine_unavailable",
            hint="--engine zero1 is ZeRO-1 as torch has it, --stage 1 as DeepSpeed has it.",
        )
    require_packages(kind.packages)
    found = importlib.metadata.version("torch")
    if kind.min_torch is not None and version_of(found) < kind.min_torch:
        raise CaptureError(
            f"--engine {kind.name} needs torch {'.'.join(map(str, kind.min_torch))} or newer; this is torch {found}.",
            code="torch_too_old",
            hint="pip install -U torch",
        )


def version_of(text: str) -> tuple[int, int]:
    """The first two numbers of a version; zeros where it has none."""
    numbers = [int(part) for part in text.split("+")[0].split(".")[:2] if part.isdigit()]
    return (numbers[0], numbers[1]) if len(numbers) == 2 else (0, 0)


def missing_packages(names: Sequence[str]) -> list[str]:
    """Those of the packages that this Python does not have."""
    return [name for name in names if importlib.util.find_spec(name) is None]


def choose_device(device: str, num_ranks: int) -> str:
    """Settle the device of a capture. Imports torch, but opens no CUDA context.

    Args:
        device: ``auto``, ``cuda`` or ``cpu``; ``auto`` takes CUDA devices if there are any.
        num_ranks: ranks of the run; on ``cuda`` each one needs a device of its own.

    Returns:
        ``cuda`` or ``cpu``.

    Raises:
        CaptureError: there is no CUDA device, or there are fewer than ranks.
    """
    if device == "cpu":
        return device
    import torch

    num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "auto" and num_devices == 0:
        return "cpu"
    if num_devices == 0:
        built_for = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
        raise CaptureError(
            f"--device cuda: torch {torch.__version__} ({built_for}) sees no CUDA device{_visible()}.",
            code="no_cuda_device",
            hint="Pass --device cpu to capture on the CPU over gloo, or install a torch for your driver.",
        )
    if num_ranks > num_devices:
        raise CaptureError(
            f"--gpus {num_ranks} asks for {num_ranks} ranks, but torch sees {num_devices} CUDA "
            f"device{'s' if num_devices > 1 else ''}{_visible()}.",
            code="too_few_devices",
            hint=f"Pass --gpus {num_devices} or less, or --device cpu.",
        )
    return "cuda"


def rank_environment(device: str, nodes: Nodes) -> dict[str, str]:
    """The environment of torchrun and its ranks: this process's own, with what a capture needs."""
    environment = dict(os.environ)
    if device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
        # gloo looks up the host's name to find an interface, which often leads to one that no other machine reaches.
        if (interface := find_interface(nodes)) is not None:
            environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    # torchrun would do the same, with a warning.
    environment.setdefault("OMP_NUM_THREADS", "1")
    # The ranks must import this very package, also where the launcher found it in its working folder. An installed one
    # they find by themselves, and site-packages must not come before the standard library.
    root = Path(__file__).resolve().parents[2]
    if root.name not in ("site-packages", "dist-packages"):
        paths = [str(root), *environment.get("PYTHONPATH", "").split(os.pathsep)]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return environment


def recorded_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that change what is measured, without paths and host names of this machine."""
    return {name: scrub_text(value) for name, value in sorted(environment.items()) if _is_recorded(name)}


def find_runner(name: str) -> Path:
    """A training program of zerotrace's own: in the installed package, else in the source tree.

    Raises:
        CaptureError: it is in neither.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "runners", package.parent / "runners"):
        if (program := folder / f"{name}.py").is_file():
            return program
    raise CaptureError(
        f"The training program runners/{name}.py is missing from this installation.",
        code="runner_missing",
        hint="Install zerotrace again, or run it from a clone of the repository.",
    )


def _is_recorded(name: str) -> bool:
    if name in _NAMES_HOSTS:
        return False
    return any(name == entry or (entry.endswith("_") and name.startswith(entry)) for entry in RECORDED_VARIABLES)


def _visible() -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return f" (CUDA_VISIBLE_DEVICES={visible!r})" if visible is not None else ""
