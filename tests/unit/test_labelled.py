"""What labels tell of collectives: the innermost on the thread that launched one, and the engine's call around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from zerotrace.labels import GatherKind, Label, LabelEvent, Phase, format_label, label_event

AUTOGRAD = 4001
FORWARD, BACKWARD, STEP = (Label(event=LabelEvent.PHASE, phase=phase) for phase in Phase)
PREFETCH = Label(event=LabelEvent.GATHER, kind=GatherKind.PREFETCH, phase=Phase.FORWARD, elements=64)


@pytest.fixture
def phases(tmp_path: Path) -> Any:
    """Phase of each collective of rank 0, by its Seq."""

    def read() -> dict[int, str | None]:
        rows = pq.read_table(tmp_path / "run" / "analysis" / "collectives.parquet").to_pylist()
        return {row["seq"]: row["phase"] for row in rows if row["rank"] == 0}

    return read


def pair(*labels: tuple[Any, float, float, int], gathers: dict[int, tuple[float, int]]) -> list[TraceBuilder]:
    """Two ranks with the same labels, and all-gathers by Seq: when each is launched, and on which thread."""
    traces = [TraceBuilder(rank, 2).step(0, 0, 1000).compute(900, 910) for rank in range(2)]
    for trace in traces:
        for label, start, end, tid in labels:
            trace.label(label, start, end, tid=tid)
        for seq, (launched, tid) in gathers.items():
            start = 600 + 20 * seq
            trace.all_gather(start, start + 10, launched=launched, launch_tid=tid, Seq=seq)
    return traces


def test_the_engines_call_in_which_it_was_launched_is_its_phase_on_any_thread(analyse: Analyse, phases: Any) -> None:
    calls = [(FORWARD, 10, 100, 4000), (BACKWARD, 100, 200, 4000), (STEP, 200, 300, 4000)]
    analyse(*pair(*calls, gathers={0: (50, 4000), 1: (150, AUTOGRAD), 2: (250, 4000), 3: (350, 4000)}))
    assert phases() == {0: "forward", 1: "backward", 2: "step", 3: None}


def test_a_gather_says_its_phase_itself_on_its_own_thread_alone(analyse: Analyse, phases: Any) -> None:
    labels = [(BACKWARD, 10, 200, 4000), (PREFETCH, 50, 100, AUTOGRAD)]
    analyse(*pair(*labels, gathers={0: (60, AUTOGRAD), 1: (60, 4000), 2: (120, AUTOGRAD)}))
    assert phases() == {0: "forward", 1: "backward", 2: "backward"}


def test_after_a_nested_label_the_one_around_it_counts_again(analyse: Analyse, phases: Any) -> None:
    fetch = Label(event=LabelEvent.FETCH, module="h.0", phase=Phase.BACKWARD)
    labels = [(fetch, 10, 200, 4000), (PREFETCH, 20, 30, 4000)]
    analyse(*pair(*labels, gathers={0: (25, 4000), 1: (100, 4000), 2: (201, 4000)}))
    assert phases() == {0: "forward", 1: "backward", 2: None}


def test_old_labels_tell_the_phase_too(analyse: Analyse, phases: Any) -> None:
    old = "zt:gather kind=prefetch bwd for=h.1 n=1 numel=64 first=h.0.weight"
    analyse(*pair((old, 10, 50, 4000), gathers={0: (20, 4000), 1: (60, 4000)}))
    assert phases() == {0: "backward", 1: None}


def test_a_row_whose_launch_is_lost_is_given_no_label(analyse: Analyse, phases: Any) -> None:
    analyse(*pair((PREFETCH, 10, 50, 4000), gathers={0: (-1, 4000)}))
    assert phases() == {0: None}


@pytest.mark.parametrize(
    ("name", "event"),
    [(format_label(PREFETCH), LabelEvent.GATHER), ("zt:fetch module=h.3 fwd", LabelEvent.FETCH),
     ("zt2:gather n=1", None), ("zt1:unheard n=1", None), ("ProfilerStep#2", None), ("ztx", None)],
)  # fmt: skip
def test_the_event_of_a_label_is_read_without_the_rest(name: str, event: LabelEvent | None) -> None:
    assert label_event(name) is event
