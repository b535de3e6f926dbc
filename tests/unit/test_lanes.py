"""Rows on tracks on which slices must nest: whatever the rows, none is lost and no two on a track cross."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotrace.export.lanes import lanes

ROWS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=40)


def lanes_of(rows: list[tuple[int, int]], *, nests: bool) -> list[list[tuple[int, int]]]:
    start = np.array([at for at, _ in rows], dtype=np.int64)
    end = start + np.array([length for _, length in rows], dtype=np.int64)
    return [[(int(start[row]), int(end[row])) for row in lane] for lane in lanes(start, end, nests=nests)]


def crosses(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return first[0] < second[0] < first[1] < second[1] or second[0] < first[0] < second[1] < first[1]


def overlaps(first: tuple[int, int], second: tuple[int, int]) -> bool:
    return max(first[0], second[0]) < min(first[1], second[1])


@given(rows=ROWS, nests=st.booleans())
def test_every_row_has_one_lane_on_which_it_crosses_none(rows: list[tuple[int, int]], nests: bool) -> None:
    found = lanes_of(rows, nests=nests)
    assert sorted(row for lane in found for row in lane) == sorted((at, at + length) for at, length in rows)
    for place, lane in enumerate(found):
        assert lane == sorted(lane, key=lambda row: (row[0], -row[1]))
        pairs = [(a, b) for i, a in enumerate(lane) for b in lane[i + 1 :]]
        assert not any(crosses(a, b) for a, b in pairs)
        if place or not nests:
            assert not any(overlaps(a, b) for a, b in pairs)


@given(rows=ROWS)
def test_rows_that_only_follow_each_other_need_no_more_lanes_than_run_at_once(rows: list[tuple[int, int]]) -> None:
    solid = [(at, length) for at, length in rows if length]
    most = max((sum(a <= at < a + n for a, n in solid) for at, _ in solid), default=0)
    assert len(lanes_of(solid, nests=False)) <= max(most, 1) + 1


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], []),
        ([(0, 10), (10, 5)], [[(0, 10), (10, 15)]]),
        ([(0, 10), (2, 3), (2, 8)], [[(0, 10), (2, 10), (2, 5)]]),
        ([(0, 10), (5, 10), (12, 1)], [[(0, 10), (12, 13)], [(5, 15)]]),
    ],
)
def test_calls_within_calls_share_a_lane(rows: list[tuple[int, int]], expected: list[list[tuple[int, int]]]) -> None:
    assert lanes_of(rows, nests=True) == expected
