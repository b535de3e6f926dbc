"""The checks of ``zerotrace doctor``: each says what was found, what that means for a capture, and what to do."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from msgspec import Struct

from zerotrace.capture.folder import status_of
from zerotrace.capture.machine import version_of
from zerotrace.units import format_bytes

#: DeepSpeed and torch from here on are supported; DeepSpeed was tried up to, and including, the second.
MIN_TORCH = (2, 4)
MIN_DEEPSPEED = (0, 16)
TRIED_DEEPSPEED = (0, 19)

_NEEDED_BYTES = 64 << 20
_AMPLE_BYTES = 2 << 30
_SHM_BYTES = 1 << 30

#: Most bytes of a name, less what a capture hangs on to it while it runs.
_NAME_BYTES = 255 - len("..partial")


class Health(str, Enum):
    """How a check came out."""

    OK = "ok"
    WARNING = "warning"
    """A capture works, but not in full."""
    ABSENT = "absent"
    """Not there, and not needed for a capture on the CPU."""
    ERROR = "error"
    """A capture cannot work."""


class Check(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    name: str
    health: Health
    found: str
    means: str
    """What it means for a capture."""
    hint: str | None = None
    """What to do about it."""


class Answer(Struct, frozen=True, kw_only=True):
    """What the processes of a probe said: the content of the first, or why there is none."""

    found: Mapping[str, Any] | None = None
    failure: str = ""


def check_torch(answer: Answer) -> Check:
    """The version of torch, and its profiler."""
    found = answer.found
    if found is None:
        return _error(
            "torch",
            answer.failure,
            "torch cannot be imported, so that nothing can be captured.",
            "Run `python -c 'import torch'` and mend what it says.",
        )
    text = f"{found['version']} ({'CUDA ' + found['cuda'] if found['cuda'] else 'without CUDA'})"
    if version_of(found["version"]) < MIN_TORCH:
        return _error("torch", text, f"A capture needs torch {_dotted(MIN_TORCH)} or newer.", "pip install -U torch")
    if not found["kineto"]:
        return _error(
            "torch",
            f"{text}, built without Kineto",
            "This torch cannot write the traces that a capture is made of.",
            "Install a torch that is built with Kineto, as PyPI's are.",
        )
    return _ok("torch", text, "Kineto is built in: every rank can be traced.")


def check_deepspeed(answer: Answer) -> Check:
    """The version of DeepSpeed, and the functions that labels hook into."""
    found = answer.found
    if found is None:
        return _error(
            "DeepSpeed",
            answer.failure,
            "DeepSpeed cannot be imported, so that no ZeRO stage can be captured, only torch's own engines "
            "(`--engine`).",
            "pip install 'zerotrace[capture]'; if it is there, mend what `python -c 'import deepspeed'` says.",
        )
    version = version_of(found["version"])
    if version < MIN_DEEPSPEED:
        return _error(
            "DeepSpeed",
            found["version"],
            f"A capture of a ZeRO stage needs DeepSpeed {_dotted(MIN_DEEPSPEED)} or newer; torch's own "
            "engines (`--engine`) need none.",
            "pip install -U deepspeed",
        )
    if found["missing"]:
        return _warning(
            "DeepSpeed",
            f"{found['version']}, without the functions for: {', '.join(found['missing'])}",
            "A capture works, but those labels will be absent from its traces.",
            f"DeepSpeed {_dotted(MIN_DEEPSPEED)} to {_dotted(TRIED_DEEPSPEED)} have them all.",
        )
    if version > TRIED_DEEPSPEED:
        return _warning(
            "DeepSpeed",
            f"{found['version']}, newer than any that was tried",
            "All functions for labels are there; whether they still mean the same is not known.",
            "Compare the labels in a trace with what you expect, or install an older one.",
        )
    return _ok("DeepSpeed", found["version"], "All functions for labels are there.")


def check_space(out: Path) -> Check:
    """Whether captures can be written, and how much room there is."""
    folder = out.absolute()
    while status_of(folder) is None:
        folder = folder.parent
    if len(os.fsencode(out.name)) > _NAME_BYTES or not folder.is_dir() or not _takes_folders(folder):
        return _error(
            "output",
            f"{folder if folder != out.absolute().parent else out} cannot be written",
            f"No capture can be written into {out}.",
            "Pass an --out in a place where you can write.",
        )
    free = shutil.disk_usage(folder).free
    found = f"{format_bytes(free)} free for {out}"
    if free < _NEEDED_BYTES:
        return _error(
            "output",
            found,
            "Too little for the traces of even a small model: a capture would end with a full disk.",
            "Make room, or pass an --out on another disk.",
        )
    if free < _AMPLE_BYTES:
        return _warning(
            "output",
            found,
            "Enough for a small model. A rank of a large one writes some hundred MB before it compresses them.",
            "Make room, or pass an --out on another disk.",
        )
    return _ok("output", found, "Room for the traces of many ranks.")


def _takes_folders(folder: Path) -> bool:
    """Whether a folder can be made there: tried, since permissions say nothing of /proc and its like."""
    try:
        with tempfile.TemporaryDirectory(prefix=".zerotrace-doctor-", dir=folder):
            return True
    except OSError:
        return False


def check_gloo(answer: Answer) -> Check:
    """Whether two processes of this machine can talk over gloo."""
    if (failure := _sum_failure(answer)) is not None:
        return _error(
            "gloo",
            failure,
            "No capture on the CPU: its ranks talk over gloo.",
            "Check the loopback interface (`ip address show lo`), and GLOO_SOCKET_IFNAME if it is set.",
        )
    return _ok("gloo", "two ranks have met", "A capture on the CPU can work.")


def check_devices(torch: Answer, cupti: Answer | None) -> Check:
    """The CUDA devices, and whether somebody else is using them."""
    num_devices = (torch.found or {}).get("num_devices", 0)
    if not num_devices:
        return _absent(
            "CUDA",
            "torch sees no CUDA device",
            "A capture runs on the CPU over gloo: what happens is ZeRO's, its times say nothing about GPUs.",
            "If there is one: check `nvidia-smi`, CUDA_VISIBLE_DEVICES, and that torch is built for CUDA.",
        )
    devices = (cupti.found or {}).get("devices", []) if cupti else []
    names = ", ".join(sorted({device["name"] for device in devices}))
    found = f"{num_devices} device{'s' if num_devices > 1 else ''}{f' ({names})' if names else ''}"
    used = [index for index, device in enumerate(devices) if device["free"] < 0.9 * device["total"]]
    if used:
        return _warning(
            "CUDA",
            f"{found}; others hold memory on {', '.join(map(str, used))}",
            "A capture works, but shares these devices: its step times are not those of a run alone.",
            "See `nvidia-smi` for who it is; CUDA_VISIBLE_DEVICES chooses other devices.",
        )
    return _ok("CUDA", found, f"--gpus up to {num_devices} on this machine.")


def check_cupti(answer: Answer) -> Check:
    """Whether the profiler gets records of kernels."""
    found = answer.found
    if found is None:
        return _error(
            "CUPTI",
            answer.failure,
            "A small profile on the device failed, so that no GPU can be captured.",
            "Run a program with torch.profiler by itself, and mend what it says.",
        )
    if not found["num_kernels"]:
        return _error(
            "CUPTI",
            "a kernel has run, but the profiler has no record of it",
            "Traces would hold no device time: only one profiler can use CUPTI at a time.",
            "End Nsight Systems, Nsight Compute, dcgmi or another profiler on this machine, and look again. In a "
            "container, the driver may forbid profiling (NVreg_RestrictProfilingToAdminUsers).",
        )
    return _ok("CUPTI", "free, and sees kernels", "Traces will hold device time.")


def check_nccl(answer: Answer, num_ranks: int) -> Check:
    """Whether ranks on different devices can talk."""
    ranks = f"{num_ranks} rank{'s' if num_ranks > 1 else ''}"
    if (failure := _sum_failure(answer)) is not None:
        return _error(
            "NCCL",
            failure,
            f"An all-reduce of {ranks} over NCCL failed, so that no GPU can be captured.",
            "NCCL_DEBUG=INFO says why; on machines without peer access NCCL_P2P_DISABLE=1 helps.",
        )
    return _ok("NCCL", f"{ranks} met", "Ranks on GPUs can talk.")


def check_shared_memory() -> Check:
    """The shared memory that NCCL's ranks of one machine exchange data through, where they have no peer access."""
    folder = Path("/dev/shm")
    total = shutil.disk_usage(folder).total if folder.is_dir() else 0
    found = f"{format_bytes(total)} in {folder}"
    if total < _SHM_BYTES:
        return _warning(
            "shared memory",
            found,
            "With many ranks NCCL may fail for want of it.",
            "Start the container with --shm-size=8g or --ipc=host.",
        )
    return _ok("shared memory", found, "Enough for NCCL.")


def check_packages(missing: Sequence[str]) -> Check:
    """Packages that a capture needs and that are not installed."""
    return _error(
        "packages",
        f"{' and '.join(missing)} not installed",
        "Traces can be analysed here, but not captured.",
        "pip install 'zerotrace[capture]'",
    )


def _ok(name: str, found: str, means: str) -> Check:
    return Check(name=name, health=Health.OK, found=found, means=means)


def _warning(name: str, found: str, means: str, hint: str) -> Check:
    return Check(name=name, health=Health.WARNING, found=found, means=means, hint=hint)


def _absent(name: str, found: str, means: str, hint: str) -> Check:
    return Check(name=name, health=Health.ABSENT, found=found, means=means, hint=hint)


def _error(name: str, found: str, means: str, hint: str) -> Check:
    return Check(name=name, health=Health.ERROR, found=found, means=means, hint=hint)


def _sum_failure(answer: Answer) -> str | None:
    if answer.found is None:
        return answer.failure
    if answer.found["sum"] != answer.found["expected"]:
        return f"an all-reduce gave {answer.found['sum']}, not {answer.found['expected']}"
    return None


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))
