"""The unprofiled step by cause: the parts of the profiled step, scaled to the step that no profiler touched."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from zerotrace.model import Analysis, Cause, CausePart, Mode, StepCauses, StepPartition

#: What the device does itself: a profiler does not make it longer.
_DEVICE_WORK = frozenset({Cause.COMPUTE, Cause.EXPOSED_TRANSFER, Cause.EXPOSED, Cause.COPY})

_Parts = Mapping[Cause, Callable[[StepPartition], int | None]]

_BUSY: _Parts = {Cause.COMPUTE: lambda p: p.compute_ns}
_SPLIT_EXPOSED: _Parts = {
    Cause.EXPOSED_TRANSFER: lambda p: p.exposed_transfer_ns if p.exposed_ns else 0,
    Cause.EXPOSED_WAIT: lambda p: p.exposed_wait_ns if p.exposed_ns else 0,
}
_EXPOSED: _Parts = {Cause.EXPOSED: lambda p: p.exposed_ns}
_COPY: _Parts = {Cause.COPY: lambda p: p.copy_only_ns}
_SPLIT_IDLE: _Parts = {
    Cause.HOST_BOUND: lambda p: p.host_bound_ns,
    Cause.STALLED: lambda p: p.stalled_ns,
    Cause.TAIL: lambda p: p.tail_ns,
    Cause.UNLINKED: lambda p: p.unlinked_ns,
}
_IDLE: _Parts = {Cause.IDLE: lambda p: p.idle_ns}


def step_causes(analysis: Analysis | None, step_ns: float | None) -> tuple[StepCauses | None, str | None]:
    """The unprofiled step by cause.

    The parts are means over a rank's steps, then over ranks. A profiler slows the host: it launches later, so that
    devices idle longer and ranks wait longer for each other; kernels and transfers take as long as without it. So
    compute, transfer and copies are taken as they are, and waiting and idle time are scaled to the rest of the step:
    ``host_scale = (step − device work) / (wait + idle)``. Where device work alone is longer than the step, or the time
    is that of a host, all parts are scaled by ``step / span``.

    Args:
        analysis: of the run; ``None`` where it is not analysed.
        step_ns: its unprofiled step; ``None`` without a timed window.

    Returns:
        The parts; or ``None`` and the reason.
    """
    if step_ns is None:
        return None, "no timed window"
    if analysis is None:
        return None, "not analysed"
    ranks = _known_steps(analysis)
    if not ranks:
        return None, "no step of the trace is known"
    known = [part for steps in ranks for part in steps]
    if any(part.idle_ns is None for part in known):
        return None, "analysed by launch, so that a step does not close"
    figures = {
        **_BUSY,
        **(_SPLIT_EXPOSED if _all_known(_SPLIT_EXPOSED, known) else _EXPOSED),
        **_COPY,
        **(_SPLIT_IDLE if _all_known(_SPLIT_IDLE, known) else _IDLE),
    }
    profiled = {cause: _mean(ranks, figure) for cause, figure in figures.items()}
    span = sum(profiled.values())
    if not span:
        return None, "the profiled step is empty"
    device, host = _scales(profiled, step_ns, analysis.mode)
    parts = tuple(
        CausePart(cause=cause, profiled_ns=time, step_ns=time * (device if cause in _DEVICE_WORK else host))
        for cause, time in sorted(profiled.items(), key=lambda item: list(Cause).index(item[0]))
        if time
    )
    overlapped = _mean(ranks, lambda p: p.overlapped_ns)
    return (
        StepCauses(
            span_ns=span,
            parts=parts,
            overlapped_ns=overlapped,
            overlapped_step_ns=overlapped * device,
            device_scale=device,
            host_scale=host,
        ),
        None,
    )


def _scales(profiled: Mapping[Cause, float], step_ns: float, mode: Mode) -> tuple[float, float]:
    """Of device work, and of the rest."""
    work = sum(time for cause, time in profiled.items() if cause in _DEVICE_WORK)
    rest = sum(profiled.values()) - work
    if mode is Mode.HOST or work > step_ns or not rest:
        return (step_ns / (work + rest),) * 2
    return 1.0, (step_ns - work) / rest


def _known_steps(analysis: Analysis) -> list[list[StepPartition]]:
    """The steps of each device of each rank that its mean is over."""
    found: dict[tuple[int, int | None], list[StepPartition]] = {}
    for part in analysis.partition:
        if part.known:
            found.setdefault((part.rank, part.device), []).append(part)
    left_out = frozenset(analysis.left_out_steps)
    return [[part for part in parts if part.step not in left_out] or parts for parts in found.values()]


def _all_known(figures: _Parts, parts: Iterable[StepPartition]) -> bool:
    return all(figure(part) is not None for part in parts for figure in figures.values())


def _mean(ranks: Sequence[Sequence[StepPartition]], figure: Callable[[StepPartition], int | None]) -> float:
    return fmean(fmean(figure(part) or 0 for part in steps) for steps in ranks)
