"""What weakens figures: where it stands, told once, and an exit code for those who want none of it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from tests.builders import TraceBuilder
from tests.conftest import Analyse
from zerotrace.analysis.diagnostics import group_diagnostics
from zerotrace.cli import main
from zerotrace.cli.summary import print_summary
from zerotrace.model import Diagnostic, Level


def note(code: str, level: Level, message: str, **rest: object) -> Diagnostic:
    return Diagnostic(code=code, level=level, message=message, **rest)  # type: ignore[arg-type]


def test_notes_that_differ_in_file_and_numbers_are_one_group() -> None:
    notes = [
        note("dropped", Level.WARNING, f"rank_{rank}.json: {rank + 1} rows dropped", file=f"rank_{rank}.json",
             count=rank + 1, event=10 * rank, hint="look")
        for rank in range(10_000)
    ]  # fmt: skip
    (group,) = group_diagnostics(notes)
    assert (group.message, group.count, group.num_notes) == ("rank_0.json: 1 rows dropped", 50_005_000, 10_000)
    assert group.place == "first at event 0"
    assert group.others == ("the same of rank_1.json, rank_2.json, rank_3.json and 9996 more files; 50005000 in all")


def test_groups_stand_worst_first_and_different_words_stay_apart() -> None:
    notes = [
        note("a", Level.INFO, "fine"),
        note("b", Level.WARNING, "odd", file="x", count=2),
        note("b", Level.WARNING, "odd in another way", file="x"),
        note("b", Level.WARNING, "odd", file="y", count=3, hint="do this"),
        note("c", Level.ERROR, "bad", offset=7),
    ]
    groups = group_diagnostics(notes)
    assert [(g.code, g.count, g.files, g.hint) for g in groups] == [
        ("c", 1, (), None), ("b", 5, ("x", "y"), "do this"), ("b", 1, ("x",), None), ("a", 1, (), None),
    ]  # fmt: skip
    assert [g.place for g in groups] == ["first at byte 7", "", "", ""]
    assert [g.others for g in groups] == ["", "the same of y; 5 in all", "", ""]
    assert [g.code for g in group_diagnostics(notes, Level.INFO)] == ["a"]


def test_equal_notes_of_no_file_are_counted() -> None:
    notes = [note("late", Level.WARNING, f"{count} rows are late", count=count) for count in range(1, 4)]
    assert group_diagnostics(notes)[0].others == "and 2 more of these; 6 in all"


def test_the_terminal_says_place_and_other_files_in_one_entry(analyse: Analyse) -> None:
    ranks = [TraceBuilder(rank, 3).step(0, 0, 500).compute(100, 200) for rank in range(3)]
    for trace in ranks:
        trace.event(ph="X", cat="kernel", name="lost", pid=0, tid=7, ts=5, dur=-1, args={"stream": 7, "device": 0})
    analysis = analyse(*ranks)
    dropped = [note for note in analysis.diagnostics if note.code == "events_dropped"]
    position = len(ranks[0].events) - 1
    assert [(note.file, note.event) for note in dropped] == [(f"rank_{rank}.json", position) for rank in range(3)]
    out = io.StringIO()
    print_summary(analysis, Console(file=out, width=200))
    text = out.getvalue()
    assert text.count("with a negative duration dropped") == 1
    assert (
        f"rank_0.json: 1 device rows and 0 host events with a negative duration dropped (first at event {position})"
        in text
    )
    assert "the same of rank_1.json, rank_2.json; 3 in all" not in text, "each counts one: the files say it"
    assert "the same of rank_1.json, rank_2.json" in text


def test_a_repair_names_the_byte(tmp_path: Path, analyse: Analyse) -> None:
    path = TraceBuilder().step(0, 0, 500).compute(1, 2).host("NAME", 1, 2).write(tmp_path / "run")
    data = path.read_bytes().replace(b"NAME", b"N\x01\xff")
    path.write_bytes(data)
    notes = {note.code: note for note in analyse().diagnostics}
    assert notes["encoding_repaired"].offset == data.index(b"\xff")
    assert notes["json_repaired"].offset == data.index(b"\x01")


@pytest.mark.parametrize(("world_size", "exit_code"), [(1, 0), (2, 1)])
def test_strict_turns_a_warning_into_exit_1_and_keeps_the_result(
    world_size: int, exit_code: int, tmp_path: Path
) -> None:
    trace = TraceBuilder(0, world_size).step(0, 0, 500).compute(100, 200)
    trace.write(tmp_path)
    words = ["analyze", str(tmp_path), "--no-report", "--no-hta", "--strict"]
    for reused in (False, True):
        done = CliRunner().invoke(main, words, prog_name="zerotrace")
        assert done.exit_code == exit_code
        assert ("missing_ranks" in done.stderr) is (exit_code == 1)
        assert ("the traces are unchanged" in done.stderr.lower()) is reused
        assert (tmp_path / "analysis" / "partition.parquet").is_file()


def test_notes_about_other_steps_kernels_or_hosts_stay_apart() -> None:
    notes = [
        note("s", Level.WARNING, "a: no device rows in step 1", file="a"),
        note("s", Level.WARNING, "b: no device rows in step 2", file="b"),
        note("k", Level.WARNING, "a: 9 kernels (all_reduce_v1)", file="a", count=9),
        note("k", Level.WARNING, "b: 4 kernels (all_reduce_v2)", file="b", count=4),
        note("k", Level.WARNING, "c: 1,000 kernels (all_reduce_v2)", file="c", count=1000),
    ]
    assert [(group.code, group.files) for group in group_diagnostics(notes)] == [
        ("s", ("a",)), ("s", ("b",)), ("k", ("a",)), ("k", ("b", "c")),
    ]  # fmt: skip
