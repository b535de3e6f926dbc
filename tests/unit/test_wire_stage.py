"""What in a trace cannot be of the stage or the engine that it is said to be of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from tests.unit.test_wire import (
    ALL_GATHER,
    ALL_REDUCE,
    PSI,
    REDUCE_SCATTER,
    Collective,
    gather,
    put_on,
    reduce,
    run_manifest,
)
from tests.unit.test_wire_engines import BROADCAST, of_engine
from zerotrace.labels import GatherKind, Label, LabelEvent, Phase
from zerotrace.model import LabelsRecord, Level, RunManifest

FP16 = {"fp16": {"enabled": True}}
FP32_ACCUMULATION = {"data_types": {"grad_accum_dtype": "fp32"}}
NO_SCATTER = {"zero": {"reduce_scatter": False}}
STAGE_0 = (ALL_REDUCE,)
STAGE_2 = (ALL_REDUCE, ALL_GATHER)
STAGE_3 = (ALL_GATHER, ALL_GATHER, REDUCE_SCATTER)


@pytest.mark.parametrize(
    ("collectives", "told", "config", "shown"),
    [
        (STAGE_0, 0, {}, None),
        (STAGE_0, 1, {}, "0"),
        (STAGE_0, 3, {}, "0"),
        (STAGE_0, 2, FP16, None),  # a step that overflows gathers nothing
        (STAGE_0, 3, FP16, "0 or 1 or 2"),
        (STAGE_2, 0, {}, "1 or 2"),
        (STAGE_2, 0, FP32_ACCUMULATION, None),  # BF16_Optimizer
        (STAGE_2, 1, {}, None),
        (STAGE_2, 2, {}, None),
        ((ALL_REDUCE, ALL_REDUCE, ALL_GATHER), 2, {}, None),  # two micro-steps
        (STAGE_2, 3, {}, "1 or 2"),
        (STAGE_2, 3, NO_SCATTER, None),  # all parameters persisted
        (STAGE_3, 0, {}, "3"),
        (STAGE_3, 2, {}, "3"),
        (STAGE_3, 3, {}, None),
        ((ALL_GATHER, ALL_REDUCE), 2, {}, None),  # neither: no word
    ],
)
def test_a_stage_that_the_collectives_cannot_be_of_is_told(
    collectives: Sequence[Collective], told: int, config: dict[str, Any], shown: str | None, tmp_path: Path,
    analyse: Analyse,
) -> None:  # fmt: skip
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_bytes(msgspec.json.encode(run_manifest(told, **config)))
    traces = []
    for rank in range(4):
        trace = TraceBuilder(rank, 4).step(2, 0, 5000).compute(10, 20)
        for place, (name, elements, *rest) in enumerate(collectives):
            put_on(trace, 100 + 20 * place, name, elements, range(4), *rest)
        traces.append(trace)
    analysis = analyse(*traces)
    wire, memory = analysis.wire, analysis.memory
    assert wire is not None and memory is not None
    notes = [note for note in analysis.diagnostics if note.code == "stage_contradicts"]
    if shown is None:
        assert not notes
        assert wire.ratio is not None and memory.paper is not None
        return
    (note,) = notes
    assert (note.level, note.file) == (Level.WARNING, "manifest.json")
    assert note.message.startswith(f"manifest.json says stage {told}, but the trace shows stage {shown}: ")
    assert "move it away" in (note.hint or "")
    # nothing that would follow from the stage is made up
    assert (wire.ratio, wire.stages, wire.causes) == (None, (), ())
    assert wire.reason == f"manifest.json says stage {told}, but the trace shows stage {shown}"
    assert (memory.paper, memory.deepspeed, memory.resident) == (None, None, None)


def test_the_option_is_held_against_the_trace_too(analyse: Analyse) -> None:
    traces = [TraceBuilder(rank, 4).step(2, 0, 5000).compute(10, 20) for rank in range(4)]
    for trace in traces:
        put_on(trace, 100, *ALL_REDUCE, range(4))
        put_on(trace, 120, *ALL_GATHER, range(4))
    analysis = analyse(*traces, stage=3, num_params=PSI)
    (note,) = [note for note in analysis.diagnostics if note.code == "stage_contradicts"]
    assert note.message.startswith("--stage says stage 3, but the trace shows stage 1 or 2")
    assert note.hint == "give --stage 1, or leave it out"
    assert analysis.wire is not None and analysis.wire.causes == ()


def test_labels_tell_stage_3_where_elements_are_unknown(analyse: Analyse, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_bytes(msgspec.json.encode(run_manifest(1, 2)))
    traces = [TraceBuilder(rank, 2).step(2, 0, 5000).compute(10, 20) for rank in range(2)]
    for trace in traces:
        put_on(trace, 100, "allreduce", None, (0, 1))
        trace.label(gather(GatherKind.DEMAND, Phase.FORWARD, PSI), 30, 40)
    (note,) = [note for note in analyse(*traces).diagnostics if note.code == "stage_contradicts"]
    assert "1 parameter gathers, which only stage 3 and FSDP have, are labelled in a step" in note.message


@pytest.mark.parametrize(("name", "told"), [(None, True), ("zt1:gather kind=unheard", False)])
def test_labels_without_a_gather_tell_other_stages_unless_some_cannot_be_read(
    name: str | None, told: bool, analyse: Analyse, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    labelled = replace(run_manifest(3, 2), labels=LabelsRecord(version=1, hooks=("phases", "gathers")))
    (tmp_path / "run" / "manifest.json").write_bytes(msgspec.json.encode(labelled))
    traces = [TraceBuilder(rank, 2).step(2, 0, 5000).compute(10, 20) for rank in range(2)]
    for trace in traces:
        put_on(trace, 100, "allreduce", None, (0, 1))
        trace.label(reduce(PSI), 30, 40)
        if name is not None:
            trace.label(name, 50, 60)
    notes = [note for note in analyse(*traces).diagnostics if note.code == "stage_contradicts"]
    assert [("stage 0 or 1 or 2: it is labelled" in note.message) for note in notes] == [True] * told


def contradiction(analyse: Analyse, tmp_path: Path, told: RunManifest, *collectives: Any) -> str | None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "manifest.json").write_bytes(msgspec.json.encode(told))
    traces = []
    for rank in range(4):
        trace = TraceBuilder(rank, 4).step(2, 0, 5000).compute(10, 20)
        for place, (name, elements) in enumerate(collectives):
            trace.collective(name, 100 + 20 * place, 115 + 20 * place, elements=elements, ranks=(0, 1, 2, 3))
        traces.append(trace)
    notes = [note.message for note in analyse(*traces).diagnostics if note.code == "stage_contradicts"]
    return notes[0] if notes else None


@pytest.mark.parametrize(
    ("engine", "collectives"),
    [
        ("ddp", (ALL_REDUCE,)),
        ("zero1", (ALL_REDUCE, BROADCAST, BROADCAST)),
        ("fsdp2", (ALL_GATHER, ALL_GATHER, REDUCE_SCATTER)),
    ],
)
def test_what_an_engine_does_contradicts_no_manifest(
    analyse: Analyse, tmp_path: Path, engine: str, collectives: Any
) -> None:
    assert contradiction(analyse, tmp_path, of_engine(engine), *collectives) is None


@pytest.mark.parametrize(
    ("engine", "name", "collectives"),
    [
        ("ddp", "DDP", (ALL_GATHER, ALL_GATHER, REDUCE_SCATTER)),
        ("ddp", "DDP", (ALL_REDUCE, BROADCAST, BROADCAST)),
        ("fsdp2", "FSDP2", (ALL_REDUCE,)),
    ],
)
def test_what_another_engine_does_contradicts_the_manifest(
    analyse: Analyse, tmp_path: Path, engine: str, name: str, collectives: Any
) -> None:
    message = contradiction(analyse, tmp_path, of_engine(engine), *collectives)
    assert message is not None
    assert f"manifest.json says {name}, but the trace shows stage" in message


@pytest.mark.parametrize(("world", "contradicts"), [(1, False), (2, True)])
def test_without_a_labelled_gather_it_is_no_fsdp_2_unless_its_rank_is_alone(
    analyse: Analyse, tmp_path: Path, world: int, contradicts: bool
) -> None:
    (tmp_path / "run").mkdir()
    told = of_engine("fsdp2", world, labels=LabelsRecord(version=1, hooks=()))
    (tmp_path / "run" / "manifest.json").write_bytes(msgspec.json.encode(told))
    traces = [
        TraceBuilder(rank, world).step(2, 0, 5000).compute(10, 20)
        .label(Label(event=LabelEvent.REDUCE, elements=PSI, bytes=2 * PSI, num_params=1), 5, 30)
        for rank in range(world)
    ]  # fmt: skip
    codes = {note.code for note in analyse(*traces).diagnostics}
    assert ("stage_contradicts" in codes) is contradicts
