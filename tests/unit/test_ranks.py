"""Runs of many ranks: how figures spread, who stands out, and who is shown in full."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from tests.jobs import Job
from zerotrace.analysis.ranks import MANY_RANKS, parse_ranks, require_ranks, shown_ranks, with_overview
from zerotrace.analysis.ranks.choice import MAX_ASKED, MAX_ROWS, MAX_SHOWN
from zerotrace.analysis.ranks.overview import MAX_CELLS, MAX_STEPS
from zerotrace.analysis.ranks.spread import MAX_OUTLIERS, rank_spread
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.errors import ExitCode, RanksError
from zerotrace.model import (
    Analysis,
    Finding,
    Place,
    RankFigure,
    RankOverview,
    RankValue,
    ShownBecause,
    ShownRank,
    StepPartition,
)
from zerotrace.store import read_analysis

SLOW = 17
JOB = Job(24, 40, seed=1, num_steps=4, slow_us=((SLOW, 60.0),))


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """A job of 24 ranks, one of which computes 60 µs longer ahead of each collective."""
    folder = JOB.write(tmp_path_factory.mktemp("job") / "job")
    found, place, _ = analyze([folder], options=AnalyzeOptions(hta=False, jobs=1))
    assert read_analysis(place) == found
    return found


def overview(analysis: Analysis) -> RankOverview:
    assert analysis.rank_overview is not None
    return analysis.rank_overview


def reasons(analysis: Analysis) -> dict[int, set[ShownBecause]]:
    return {entry.rank: {reason.because for reason in entry.reasons} for entry in overview(analysis).shown}


def of_ranks(values: Sequence[float]) -> list[RankValue]:
    return [RankValue(rank=rank, device=0, value=value) for rank, value in enumerate(values)]


def test_up_to_sixteen_ranks_each_is_shown_in_full(analysis: Analysis) -> None:
    few = replace(analysis, ranks=analysis.ranks[:MANY_RANKS], rank_overview=None)
    assert with_overview(few) is few
    assert shown_ranks(few) is None
    assert with_overview(replace(few, ranks=analysis.ranks[: MANY_RANKS + 1])).rank_overview is not None


def test_the_slow_rank_is_found_by_what_it_does_itself_though_all_steps_are_equally_long(analysis: Analysis) -> None:
    spans = {one.span_ns for one in overview(analysis).ranks}
    assert len(spans) == 1
    found = reasons(analysis)
    assert found[SLOW] >= {ShownBecause.SLOWEST, ShownBecause.LAST, ShownBecause.LATEST, ShownBecause.OUTLIER}
    assert {ShownBecause.FASTEST, ShownBecause.MEDIAN} <= set().union(*found.values())
    own = {one.rank: one.own_ns for one in overview(analysis).ranks}
    assert own[SLOW] == max(own.values())  # type: ignore[type-var]
    assert [rank for rank, why in found.items() if ShownBecause.FASTEST in why] == [min(own, key=lambda r: own[r] or 0)]
    assert len(found) <= MAX_SHOWN
    assert shown_ranks(analysis) == frozenset(found)


def test_figures_of_a_rank_are_those_of_the_analysis(analysis: Analysis) -> None:
    arrivals = analysis.collectives.arrivals if analysis.collectives else ()
    lateness = {one.rank: one for one in analysis.stragglers.ranks} if analysis.stragglers else {}
    for one, mean in zip(overview(analysis).ranks, analysis.ranks, strict=True):
        assert (one.rank, one.device, one.compute_ns, one.idle_ns) == (
            mean.rank, mean.device, mean.compute_ns, mean.idle_ns,
        )  # fmt: skip
        assert one.own_ns == mean.span_ns - (mean.exposed_wait_ns or 0)
        assert one.caused_wait_ns == sum(entry.caused_wait_ns for entry in arrivals if entry.rank == one.rank)
        assert (one.num_late, one.late_ns) == (lateness[one.rank].num_late, lateness[one.rank].late_ns)


def test_spreads_name_the_slow_rank_as_the_one_that_stands_out(analysis: Analysis) -> None:
    spreads = {spread.figure: spread for spread in overview(analysis).spreads}
    assert RankFigure.EXPOSED not in spreads  # its two parts are known
    for figure in (RankFigure.OWN, RankFigure.COMPUTE, RankFigure.LATE):
        assert spreads[figure].highest.rank == SLOW
        assert [one.rank for one in spreads[figure].outliers] == [SLOW]
    assert spreads[RankFigure.WAIT].lowest.rank == SLOW
    assert spreads[RankFigure.SPAN].num_outliers == 0


def test_steps_are_spread_over_the_ranks_one_by_one(analysis: Analysis) -> None:
    found = overview(analysis)
    assert found.map_steps == (2, 3, 4, 5)
    assert set(found.map_figures) >= {RankFigure.COMPUTE, RankFigure.WAIT, RankFigure.IDLE, RankFigure.CAUSED_WAIT}
    one = next(entry for entry in found.steps if entry.figure is RankFigure.COMPUTE and entry.step == 3)
    values = sorted((part.compute_ns or 0, part.rank) for part in analysis.partition if part.step == 3)
    assert (one.lowest.value, one.highest.value, one.highest.rank) == (values[0][0], values[-1][0], SLOW)
    assert one.median == (values[11][0] + values[12][0]) / 2


def test_quantiles_are_values_of_ranks_and_bins_hold_every_rank_once() -> None:
    spread = rank_spread(RankFigure.COMPUTE, of_ranks([float(value) for value in range(101)]), matters=0)
    assert (spread.lowest.value, spread.low, spread.median, spread.high, spread.highest.value) == (0, 5, 50, 95, 100)
    assert sum(spread.bins) == spread.num_known == 101
    assert spread.num_outliers == 0
    equal = rank_spread(RankFigure.COMPUTE, of_ranks([7, 7, 7]), matters=0)
    assert (equal.bins, equal.low, equal.high, equal.num_outliers) == ((3,), 7, 7, 0)


def test_what_stands_out_is_rare_and_matters() -> None:
    usual = [100.0, 101, 99, 100, 102, 98, 100, 101, 99, 100]
    found = rank_spread(RankFigure.COMPUTE, of_ranks([*usual, 130, 60]), matters=5)
    assert [(one.rank, one.value) for one in found.outliers] == [(11, 60), (10, 130)]
    assert rank_spread(RankFigure.COMPUTE, of_ranks([*usual, 130, 60]), matters=50).num_outliers == 0
    alike = rank_spread(RankFigure.COMPUTE, of_ranks([100.0] * 30 + [100.5]), matters=5)
    assert alike.num_outliers == 0, "half a millisecond in a step of five hundred is of no consequence"
    many = rank_spread(RankFigure.COMPUTE, of_ranks([100.0] * 40 + [200.0 + k for k in range(12)]), matters=5)
    assert (many.num_outliers, len(many.outliers)) == (12, MAX_OUTLIERS)
    assert many.outliers[0].value == 211


def test_ranks_of_the_findings_are_shown_as_far_as_there_is_room(analysis: Analysis) -> None:
    findings = tuple(
        Finding(code=f"rule_{rank}", claim="c", evidence="e", place=Place(rank=rank, step=2, start_ns=0, end_ns=1))
        for rank in (3, 8, 21)
    )
    found = reasons(with_overview(replace(analysis, findings=findings)))
    assert all(ShownBecause.FINDING in found[rank] for rank in (3, 8, 21))


def test_ranks_without_room_for_their_rows_are_left_out_and_named(analysis: Analysis) -> None:
    long = tuple(replace(source, num_device_rows=MAX_ROWS // 2) for source in analysis.sources)
    found = overview(with_overview(replace(analysis, sources=long)))
    assert len(found.shown) == 2
    assert {entry.rank for entry in found.left_out} == set(reasons(analysis)) - {entry.rank for entry in found.shown}
    huge = tuple(replace(source, num_device_rows=9 * MAX_ROWS) for source in analysis.sources)
    assert [entry.rank for entry in overview(with_overview(replace(analysis, sources=huge))).shown] == [SLOW]


def test_ranks_that_are_asked_for_are_the_only_ones(analysis: Analysis) -> None:
    asked = overview(with_overview(analysis, (2, 5)))
    assert [(entry.rank, entry.reasons[0].because) for entry in asked.shown] == [
        (2, ShownBecause.ASKED), (5, ShownBecause.ASKED),
    ]  # fmt: skip
    assert asked.spreads == overview(analysis).spreads
    few = replace(analysis, ranks=analysis.ranks[:4], rank_overview=None)
    assert shown_ranks(with_overview(few, (1,))) == {1}


def test_without_peers_the_slowest_is_the_one_with_the_longest_step(analysis: Analysis) -> None:
    alone = tuple(
        replace(one, exposed_wait_ns=None, exposed_transfer_ns=None, span_ns=one.span_ns + one.rank)
        for one in analysis.ranks
    )
    parts = tuple(replace(part, exposed_wait_ns=None, exposed_transfer_ns=None) for part in analysis.partition)
    bare = replace(analysis, ranks=alone, partition=parts, stragglers=None, collectives=None, findings=())
    found = overview(with_overview(bare))
    paces = {entry.rank: entry.reasons[0].because for entry in found.shown}
    assert (paces[23], paces[0], paces[11]) == (ShownBecause.SLOWEST, ShownBecause.FASTEST, ShownBecause.MEDIAN)
    assert RankFigure.EXPOSED in found.map_figures
    assert not {RankFigure.WAIT, RankFigure.TRANSFER, RankFigure.CAUSED_WAIT} & set(found.map_figures)


def test_the_map_has_the_longest_steps_where_there_are_too_many(analysis: Analysis) -> None:
    first = analysis.partition[0]

    def step(number: int) -> StepPartition:
        return replace(first, step=number, span_ns=first.span_ns + (number % 7))

    many = replace(analysis, partition=tuple(step(number) for number in range(200)))
    found = overview(with_overview(many)).map_steps
    assert len(found) == MAX_STEPS
    assert [number % 7 for number in found].count(6) == len(range(6, 200, 7))
    assert found == tuple(sorted(found))
    wide = replace(analysis, ranks=tuple(replace(analysis.ranks[0], rank=rank) for rank in range(MAX_CELLS // 2)))
    assert len(overview(with_overview(replace(wide, partition=many.partition))).map_steps) == 2


def test_lists_of_ranks_are_read_as_people_write_them() -> None:
    assert parse_ranks("3,17") == (3, 17)
    assert parse_ranks(" 17 , 0-2,1") == (0, 1, 2, 17)
    assert len(parse_ranks(f"0-{MAX_ASKED - 1}")) == MAX_ASKED


@pytest.mark.parametrize("text", ["", "x", "3,,4", "5-3", "-1", "3-", "1.5", "٣", "0x3", "9" * 12])
def test_what_is_no_list_of_ranks_is_a_mistake_of_usage(text: str) -> None:
    with pytest.raises(RanksError) as error:
        parse_ranks(text)
    assert (error.value.code, error.value.exit_code) == ("ranks_invalid", ExitCode.USAGE)
    assert "expected ranks such as 3,17" in str(error.value)


@pytest.mark.parametrize("text", [f"0-{MAX_ASKED}", "0-999999999", "0-9,100-110"])
def test_more_ranks_than_a_page_shows_are_refused(text: str) -> None:
    with pytest.raises(RanksError, match=f"more than {MAX_ASKED} ranks"):
        parse_ranks(text)


def test_ranks_that_are_not_in_the_run_are_named(analysis: Analysis) -> None:
    require_ranks(analysis, (0, 23))
    with pytest.raises(RanksError, match="ranks 24, 99 not in the run, which has 24 ranks, 0 to 23"):
        require_ranks(analysis, (0, 24, 99))


def test_a_shown_rank_tells_how_many_rows_its_lanes_draw(analysis: Analysis) -> None:
    rows = {source.rank: source.num_device_rows for source in analysis.sources}
    entries: tuple[ShownRank, ...] = overview(analysis).shown
    assert all(entry.num_rows == rows[entry.rank] > 0 for entry in entries)
