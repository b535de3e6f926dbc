"""What compute pays for running beside communication: the same kernels alone and beside it.

Collectives run on the device's own processors and through its memory, so kernels beside them take longer. Kernels of
one name and launch shape (grid and block) on one device are compared: those that run alone, and those of whose time at
least half has communication beside it. The difference of the medians, times the number beside, is what was lost.

Names and shapes do not tell the size of a problem. Kernels whose durations alone spread widely are taken for problems
of several sizes and are not compared, nor are fewer than five on a side. The uncertainty is that of the two medians,
``1.2533 σ / √n`` each, with σ from the median absolute deviation; those of several kernels add in squares.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict

from zerotrace.analysis.launches import on_device
from zerotrace.analysis.partition import DeviceSets
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import Category, KernelTax, NotCompared, OverlapTax, RankTax, StepWindow, TaxVerdict
from zerotrace.tables import BoolArray, codes_and_names, equals, ints, number_pairs, optional_ints
from zerotrace.units import format_ns, format_ratio

_MOST_KERNELS = 12

#: Kernels needed on each side.
FEWEST = 5

#: Part of a kernel's time with communication beside it from which on it counts as beside.
BESIDE = 0.5

#: Part of the time beside communication that has to be of kernels compared.
ENOUGH = 0.5

#: Kernels alone are of one kind if nine tenths and one tenth of them differ by no more than this part of the median.
ONE_KIND = 0.25


class DeviceTax(Struct, frozen=True, kw_only=True):
    """The kernels of one device that run beside communication, compared with their like; sums over all steps."""

    device: int
    num_steps: int
    beside_ns: int
    """Time of compute kernels with communication beside them."""
    compared_ns: int
    """Of it, that of kernels that are compared."""
    kernels: tuple[KernelTax, ...]
    """Those that run beside communication for any time, the costliest first."""
    overlapped: Intervals
    """Communication with compute beside it, within the steps."""


class Kernels(Struct, frozen=True, eq=False):
    """Compute kernels of a device that start in a step. Columns have one entry a kernel.

    There may be millions of them, so that columns are no wider than need be.

    Attributes:
        start: nanoseconds.
        duration: nanoseconds.
        step: int32.
        name: as a code of the event table, int32.
        shape: as a code of the event table, int32; -1 where unknown.
        names: what the codes stand for.
        shapes: likewise.
    """

    start: Int64Array
    duration: Int64Array
    step: npt.NDArray[np.int32]
    name: npt.NDArray[np.int32]
    shape: npt.NDArray[np.int32]
    names: list[str]
    shapes: list[str]

    @classmethod
    def of_all(cls, parts: Sequence[Kernels]) -> Kernels:
        """Those of several tables whose texts have the same codes."""
        columns = ("start", "duration", "step", "name", "shape")
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in columns}
        return cls(**joined, names=parts[-1].names, shapes=parts[-1].shapes)


def find_kernels(events: pa.Table, device: int, counted: BoolArray) -> Kernels:
    """The compute kernels of a device that start in a step.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        device: device index.
        counted: which of the rows are looked at; shape ``(num_rows,)``.
    """
    step, in_step = optional_ints(events, "step")
    duration = ints(events, "dur_ns")
    chosen = counted & on_device(events) & (ints(events, "device") == device) & in_step & (duration > 0)
    rows = np.flatnonzero(chosen & equals(events, "category", Category.COMPUTE.value))
    name, names = codes_and_names(events, "name")
    shape, shapes = codes_and_names(events, "launch_shape")
    return Kernels(
        start=ints(events, "start_ns")[rows],
        duration=duration[rows],
        step=step[rows].astype(np.int32),
        name=name[rows].astype(np.int32),
        shape=shape[rows].astype(np.int32),
        names=names,
        shapes=shapes,
    )


def device_tax(rank: int, kernels: Kernels, time: DeviceSets, windows: Sequence[StepWindow]) -> DeviceTax:
    """Compares the kernels of a device that communicates.

    Args:
        rank: global rank.
        kernels: those of the device.
        time: its time.
        windows: the rank's step windows.
    """
    device = time.device or 0
    beside_ns = time.comm.within(kernels.start, kernels.start + kernels.duration)
    found, compared_ns = [], 0
    for mine in _kinds(kernels, beside_ns):
        name, shape = int(kernels.name[mine[0]]), int(kernels.shape[mine[0]])
        duration, beside = kernels.duration[mine], beside_ns[mine]
        is_beside = beside >= BESIDE * duration
        figures = _compare(np.sort(duration[beside == 0]), np.sort(duration[is_beside]), shape >= 0)
        compared_ns += int(beside[is_beside].sum()) if figures.not_compared is None else 0
        found.append(
            KernelTax(
                rank=rank,
                device=device,
                name=kernels.names[name],
                launch_shape=kernels.shapes[shape] if shape >= 0 else None,
                num_alone=int((beside == 0).sum()),
                num_beside=int(is_beside.sum()),
                num_between=int(((beside > 0) & ~is_beside).sum()),
                **asdict(figures),
            )
        )
    steps = Intervals.union([window.start_ns for window in windows], [window.end_ns for window in windows])
    return DeviceTax(
        device=device,
        num_steps=int(np.unique(kernels.step).size),
        beside_ns=int(beside_ns.sum()),
        compared_ns=compared_ns,
        kernels=tuple(sorted(found, key=lambda kernel: -(kernel.lost_ns or 0.0))),
        overlapped=time.overlapped & steps,
    )


def sum_up(tax: DeviceTax, rank: int, transferring: Intervals | None) -> RankTax:
    """The overlap tax of one device, a step.

    Args:
        tax: its kernels compared.
        rank: global rank.
        transferring: when a collective of the device runs and all its members have started; ``None`` without peers.
    """
    steps = max(tax.num_steps, 1)
    compared = [kernel for kernel in tax.kernels if kernel.not_compared is None]
    enough = tax.beside_ns > 0 and tax.compared_ns >= ENOUGH * tax.beside_ns
    lost = sum(kernel.lost_ns or 0.0 for kernel in compared)
    error = math.sqrt(sum((kernel.error_ns or 0.0) ** 2 for kernel in compared))
    alone = sum(kernel.num_beside * (kernel.alone_ns or 0.0) for kernel in compared)
    verdict = TaxVerdict.MEASURED if abs(lost) > error else TaxVerdict.WITHIN_NOISE
    if not enough:
        verdict = TaxVerdict.TOO_FEW if tax.beside_ns else TaxVerdict.NO_OVERLAP
    hidden = None if transferring is None else (tax.overlapped & transferring).length / steps
    return RankTax(
        rank=rank,
        device=tax.device,
        verdict=verdict,
        beside_ns=tax.beside_ns / steps,
        compared_ratio=tax.compared_ns / tax.beside_ns if tax.beside_ns else None,
        slowdown_ratio=(alone + lost) / alone if enough else None,
        lost_ns=lost / steps if enough else None,
        error_ns=error / steps if enough else None,
        hidden_transfer_ns=hidden,
        net_ns=hidden - lost / steps if enough and hidden is not None else None,
    )


def tell(ranks: Sequence[RankTax], kernels: Sequence[KernelTax]) -> OverlapTax | None:
    """The overlap tax of a run in words; ``None`` where no device communicates.

    Args:
        ranks: the tax of each device.
        kernels: the kinds of kernel of all of them.
    """
    if not ranks:
        return None
    losing = sorted((one for one in kernels if one.lost_ns is not None), key=lambda one: -(one.lost_ns or 0.0))
    return OverlapTax(sentence=_sentence(ranks), ranks=tuple(ranks), kernels=tuple(losing[:_MOST_KERNELS]))


def _sentence(ranks: Sequence[RankTax]) -> str:
    beside = [tax for tax in ranks if tax.verdict is not TaxVerdict.NO_OVERLAP]
    if not beside:
        return "Overlap tax: none, since no compute kernel runs beside communication."
    told = [tax for tax in beside if tax.lost_ns is not None]
    if not told:
        most = max(beside, key=lambda tax: tax.beside_ns)
        return (
            f"Overlap tax: too few samples. On rank {most.rank} compute kernels run beside communication for "
            f"{format_ns(most.beside_ns)} a step; {format_ratio(most.compared_ratio)} of that is of kernels that "
            "ran often enough alone too."
        )
    worst = max(told, key=lambda tax: tax.lost_ns or 0.0)
    lost = f"{format_ns(worst.lost_ns)} ± {format_ns(worst.error_ns)} a step"
    if worst.verdict is TaxVerdict.WITHIN_NOISE:
        return f"Overlap tax: within noise. The most is {lost}, on rank {worst.rank}."
    text = (
        f"Overlap tax: on rank {worst.rank} compute beside communication takes {worst.slowdown_ratio:.2f} × as long as "
        f"alone (compared: {format_ratio(worst.compared_ratio)} of it): {lost}"
    )
    if worst.net_ns is None or worst.hidden_transfer_ns is None:
        return f"{text}. What it hides is unknown without the other ranks."
    if worst.net_ns < 0:
        return f"{text}. It hides {format_ns(worst.hidden_transfer_ns)} of transfer, less than it costs."
    return f"{text}. It hides {format_ns(worst.hidden_transfer_ns)} of transfer, so {format_ns(worst.net_ns)} are won."


def _kinds(kernels: Kernels, beside: Int64Array) -> Iterator[Int64Array]:
    """The kernels of each name and launch shape of which any has communication beside it."""
    count, kind = number_pairs(kernels.name, kernels.shape)
    order = np.argsort(kind, kind="stable")
    borders = np.searchsorted(kind[order], np.arange(count + 1))
    touched = np.zeros(count, dtype=bool)
    touched[kind[beside > 0]] = True
    for number in np.flatnonzero(touched).tolist():
        yield order[borders[number] : borders[number + 1]]


class _Comparison(Struct, frozen=True, kw_only=True):
    alone_ns: float | None
    beside_ns: float | None
    lost_ns: float | None = None
    error_ns: float | None = None
    not_compared: NotCompared | None = None


def _compare(alone: Int64Array, beside: Int64Array, has_shape: bool) -> _Comparison:
    """Compares the durations of equal kernels alone and beside communication, both sorted."""
    medians = [_quantile(side, 0.5) if side.size else None for side in (alone, beside)]
    reason = _not_comparable(alone, beside, has_shape)
    if reason is not None or medians[0] is None or medians[1] is None:
        return _Comparison(alone_ns=medians[0], beside_ns=medians[1], not_compared=reason)
    error = math.hypot(_median_error(alone, medians[0]), _median_error(beside, medians[1]))
    return _Comparison(
        alone_ns=medians[0],
        beside_ns=medians[1],
        lost_ns=beside.size * (medians[1] - medians[0]),
        error_ns=2 * beside.size * error,
    )


def _not_comparable(alone: Int64Array, beside: Int64Array, has_shape: bool) -> NotCompared | None:
    if not has_shape:
        return NotCompared.NO_SHAPE
    if min(alone.size, beside.size) < FEWEST:
        return NotCompared.FEW
    spread = _quantile(alone, 0.9) - _quantile(alone, 0.1)
    return NotCompared.MIXED if spread > ONE_KIND * _quantile(alone, 0.5) else None


def _quantile(values: npt.NDArray[np.integer[Any] | np.floating[Any]], part: float) -> float:
    """The value below which a part of sorted values lies, between two of them in proportion."""
    place = part * (values.size - 1)
    low = int(place)
    high = min(low + 1, values.size - 1)
    return float(values[low]) + (place - low) * (float(values[high]) - float(values[low]))


def _median_error(values: Int64Array, middle: float) -> float:
    """Standard error of a median, from the median absolute deviation."""
    deviation = _quantile(np.sort(np.abs(values - middle)), 0.5)
    return 1.2533 * 1.4826 * deviation / math.sqrt(values.size)
