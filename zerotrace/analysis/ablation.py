"""What prefetch is worth: the difference between two captures that differ in it alone, and how certain it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from statistics import fmean, median
from typing import Any

from zerotrace.analysis.captured import CapturedRun
from zerotrace.analysis.findings.noise import FEW_STEPS, median_error, slowest_steps
from zerotrace.analysis.work import differences, work_of
from zerotrace.model import AblatedFigure, Ablation, RunManifest, StepPartition, WindowKind

_PREFETCH = "stage3_prefetch_bucket_size"
#: Keys of ``zero_optimization`` that switch prefetch off, and what they are then.
PREFETCH_KEYS: Mapping[str, Any] = {_PREFETCH: 0, "overlap_comm": False}

#: A gain below so many standard errors is within noise.
CERTAIN = 2


def find_ablations(runs: Sequence[CapturedRun]) -> Iterator[Ablation]:
    """Every pair of stage-3 runs of equal work that differ in prefetch and in nothing else of their configuration."""
    for with_run, without_run in permutations(runs, 2):
        if _differ_in_prefetch(with_run.manifest, without_run.manifest):
            yield ablate(with_run, without_run)


def ablate(with_run: CapturedRun, without_run: CapturedRun) -> Ablation:
    """What prefetch wins.

    Formula: ``gain = without − with``, of medians over timed steps for the unprofiled step, and of means over profiled
    steps and ranks for exposed transfer and wait. Noise: the standard errors of both, added as squares; unknown for a
    figure of fewer than four steps.

    Args:
        with_run: a run with prefetch.
        without_run: the same without.
    """
    sections = [_section(run.manifest) for run in (with_run, without_run)]
    return Ablation(
        part="prefetch",
        with_run=with_run.name,
        without_run=without_run.name,
        keys={key: (sections[0].get(key), sections[1].get(key)) for key in PREFETCH_KEYS},
        step=_step(with_run.manifest, without_run.manifest),
        exposed_transfer=_exposed(with_run, without_run, lambda part: part.exposed_transfer_ns),
        exposed_wait=_exposed(with_run, without_run, lambda part: part.exposed_wait_ns),
    )


def _differ_in_prefetch(first: RunManifest, second: RunManifest) -> bool:
    if not first.stage == second.stage == 3 or first.world_size != second.world_size:
        return False
    if differences(work_of(first), work_of(second)):
        return False
    ours, theirs = _section(first), _section(second)
    off = all(theirs.get(key) == value for key, value in PREFETCH_KEYS.items())
    return off and ours.get(_PREFETCH) != 0 and _rest(first) == _rest(second)


def _section(manifest: RunManifest) -> Mapping[str, Any]:
    section = (manifest.ds_config or {}).get("zero_optimization")
    return section if isinstance(section, dict) else {}


def _rest(manifest: RunManifest) -> dict[str, Any]:
    """The configuration without what switches prefetch off."""
    section = {key: value for key, value in _section(manifest).items() if key not in PREFETCH_KEYS}
    return {**(manifest.ds_config or {}), "zero_optimization": section}


def _step(first: RunManifest, second: RunManifest) -> AblatedFigure | None:
    steps = [slowest_steps(manifest.ranks, WindowKind.TIMED) for manifest in (first, second)]
    if not all(steps):
        return None
    errors = [median_error(found) if len(found) >= FEW_STEPS else None for found in steps]
    return _figure(float(median(steps[0])), float(median(steps[1])), errors)


def _exposed(
    first: CapturedRun, second: CapturedRun, figure: Callable[[StepPartition], int | None]
) -> AblatedFigure | None:
    found = [_means_of_steps(run, figure) for run in (first, second)]
    if not all(found):
        return None
    errors = [mean_error(steps) if len(steps) >= FEW_STEPS else None for steps in found]
    return _figure(fmean(found[0]), fmean(found[1]), errors)


def _means_of_steps(run: CapturedRun, figure: Callable[[StepPartition], int | None]) -> list[float]:
    """Mean over ranks of each profiled step; empty where the figure is unknown for any."""
    if run.analysis is None:
        return []
    steps: dict[int, list[int | None]] = {}
    for part in run.analysis.partition:
        if part.known:
            steps.setdefault(part.step, []).append(figure(part))
    values = [[value for value in found if value is not None] for found in steps.values()]
    complete = all(len(known) == len(found) for known, found in zip(values, steps.values()))
    return [fmean(found) for found in values] if complete and values else []


def mean_error(values: Sequence[float]) -> float:
    """The standard error of the mean of at least two values."""
    mean = fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))


def _figure(with_ns: float, without_ns: float, errors: Sequence[float | None]) -> AblatedFigure:
    known = [error for error in errors if error is not None]
    noise = math.hypot(*known) if len(known) == len(errors) else None
    gain = without_ns - with_ns
    return AblatedFigure(
        with_ns=with_ns,
        without_ns=without_ns,
        gain_ns=gain,
        noise_ns=noise,
        within_noise=None if noise is None else abs(gain) <= CERTAIN * noise,
    )
