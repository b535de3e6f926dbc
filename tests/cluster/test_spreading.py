"""Tasks on each engine: all are done, a lost one is tried again, and what is lost twice costs no other."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.cluster import tasks
from tests.cluster.conftest import dask_cluster
from zerotrace.analysis.engines import Engine, EngineKind, Lost, Processes, open_engine, spread

NUM_TASKS = 8


KINDS = list(EngineKind)


def address_of(kind: EngineKind, request: pytest.FixtureRequest) -> str | None:
    return None if kind is EngineKind.PROCESSES else str(request.getfixturevalue(f"{kind.value}_address"))


@pytest.fixture(params=KINDS, scope="module")
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    with open_engine(request.param, address_of(request.param, request), 2) as opened:
        yield opened


@pytest.fixture(params=KINDS)
def doomed(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine whose workers may be killed again and again: on a Dask cluster of its own, whose nannies give up."""
    place = dask_cluster() if request.param is EngineKind.DASK else nullcontext(address_of(request.param, request))
    with place as address, open_engine(request.param, address, 2) as opened:
        yield opened


def test_every_task_is_done_and_in_another_process(engine: Engine) -> None:
    done = dict(spread(engine, tasks.process_of, [(number,) for number in range(NUM_TASKS)]))
    assert sorted(done) == list(range(NUM_TASKS))
    for number, value in done.items():
        assert not isinstance(value, Lost)
        assert value[0] == number
        assert value[1] != os.getpid()


def test_a_task_whose_process_is_killed_is_tried_again(engine: Engine, tmp_path: Path) -> None:
    work = [(tmp_path, number, 3) for number in range(NUM_TASKS)]
    done = dict(spread(engine, tasks.die_once, work))
    assert (tmp_path / "died-3").exists()
    assert sorted(done) == list(range(NUM_TASKS))
    assert not [value for value in done.values() if isinstance(value, Lost)]


def test_a_task_that_always_takes_its_process_with_it_is_lost_and_no_other(doomed: Engine) -> None:
    done = dict(spread(doomed, tasks.die_always, [(number, 3) for number in range(NUM_TASKS)]))
    assert isinstance(done.pop(3), Lost)
    assert done == {number: number for number in range(NUM_TASKS) if number != 3}


def test_what_fails_by_chance_is_tried_once_more(engine: Engine, tmp_path: Path) -> None:
    work = [(tmp_path, number) for number in range(3)]
    done = dict(spread(engine, tasks.fail_once, work, try_again=lambda value: value == "unreadable"))
    assert done == dict.fromkeys(range(3), "read")


def test_what_a_task_raises_is_raised(engine: Engine) -> None:
    with pytest.raises(ZeroDivisionError, match="a fault"):
        list(spread(engine, tasks.raise_at, [(number, 3) for number in range(NUM_TASKS)]))


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_that_have_not_begun_are_dropped_when_nobody_wants_them(
    request: pytest.FixtureRequest, kind: EngineKind, tmp_path: Path
) -> None:
    with open_engine(kind, address_of(kind, request), 2) as engine:
        given_up = spread(engine, tasks.begin, [(tmp_path, number) for number in range(12)])
        next(given_up)
        given_up.close()
        time.sleep(1)
    assert len(list(tmp_path.iterdir())) < 12


def test_one_task_runs_here_where_one_at_a_time_is_enough() -> None:
    assert dict(Processes(1).run(tasks.process_of, [(0,), (1,)])) == {0: (0, os.getpid()), 1: (1, os.getpid())}
    assert dict(Processes().run(tasks.process_of, [(0,)])) == {0: (0, os.getpid())}
