"""Pickles are read without running anything of them, and within limits."""

from __future__ import annotations

import copyreg
import os
import pickle
import pickletools
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotrace.errors import SnapshotError
from zerotrace.ingest.pickles import PickleLimits, load_plain

PROTO = b"\x80\x04"
plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**80), 2**80)
    | st.floats(allow_nan=False)
    | st.text(max_size=300)
    | st.binary(max_size=300),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=4)
        | st.lists(inner, max_size=5).map(tuple)
    ),
    max_leaves=20,
)


@given(plain, st.integers(3, 5))  # protocol 2 writes bytes as a call
def test_plain_values_are_what_pickle_reads(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol), "f") == value


def test_shared_and_cyclic_parts_stay_shared() -> None:
    frames = [{"line": 1}]
    value = load_plain(pickle.dumps([frames, frames]), "f")
    assert value[0] is value[1]
    ring: list[Any] = []
    ring.append(ring)
    read = load_plain(pickle.dumps(ring), "f")
    assert read[0] is read


def test_protocol_2_is_read() -> None:
    value = {"segments": [{"address": 1 << 40, "size": -5, "pool": (0, 0)}], "x": [1.5, None, True, ()]}
    assert load_plain(pickle.dumps(value, 2), "f") == value


def test_long_texts_and_long_numbers_are_read() -> None:
    value = {"text": "ä" * 70_000, "number": 1 << 5000, "bytes": b"x" * 70_000}
    assert load_plain(pickle.dumps(value, 4), "f") == value


class Calls:
    """Reduces to a call with an effect that one can see."""

    def __init__(self, function: Callable[..., Any], *args: Any) -> None:
        self._call = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


class State:
    """Has a ``__setstate__`` to be called."""

    ran = False

    def __setstate__(self, state: Any) -> None:
        State.ran = True


def gadgets(mark: Path) -> dict[str, bytes]:
    """Pickles each of which would make ``mark`` or set ``State.ran`` when read with pickle.loads."""
    command = f"touch {mark}"
    state = State()
    state.__dict__["x"] = 1
    registered = b"\x80\x02\x82\xf0."
    return {
        "os.system": pickle.dumps(Calls(os.system, command)),
        "os.system, protocol 2": pickle.dumps(Calls(os.system, command), 2),
        "eval": pickle.dumps(Calls(eval, f"open({str(mark)!r}, 'w')")),
        "exec inside of a dict": pickle.dumps({"segments": [Calls(exec, f"open({str(mark)!r}, 'w')")]}),
        "__setstate__": pickle.dumps(state),
        "getattr chain": pickle.dumps(Calls(getattr, Calls(__import__, "os"), "system")),
        "STACK_GLOBAL from a memo": PROTO + b"\x8c\x02os\x94\x8c\x06system\x940h\x00h\x01\x93\x8c"
        + bytes([len(command)]) + command.encode() + b"\x85R.",
        "GLOBAL": b"\x80\x02cos\nsystem\nX" + struct.pack("<I", len(command)) + command.encode() + b"\x85R.",
        "INST": b"\x80\x02(X" + struct.pack("<I", len(command)) + command.encode() + b"ios\nsystem\n.",
        "OBJ": b"\x80\x02(cos\nsystem\nX" + struct.pack("<I", len(command)) + command.encode() + b"o.",
        "extension registry": registered,
        "NEWOBJ": pickle.dumps(Path("x")),
        "NEWOBJ_EX": PROTO + b"\x8c\x08builtins\x8c\x04dict\x93)}\x92.",
        "persistent id": b"\x80\x02Pname\n.",
        "binary persistent id": PROTO + b"\x8c\x01x" + b"Q.",
        "out-of-band buffer": b"\x80\x05\x97.",
        "BUILD on a plain dict": PROTO + b"}}b.",
        "REDUCE of a text": PROTO + b"\x8c\x01x)R.",
    }  # fmt: skip


@pytest.mark.parametrize("name", gadgets(Path("unused")))
def test_a_pickle_that_tries_to_do_something_is_refused_without_effect(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    State.ran = False
    copyreg.add_extension("os", "getcwd", 0xF0)
    try:
        with pytest.raises(SnapshotError, match=r"evil\.pickle") as caught:
            load_plain(gadgets(mark)[name], "evil.pickle")
    finally:
        copyreg.remove_extension("os", "getcwd", 0xF0)
    assert caught.value.code == "pickle_refused"
    assert not mark.exists()
    assert not State.ran


def test_the_gadgets_have_an_effect_where_nothing_refuses_them(tmp_path: Path) -> None:
    # else the test above would show nothing
    for name in ("os.system", "eval", "exec inside of a dict", "STACK_GLOBAL from a memo", "GLOBAL", "INST"):
        mark = tmp_path / name.replace(" ", "-")
        pickle.loads(gadgets(mark)[name])
        assert mark.exists(), name
    pickle.loads(gadgets(tmp_path / "x")["__setstate__"])
    assert State.ran


def test_every_instruction_is_carried_out_or_refused() -> None:
    reaches_out = {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "REDUCE", "BUILD", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2",
                   "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"}  # fmt: skip
    for opcode in pickletools.opcodes:
        if opcode.name in reaches_out:
            with pytest.raises(SnapshotError) as caught:
                load_plain(PROTO + opcode.code.encode("latin1") + b"\0" * 16 + b".", "f")
            assert caught.value.code == "pickle_refused"
            assert opcode.name in str(caught.value)


@pytest.mark.parametrize("value", [{1, 2}, frozenset({1}), bytearray(b"x"), 1j, range(3)], ids=str)
def test_values_that_no_snapshot_holds_are_refused(value: Any) -> None:
    with pytest.raises(SnapshotError) as caught:
        load_plain(pickle.dumps(value, 5), "f")
    assert caught.value.code == "pickle_refused"


def test_deep_nesting_neither_crashes_nor_passes() -> None:
    tuples_as_key = PROTO + b"}" + b")" + b"\x85" * 2_000_000 + b"K\x01s."
    with pytest.raises(SnapshotError) as caught:
        load_plain(tuples_as_key, "f")
    assert caught.value.code == "pickle_invalid"
    marks = PROTO + b"(" * 1_000_000 + b"."
    with pytest.raises(SnapshotError, match="at once"):
        load_plain(marks, "f")
    lists = PROTO + b"]" * 100_000 + b"a" * 99_999 + b"."
    assert len(load_plain(lists, "f")) == 1


def test_a_memo_index_of_four_billion_takes_no_memory() -> None:
    assert load_plain(PROTO + b"]r\xff\xff\xff\xff.", "f") == []


def test_billion_laughs_take_no_more_than_their_bytes() -> None:
    value: list[Any] = ["lol"]
    for _ in range(60):
        value = [value, value]
    read = load_plain(pickle.dumps(value), "f")
    assert read[0] is read[1]


@pytest.mark.parametrize("bomb", [b"]" * 5000, b"}" * 5000, b")" + b"\x85" * 5000, b"N" + b"\x94" * 5000])
def test_more_containers_than_the_limit_are_refused(bomb: bytes) -> None:
    with pytest.raises(SnapshotError) as caught:
        load_plain(PROTO + bomb + b"N.", "f", PickleLimits(num_containers=1000))
    assert caught.value.code == "pickle_too_large"


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_one_error_that_names_the_file(data: bytes) -> None:
    try:
        load_plain(b"\x80\x04" + data, "some.pickle")
    except SnapshotError as error:
        assert "some.pickle" in str(error)  # noqa: PT017 - both outcomes are fine


def test_a_cut_pickle_is_said_to_be_damaged() -> None:
    whole = pickle.dumps({"segments": [{"address": 1 << 40, "name": "x" * 300}], "ratio": 1.5})
    for end in range(2, len(whole)):
        with pytest.raises(SnapshotError) as caught:
            load_plain(whole[:end], "f")
        assert caught.value.code == "pickle_invalid"
    with pytest.raises(SnapshotError, match="no pickle"):
        load_plain(b"", "f")
