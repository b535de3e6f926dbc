"""The headline figures of every rank in one place, by rank and by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zerotrace.model import Analysis, RankFigure, RankFigures, RankValue, StepPartition

#: Figures that are drawn by rank and step, in this order. Exposed time is one figure where peers are unknown.
_MAPPED = (RankFigure.SPAN, RankFigure.COMPUTE, RankFigure.EXPOSED, RankFigure.TRANSFER, RankFigure.WAIT,
           RankFigure.IDLE, RankFigure.CAUSED_WAIT)  # fmt: skip

#: By figure and step: the value of each rank that has one.
Cells = Mapping[RankFigure, Mapping[int, Sequence[RankValue]]]


def rank_figures(analysis: Analysis) -> tuple[RankFigures, ...]:
    """The figures of every rank's mean step, beside how it arrives and what it holds.

    Args:
        analysis: its ranks, stragglers, collectives and manifest are used.

    Returns:
        One record a rank and device, in their order.
    """
    lateness = {} if analysis.stragglers is None else {one.rank: one for one in analysis.stragglers.ranks}
    caused = caused_waits(analysis)
    peaks = {} if analysis.manifest is None else {one.rank: one.peak_bytes for one in analysis.manifest.ranks}
    found = []
    for mean in sorted(analysis.ranks, key=lambda mean: (mean.rank, -1 if mean.device is None else mean.device)):
        late, waits = lateness.get(mean.rank), caused.get(mean.rank)
        found.append(
            RankFigures(
                rank=mean.rank,
                device=mean.device,
                span_ns=mean.span_ns,
                own_ns=None if mean.exposed_wait_ns is None else mean.span_ns - mean.exposed_wait_ns,
                compute_ns=mean.compute_ns,
                exposed_ns=mean.exposed_ns,
                exposed_transfer_ns=mean.exposed_transfer_ns,
                exposed_wait_ns=mean.exposed_wait_ns,
                idle_ns=mean.idle_ns,
                host_bound_ns=mean.host_bound_ns,
                num_late=None if late is None else late.num_late,
                late_ns=None if late is None else late.late_ns,
                caused_wait_ns=None if waits is None else sum(waits.values()),
                peak_bytes=peaks.get(mean.rank),
            )
        )
    return tuple(found)


def caused_waits(analysis: Analysis) -> dict[int, dict[int, int]]:
    """What others waited for each rank, by rank and step, nanoseconds summed over members."""
    found: dict[int, dict[int, int]] = {}
    for arrival in analysis.collectives.arrivals if analysis.collectives is not None else ():
        found.setdefault(arrival.rank, {})[arrival.step] = arrival.caused_wait_ns
    return found


def values_of(ranks: Sequence[RankFigures], figure: RankFigure) -> list[RankValue]:
    """One figure of the ranks of which it is known."""
    found = ((one, getattr(one, figure.value)) for one in ranks)
    return [RankValue(rank=one.rank, device=one.device, value=value) for one, value in found if value is not None]


def step_cells(analysis: Analysis) -> Cells:
    """The figures of every rank and step that are drawn; those that are known nowhere are left out.

    Args:
        analysis: its partition and collectives are used.

    Returns:
        By figure and step, the values in the order of the partition.
    """
    caused = caused_waits(analysis)
    cells: dict[RankFigure, dict[int, list[RankValue]]] = {figure: {} for figure in _MAPPED}
    for part in analysis.partition:
        for figure in _MAPPED:
            value = _step_value(part, figure, caused)
            if part.known and value is not None:
                entry = RankValue(rank=part.rank, device=part.device, value=value)
                cells[figure].setdefault(part.step, []).append(entry)
    if cells[RankFigure.TRANSFER] and cells[RankFigure.WAIT]:
        del cells[RankFigure.EXPOSED]
    return {figure: steps for figure, steps in cells.items() if steps}


def _step_value(part: StepPartition, figure: RankFigure, caused: Mapping[int, Mapping[int, int]]) -> int | None:
    if figure is RankFigure.CAUSED_WAIT:
        return caused.get(part.rank, {}).get(part.step)
    value: int | None = getattr(part, figure.value)
    return value
