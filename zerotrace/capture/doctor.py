"""Examines what this machine can capture: runs small programs, and has the checks judge what they found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from zerotrace.capture import checks
from zerotrace.capture.checks import Answer, Check, Health
from zerotrace.capture.engines import DEEPSPEED, ENGINES, SINGLE, EngineKind
from zerotrace.capture.machine import missing_packages, version_of

_LIMIT_S = 40.0


class Diagnosis(Struct, frozen=True, kw_only=True):
    """All checks, and what can be captured."""

    checks: tuple[Check, ...]
    devices: tuple[str, ...] = ()
    """Devices on which a capture is possible."""
    engines: tuple[str, ...] = ()
    """Engines that can be captured on them."""


def examine(out: Path) -> Diagnosis:
    """Examine this machine.

    Args:
        out: the folder that captures go into; need not exist.
    """
    if missing := missing_packages(SINGLE.packages):
        return Diagnosis(checks=(checks.check_packages(missing), checks.check_space(out)))
    with tempfile.TemporaryDirectory(prefix="zerotrace-doctor-") as scratch:
        # At once: most of the time is the import of torch.
        first = run_probes(
            {
                "torch": [["torch"]],
                "deepspeed": [["deepspeed"]],
                "gloo": _all_reduce("gloo", 2, Path(scratch) / "gloo"),
            }
        )
        num_devices = (first["torch"].found or {}).get("num_devices", 0)
        second = {}
        if num_devices:
            num_ranks = min(2, num_devices)
            nccl = _all_reduce("nccl", num_ranks, Path(scratch) / "nccl")
            # One after the other: the profiler's probe is to see an idle device.
            second = {**run_probes({"cupti": [["cupti"]]}), **run_probes({"nccl": nccl})}
    deepspeed = checks.check_deepspeed(first["deepspeed"])
    base = [checks.check_torch(first["torch"]), checks.check_space(out)]
    cpu = [checks.check_gloo(first["gloo"])]
    cuda = [checks.check_devices(first["torch"], second.get("cupti"))]
    if num_devices:
        cuda += [checks.check_cupti(second["cupti"]), checks.check_nccl(second["nccl"], num_ranks)]
        cuda.append(checks.check_shared_memory())
    devices = [name for name, own in (("cuda", cuda), ("cpu", cpu)) if _possible(base + own)]
    engines = [kind.name for kind in ENGINES.values() if devices and _has_needs(kind, deepspeed, first["torch"])]
    return Diagnosis(
        checks=(base[0], deepspeed, *base[1:], *cpu, *cuda), devices=tuple(devices), engines=tuple(engines)
    )


def run_probes(probes: Mapping[str, Sequence[Sequence[str]]], limit_s: float = _LIMIT_S) -> dict[str, Answer]:
    """Run probes side by side, each in one or more processes of its own.

    Args:
        probes: name -> arguments of :mod:`zerotrace.capture.probes`, one entry a process.
        limit_s: time that all of them have.
    """
    deadline = time.monotonic() + limit_s
    running = {name: [_start(arguments) for arguments in group] for name, group in probes.items()}
    try:
        return {name: _answer(processes, deadline, limit_s) for name, processes in running.items()}
    finally:
        for processes in running.values():
            for process in processes:
                _end(process)


def _possible(checks: Sequence[Check]) -> bool:
    return all(check.health in (Health.OK, Health.WARNING) for check in checks)


def _has_needs(kind: EngineKind, deepspeed: Check, torch: Answer) -> bool:
    """Whether zerotrace's own model can be trained with an engine here."""
    if kind is DEEPSPEED:
        return _possible([deepspeed])
    version = version_of((torch.found or {}).get("version", ""))
    return kind.runner is not None and (kind.min_torch is None or version >= kind.min_torch)


def _all_reduce(backend: str, num_ranks: int, store: Path) -> list[list[str]]:
    return [["all-reduce", backend, str(rank), str(num_ranks), str(store)] for rank in range(num_ranks)]


def _start(arguments: Sequence[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "zerotrace.capture.probes", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def _answer(processes: Sequence[subprocess.Popen[str]], deadline: float, limit_s: float) -> Answer:
    """What the first process of a probe says, or why one of them has failed."""
    answers = []
    for process in processes:
        try:
            output, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return Answer(failure=f"no answer within {limit_s:g} s")
        if process.returncode:
            last = errors.strip().splitlines()[-1:] or [f"exit code {process.returncode}"]
            return Answer(failure=last[0][:300])
        answers.append(json.loads(output.strip().splitlines()[-1]))
    return Answer(found=answers[0])


def _end(process: subprocess.Popen[str]) -> None:
    """End a probe and what it has started, if there is anything left."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
