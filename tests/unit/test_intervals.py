"""The interval core against a brute-force occupancy array."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotrace.intervals import Intervals, unions_of_groups

AXIS = 64

raw_intervals = st.lists(st.tuples(st.integers(0, AXIS), st.integers(0, AXIS)), max_size=12)


def make(pairs: list[tuple[int, int]]) -> Intervals:
    return Intervals.union([a for a, _ in pairs], [b for _, b in pairs])


def occupancy(pairs: list[tuple[int, int]]) -> np.ndarray:
    """One cell a nanosecond: true where any interval covers it."""
    cells = np.zeros(AXIS, dtype=bool)
    for a, b in pairs:
        cells[a:b] = True
    return cells


def painted(intervals: Intervals) -> np.ndarray:
    return occupancy(list(zip(intervals.starts.tolist(), intervals.ends.tolist(), strict=True)))


def assert_canonical(intervals: Intervals) -> None:
    assert intervals.starts.dtype == intervals.ends.dtype == np.int64
    assert (intervals.starts < intervals.ends).all()
    assert (intervals.ends[:-1] < intervals.starts[1:]).all()


@given(raw_intervals)
def test_union_covers_what_its_members_cover(pairs: list[tuple[int, int]]) -> None:
    got = make(pairs)
    assert_canonical(got)
    assert (painted(got) == occupancy(pairs)).all()
    assert got.length == occupancy(pairs).sum()


@given(raw_intervals, raw_intervals)
def test_algebra_equals_the_occupancy_array(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    first, second = make(a), make(b)
    cells, others = occupancy(a), occupancy(b)
    for got, want in (
        (first & second, cells & others),
        (first | second, cells | others),
        (first - second, cells & ~others),
    ):
        assert_canonical(got)
        assert (painted(got) == want).all()
        assert got.length == want.sum()


@given(raw_intervals, st.integers(-3, AXIS + 3), st.integers(-3, AXIS + 3))
def test_clip_keeps_the_part_inside(pairs: list[tuple[int, int]], start: int, end: int) -> None:
    inside = np.zeros(AXIS, dtype=bool)
    inside[max(start, 0) : max(end, 0)] = True
    got = make(pairs).clip(start, end)
    assert_canonical(got)
    assert (painted(got) == (occupancy(pairs) & inside)).all()


@given(raw_intervals, raw_intervals)
def test_what_is_around_a_set_is_all_of_another_that_can_meet_it(
    a: list[tuple[int, int]], b: list[tuple[int, int]]
) -> None:
    mine, other = (Intervals.union([s for s, _ in pairs], [e for _, e in pairs]) for pairs in (a, b))
    near = other.around(mine)
    assert (mine & near, mine - near) == (mine & other, mine - other)
    assert not len(near - other)


@given(raw_intervals, st.lists(st.integers(-3, AXIS + 3), max_size=8))
def test_length_before_counts_what_lies_ahead_of_each_time(pairs: list[tuple[int, int]], times: list[int]) -> None:
    got = make(pairs).length_before(np.array(times, dtype=np.int64))
    assert got.tolist() == [int(occupancy(pairs)[: max(time, 0)].sum()) for time in times]


@given(raw_intervals, raw_intervals)
def test_parts_of_a_set_close(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    first, second = make(a), make(b)
    assert (first & second).length + (first - second).length == first.length
    assert (first | second).length == (first - second).length + second.length


def test_touching_intervals_are_one_member_and_do_not_overlap() -> None:
    assert len(make([(0, 5), (5, 9)])) == 1
    assert (make([(0, 5)]) & make([(5, 9)])).length == 0


def test_epoch_sized_nanoseconds_stay_exact() -> None:
    now = 1_790_857_026_000_000_001
    assert Intervals.union([now, now + 1], [now + 2, now + 4]).length == 4
    assert Intervals.single(now, now + 3).clip(now + 1, now + 2).length == 1


def test_empty_and_reversed_intervals_hold_no_point() -> None:
    assert len(make([(3, 3), (7, 2)])) == 0
    assert (Intervals.empty() | Intervals.empty()).length == 0


def test_lengths_must_agree() -> None:
    with pytest.raises(ValueError, match="equally long"):
        Intervals.union([1, 2], [3])


@given(raw_intervals)
def test_a_set_holds_the_points_of_its_cells(pairs: list[tuple[int, int]]) -> None:
    assert make(pairs).holds(np.arange(AXIS)).tolist() == occupancy(pairs).tolist()


@given(st.lists(st.tuples(st.integers(-50, 50), st.integers(-5, 30), st.integers(0, 3)), max_size=12))
def test_unions_of_groups_are_the_unions_of_each_group(found: list[tuple[int, int, int]]) -> None:
    starts, lengths, groups = np.array(found, dtype=np.int64).reshape(-1, 3).T
    first, last, group = unions_of_groups(starts, starts + lengths, groups)
    for number in range(4):
        own, mine = group == number, groups == number
        assert Intervals(first[own], last[own]) == Intervals.union(starts[mine], (starts + lengths)[mine])
    assert group.tolist() == sorted(group.tolist())


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=8),
    st.lists(st.tuples(st.integers(-10, 70), st.integers(0, 40)), max_size=5),
)
def test_the_length_in_windows_is_that_of_the_clipped_set(
    members: list[tuple[int, int]], windows: list[tuple[int, int]]
) -> None:
    points = Intervals.union([start for start, _ in members], [start + length for start, length in members])
    begins, lengths = np.array(windows, dtype=np.int64).reshape(-1, 2).T
    want = [points.clip(start, start + length).length for start, length in windows]
    assert points.within(begins, begins + lengths).tolist() == want
