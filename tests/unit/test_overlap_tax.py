"""Compute kernels alone and beside communication: hand-worked timelines.

Kernels start every 100 µs, alone in even places and inside of a gather of 50 µs in odd ones, unless a test says else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from zerotrace.model import OverlapTax, RankTax, TaxVerdict

SHAPE = {"grid": [8, 15, 1], "block": [384, 1, 1]}
ALONE, BESIDE = 10, 16


def kernels(
    alone: Sequence[float], beside: Sequence[float], *, rank: int = 0, late: float = 0, **args: Any
) -> TraceBuilder:
    """Kernels of these durations, the latter each inside of a gather that begins ``late`` µs later."""
    trace = TraceBuilder(rank, 2).step(0, 0, 100_000)
    for i, duration in enumerate(alone):
        trace.compute(1_000 + 200 * i, 1_000 + 200 * i + duration, **{**SHAPE, **args})
    for i, duration in enumerate(beside):
        at = 1_100 + 200 * i
        trace.all_gather(at + late, at + 50).compute(at + late, at + late + duration, **{**SHAPE, **args})
    return trace


def tax(analyse: Analyse, *traces: TraceBuilder) -> OverlapTax:
    found = analyse(*traces).overlap_tax
    assert found is not None
    return found


def first(analyse: Analyse, *traces: TraceBuilder) -> RankTax:
    return tax(analyse, *traces).ranks[0]


def test_what_kernels_lose_beside_communication_is_the_difference_of_medians(analyse: Analyse) -> None:
    ranks = [kernels([ALONE] * 6, [BESIDE] * 6, rank=rank) for rank in range(2)]
    found = tax(analyse, *ranks)
    for rank in found.ranks:
        assert (rank.verdict, rank.lost_ns, rank.error_ns) == (TaxVerdict.MEASURED, 36_000, 0)
        assert (rank.slowdown_ratio, rank.compared_ratio, rank.beside_ns) == (1.6, 1, 96_000)
        assert (rank.hidden_transfer_ns, rank.net_ns) == (96_000, 60_000)
    assert found.sentence == (
        "Overlap tax: on rank 0 compute beside communication takes 1.60 × as long as alone (compared: 100 % of it): "
        "36.0 µs ± 0 ns a step. It hides 96.0 µs of transfer, so 60.0 µs are won."
    )


def test_what_is_hidden_while_a_rank_waits_is_no_gain(analyse: Analyse) -> None:
    # rank 1 comes when rank 0's kernel is over: nothing of the transfer is hidden on rank 0
    ranks = kernels([ALONE] * 6, [BESIDE] * 6), kernels([], [BESIDE] * 6, rank=1, late=20)
    rank = first(analyse, *ranks)
    assert (rank.lost_ns, rank.hidden_transfer_ns, rank.net_ns) == (36_000, 0, -36_000)
    assert "less than it costs" in tax(analyse, *ranks).sentence


def test_without_peers_the_gain_is_unknown(analyse: Analyse) -> None:
    rank = first(analyse, kernels([ALONE] * 6, [BESIDE] * 6))
    assert (rank.lost_ns, rank.hidden_transfer_ns, rank.net_ns) == (36_000, None, None)


def test_means_are_over_steps(analyse: Analyse) -> None:
    trace = kernels([ALONE] * 6, [BESIDE] * 6)
    trace.events = [event for event in trace.events if not event["name"].startswith("ProfilerStep")]
    trace.step(0, 0, 1_650).step(1, 1_650, 100_000)
    rank = first(analyse, trace)
    assert (rank.lost_ns, rank.beside_ns) == (18_000, 48_000)


@pytest.mark.parametrize(("num_alone", "num_beside"), [(4, 6), (6, 4)])
def test_fewer_than_five_on_a_side_are_too_few(analyse: Analyse, num_alone: int, num_beside: int) -> None:
    found = tax(analyse, kernels([ALONE] * num_alone, [BESIDE] * num_beside))
    assert (found.ranks[0].verdict, found.ranks[0].lost_ns) == (TaxVerdict.TOO_FEW, None)
    assert found.sentence.startswith("Overlap tax: too few samples.")
    assert "0 % of that is of kernels that ran often enough alone too" in found.sentence


def test_kernels_of_several_sizes_under_one_name_are_not_compared(analyse: Analyse, tmp_path: Path) -> None:
    assert first(analyse, kernels([10, 10, 10, 20, 20, 20], [16] * 6)).verdict is TaxVerdict.TOO_FEW
    (row,) = pq.read_table(tmp_path / "run" / "analysis" / "overlap_tax.parquet").to_pylist()
    assert (row["not_compared"], row["lost_ns"]) == ("mixed", None)
    assert (row["num_alone"], row["num_beside"], row["alone_ns"], row["beside_ns"]) == (6, 6, 15_000, 16_000)


def test_equal_names_with_other_launch_shapes_are_other_kernels(analyse: Analyse, tmp_path: Path) -> None:
    trace = kernels([ALONE] * 6, [])
    other = kernels([], [BESIDE] * 6, grid=[9, 15, 1])
    trace.events += other.events[1:]
    assert first(analyse, trace).verdict is TaxVerdict.TOO_FEW
    (row,) = pq.read_table(tmp_path / "run" / "analysis" / "overlap_tax.parquet").to_pylist()
    assert (row["launch_shape"], row["num_alone"], row["not_compared"]) == ("9x15x1/384x1x1", 0, "few")


@pytest.mark.parametrize("shape", [{"grid": None}, {"block": "384"}])
def test_without_a_launch_shape_nothing_is_compared(analyse: Analyse, tmp_path: Path, shape: dict[str, Any]) -> None:
    assert first(analyse, kernels([ALONE] * 6, [BESIDE] * 6, **shape)).verdict is TaxVerdict.TOO_FEW
    (row,) = pq.read_table(tmp_path / "run" / "analysis" / "overlap_tax.parquet").to_pylist()
    assert (row["launch_shape"], row["not_compared"]) == (None, "no_shape")


def test_a_shape_of_anything_is_written_down(analyse: Analyse, tmp_path: Path) -> None:
    analyse(kernels([], [BESIDE], grid=[[1], "2", 3]))
    (row,) = pq.read_table(tmp_path / "run" / "analysis" / "overlap_tax.parquet").to_pylist()
    assert row["launch_shape"] == "[1]x2x3/384x1x1"


def test_half_of_a_kernels_time_decides_on_which_side_it_is(analyse: Analyse, tmp_path: Path) -> None:
    trace = TraceBuilder().step(0, 0, 1000).all_gather(100, 200)
    trace.compute(92, 108, **SHAPE).compute(191, 207, **SHAPE).compute(193, 209, **SHAPE, stream=8)
    found = first(analyse, trace)
    (row,) = pq.read_table(tmp_path / "run" / "analysis" / "overlap_tax.parquet").to_pylist()
    assert (row["num_beside"], row["num_between"], row["num_alone"]) == (2, 1, 0)
    assert found.beside_ns == 8_000 + 9_000 + 7_000


def test_the_uncertainty_is_that_of_the_medians(analyse: Analyse) -> None:
    rank = first(analyse, kernels([10, 10, 10.5, 11, 11], [15, 16, 16, 17, 18]))
    # medians 10.5 and 16 of five each; both median absolute deviations are known by hand: 0.5 and 1
    error = 1.2533 * 1.4826 * (0.5**2 + 1**2) ** 0.5 / 5**0.5
    assert (rank.lost_ns, rank.error_ns) == (27_500, pytest.approx(2 * 5 * error * 1000))
    assert rank.verdict is TaxVerdict.MEASURED


def test_a_difference_below_its_uncertainty_is_noise(analyse: Analyse) -> None:
    found = tax(analyse, kernels([10, 10, 10.5, 11, 11], [9.5, 10.2, 10.6, 11, 12]))
    assert found.ranks[0].verdict is TaxVerdict.WITHIN_NOISE
    assert found.sentence.startswith("Overlap tax: within noise.")


def test_no_overlap_has_no_tax_and_the_host_has_no_kernels(analyse: Analyse) -> None:
    found = tax(analyse, TraceBuilder().step(0, 0, 1000).all_gather(100, 200).compute(300, 310, **SHAPE))
    assert found.ranks[0].verdict is TaxVerdict.NO_OVERLAP
    assert found.sentence == "Overlap tax: none, since no compute kernel runs beside communication."
    assert analyse(TraceBuilder().step(0, 0, 1000).compute(300, 310, **SHAPE)).overlap_tax is None
    host = TraceBuilder(backend="gloo").step(0, 0, 100).host("aten::mm", 10, 20)
    host.host("gloo:all_reduce", 15, 40, tid=9, cat="user_annotation")
    assert analyse(host).overlap_tax is None
