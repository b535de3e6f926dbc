"""Whom the message of a time-out names: the rank that the others wait for, and not the one that waits."""

from __future__ import annotations

import pytest

from zerotrace.capture.failure import _late_ranks, _tail
from zerotrace.capture.progress import RankProgress

WAITS = ["torch/distributed/distributed_c10d.py:1 in all_reduce", "train.py:3 in main"]
BACKWARD = ["torch/autograd/graph.py:800 in _engine_run_backward", "train.py:3 in main"]
WORKS = ["train.py:9 in sleep_forever"]


def at(rank: int, phase: str = "timed", step: int = 5) -> RankProgress:
    return RankProgress(rank=rank, phase=phase, step=step, pid=100 + rank, time_ns=0)


@pytest.mark.parametrize(
    ("stacks", "late"),
    [([WAITS, WORKS], [1]), ([BACKWARD, []], [1]), ([WAITS, []], [1]), ([BACKWARD, WORKS], [1]), ([WAITS, WAITS], []),
     ([[], []], []), ([BACKWARD, WAITS], [0]), ([WORKS, WORKS], [])],
)  # fmt: skip
def test_the_rank_that_others_wait_for_is_late(stacks: list[list[str]], late: list[int]) -> None:
    assert _late_ranks([at(0), at(1)], stacks) == late


def test_a_rank_that_is_steps_behind_is_late_whatever_its_stack() -> None:
    assert _late_ranks([at(0, step=5), at(1, step=4)], [WORKS, WAITS]) == [1]


def test_the_last_lines_of_a_rank_are_not_those_of_warnings() -> None:
    warning = "/x/torch/y.py:7: FutureWarning: `z` is old\n  warnings.warn(\n"
    assert _tail(f"{warning}  a traceback's line\nValueError: it broke\n{warning * 15}") == (
        "    a traceback's line\n  ValueError: it broke"
    )
    assert "FutureWarning" in _tail(warning)
