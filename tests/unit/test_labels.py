"""The names of annotations that carry ZeRO's meaning: written, read back, told from other names."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotrace.labels import (
    MAX_NUMBER,
    MAX_PARAM_CHARS,
    MAX_PARAMS,
    GatherKind,
    Label,
    LabelEvent,
    Phase,
    first_params,
    format_label,
    is_label,
    parse_label,
)

CAPTURES = Path(__file__).resolve().parents[3] / "shared" / "captures"

numbers = st.none() | st.integers(0, MAX_NUMBER - 1)
# Any text at all: quotes, spaces, commas, line ends, lone surrogates.
names = st.text(st.characters(), max_size=30)
labels = st.builds(
    Label,
    event=st.sampled_from(LabelEvent),
    kind=st.none() | st.sampled_from(GatherKind),
    phase=st.none() | st.sampled_from(Phase),
    recompute=st.booleans(),
    module=st.none() | names,
    # A parameter has a name: torch refuses the empty one.
    params=st.lists(names.filter(bool), max_size=5).map(tuple),
    num_params=numbers,
    elements=numbers,
    bytes=numbers,
    submission=numbers,
    number=numbers,
)


@given(labels)
def test_every_label_is_read_back_as_it_was_written(label: Label) -> None:
    name = format_label(label)
    assert parse_label(name) == label
    assert is_label(name)


@given(labels)
def test_a_written_label_needs_no_escapes_in_json(label: Label) -> None:
    # Kineto does not escape every name that it writes.
    assert re.fullmatch(r"[!#-\[\]-~ ]+", format_label(label))


def test_the_format_is_the_documented_one() -> None:
    label = Label(
        event=LabelEvent.GATHER,
        kind=GatherKind.PREFETCH,
        phase=Phase.FORWARD,
        module="blocks.3.a b",
        params=("w=1", "b"),
        num_params=6,
        elements=590_592,
        bytes=1_181_184,
        submission=17,
    )
    assert format_label(label) == (
        "zt1:gather kind=prefetch phase=forward module=blocks.3.a%20b params=w%3D1,b n=6 elements=590592 "
        "bytes=1181184 submission=17"
    )


@given(st.text(max_size=40))
def test_any_other_name_is_no_label(name: str) -> None:
    assert (parse_label(name) is None) or is_label(name)


@pytest.mark.parametrize("name", ["ProfilerStep#3", "aten::mm", "zt", "zt:", "zt1:", "nccl:all_gather", "azt1:gather"])
def test_names_of_others_are_left_alone(name: str) -> None:
    assert parse_label(name) is None
    assert not is_label(name)


@pytest.mark.parametrize("name", ["zt2:gather kind=demand", "zt1:leap", "zt1:gather n=many", "zt:gather what"])
def test_a_label_that_cannot_be_read_is_told_from_other_names(name: str) -> None:
    assert parse_label(name) is None
    assert is_label(name)


@pytest.mark.parametrize("number", ["-1", str(MAX_NUMBER), str(2**63 - 2), "many"])
@pytest.mark.parametrize("field", ["n", "elements", "bytes", "submission"])
def test_a_number_that_cannot_be_makes_no_label(field: str, number: str) -> None:
    assert parse_label(f"zt1:gather kind=prefetch phase=forward {field}=7") is not None
    assert parse_label(f"zt1:gather kind=prefetch phase=forward {field}={number}") is None


def test_fields_of_a_later_minor_version_are_ignored() -> None:
    assert parse_label("zt1:fetch module=a colour=red") == Label(event=LabelEvent.FETCH, module="a")


def test_the_older_format_is_read() -> None:
    assert parse_label("zt:gather kind=prefetch fwd for=wte n=12 numel=53739520 first=wpe.weight") == Label(
        event=LabelEvent.GATHER,
        version=0,
        kind=GatherKind.PREFETCH,
        phase=Phase.FORWARD,
        module="wte",
        params=("wpe.weight",),
        num_params=12,
        elements=53_739_520,
    )
    assert parse_label("zt:fetch module= bwd") == Label(
        event=LabelEvent.FETCH, version=0, module="", phase=Phase.BACKWARD
    )


def test_names_are_cut_to_a_few_but_never_to_none() -> None:
    assert first_params([f"p{i}" for i in range(9)]) == tuple(f"p{i}" for i in range(MAX_PARAMS))
    long = "m" * MAX_PARAM_CHARS
    assert first_params([long + "x", "b"]) == (long + "x",)
    assert first_params([]) == ()


@pytest.mark.skipif(not CAPTURES.is_dir(), reason="the shared captures are not beside this checkout")
@pytest.mark.parametrize(
    ("run", "gathers"), [("pcie/stage3", 2 * 16), ("pcie/stage3_live1e8", 193), ("nvlink/stage3", 2 * 16)]
)
def test_every_label_of_the_older_captures_is_read(run: str, gathers: int) -> None:
    with gzip.open(CAPTURES / run / "rank_0.pt.trace.json.gz", "rt", encoding="utf-8") as file:
        found = re.findall(r'"cat": "user_annotation", "name": "(zt[^"]*)"', file.read())
    assert found
    read = [parse_label(name) for name in found]
    assert None not in read
    assert Counter(label.event for label in read if label)[LabelEvent.GATHER] == gathers


@pytest.mark.parametrize(
    "name",
    [
        "zt" + "1" * 5000 + ":gather",
        "zt\u0661:gather",
        "zt:gather kind=demand fwd for=a n=" + "9" * 20 + " numel=1 first=b",
        "zt:gather kind=demand fwd for=a n=1 numel=" + "9" * 5000 + " first=b",
        "zt1:gather n=" + "9" * 5000,
    ],
)
def test_numbers_that_are_none_make_a_name_no_label(name: str) -> None:
    assert parse_label(name) is None
