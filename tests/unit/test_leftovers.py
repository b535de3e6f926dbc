"""Rows that neither Seq nor order pairs: where the line lies between one collective and two that look alike."""

from __future__ import annotations

from typing import Any

import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse

#: Start and end in microseconds.
Span = tuple[float, float]


def partners(collectives: Any) -> set[tuple[float, ...]]:
    """Ends in microseconds of the rows that were found to be one collective, rank 0's first."""
    found: dict[int, list[tuple[int, float]]] = {}
    for row in collectives():
        if row["collective"] is not None:
            found.setdefault(row["collective"], []).append((row["rank"], row["end_ns"] % 10**9 / 1000))
    return {tuple(end for _, end in sorted(rows)) for rows in found.values()}


def two_ranks(first: list[Span], second: list[Span], **where: Any) -> list[TraceBuilder]:
    traces = [TraceBuilder(rank, 2).step(0, 0, 100_000).compute(90_000, 90_010) for rank in range(2)]
    for trace, spans in zip(traces, (first, second)):
        for start, end in spans:
            trace.all_gather(start, end, **where)
    return traces


@pytest.mark.parametrize(
    ("apart", "length", "one"),
    [(80, 400, True), (150, 400, False), (150, 2000, True), (250, 2000, False)],
)
def test_ends_are_one_within_a_tenth_of_a_millisecond_or_of_the_duration(
    analyse: Analyse, collectives: Any, apart: float, length: float, one: bool
) -> None:
    first = [(1000, 1000 + length), (50_000, 50_400)]
    analyse(*two_ranks(first, [(1000 + apart, 1000 + apart + length)], Seq=7))
    assert partners(collectives) == ({(1000 + length, 1000 + length + apart)} if one else set())


@pytest.mark.parametrize(("end", "one"), [(1440, True), (1446, False)])
def test_an_end_between_two_is_given_to_the_one_that_is_clearly_nearer(
    analyse: Analyse, collectives: Any, end: float, one: bool
) -> None:
    first = [(1000, 1400), (1050, 1430)]
    analyse(*two_ranks(first, [(1020, end)], Seq=7))
    assert partners(collectives) == ({(1430, end)} if one else set())


def test_order_is_not_believed_where_another_row_ends_at_the_very_moment(analyse: Analyse, collectives: Any) -> None:
    """Back to back, kernels of 4 µs touch within what clocks tell apart, so that shifted pairs seem to run together."""
    spans = [(1000 + 6 * number, 1004 + 6 * number) for number in range(6)]
    first = [span for number, span in enumerate(spans) if number != 1]
    second = [span for number, span in enumerate(spans) if number != 4]
    far = [(20_000 + 1000 * number, 20_100 + 1000 * number) for number in range(8)]
    analyse(*two_ranks(first + far, second + far))
    ends = [end for _, end in spans]
    assert partners(collectives) == {(ends[i], ends[i]) for i in (0, 2, 3, 5)} | {(end, end) for _, end in far}


def test_order_over_the_whole_trace_pairs_what_stands_before_a_row_that_is_apart(
    analyse: Analyse, collectives: Any
) -> None:
    """A row slips over the border of a step, and a later pair does not meet: order from the end would stop there."""
    traces = [TraceBuilder(rank, 2, backend="gloo").host("aten::mm", 10, 20) for rank in range(2)]
    ends = ((1100, 2100, 3100, 6100, 8100), (1100, 2100, 3100, 6900, 8100))
    for rank, trace in enumerate(traces):
        trace.step(0, 0, 3050 if rank == 0 else 2500).step(1, 3050 if rank == 0 else 2500, 9000)
        for end in ends[rank]:
            trace.host("gloo:all_gather", end - 100, end, tid=9, cat="user_annotation")
    analyse(*traces)
    assert partners(collectives) == {(end, end) for end in (1100, 2100, 3100, 8100)}
