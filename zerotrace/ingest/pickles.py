"""Reads pickles of plain containers, numbers and text; runs nothing that is in them.

A pickle is a program. Python's own unpickler can be kept from importing, but not from the rest: a five-byte
instruction makes it reserve and touch gigabytes for its memo, and tuples nested a million deep overflow the C stack
when they are hashed. So the few instructions that plain data need are carried out here, one by one, and any other is
an error. The instructions are those of protocols 2 to 5, as CPython's ``Lib/pickletools.py`` describes them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, NoReturn

from msgspec import Struct

from zerotrace.errors import SnapshotError

#: A value in a pickle: ``None``, bool, int, float, str, bytes, list, tuple, dict.
Plain = Any


#: What to do about a file that is damaged, and about one that is too large.
TAKE_AGAIN = "the writer was stopped, or the file was altered; take the snapshot again"
FEWER_STEPS = "record the history of fewer steps (max_entries), and take the snapshot again"


class PickleLimits(Struct, frozen=True, kw_only=True):
    """How much a file may ask for. A step of a model of a thousand layers stays far below."""

    file_bytes: int = 1 << 28
    """Size on disk."""
    unpacked_bytes: int = 1 << 28
    """Size after gunzip."""
    num_containers: int = 4_000_000
    """Lists, tuples and dicts; half as many as the values that may be named for later use."""
    depth: int = 100
    """Containers that are open at once."""


def load_plain(data: bytes, file: str, limits: PickleLimits | None = None) -> Plain:
    """The one value of a pickle.

    Args:
        data: the pickle, not compressed.
        file: its name, for messages.
        limits: by default those of :class:`PickleLimits`.

    Raises:
        SnapshotError: ``pickle_refused`` if it would import or call anything, or holds anything but plain data;
            ``pickle_too_large`` if it goes over a limit; ``pickle_invalid`` if it is damaged or no pickle.
    """
    if not data.startswith(b"\x80"):
        raise SnapshotError(
            f"{file}: no pickle of protocol 2 or later: it begins with {data[:4]!r}",
            code="pickle_invalid",
            hint="expected is a snapshot as torch.cuda.memory._dump_snapshot writes it, gzipped or not",
        )
    machine = _Machine(data, file, limits or PickleLimits())
    try:
        return machine.run()
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, _Damaged) as error:
        raise SnapshotError(
            f"{file}: damaged: no sound pickle around byte {machine.position}",
            code="pickle_invalid",
            hint=TAKE_AGAIN,
        ) from error


class _Damaged(Exception):  # noqa: N818 - never leaves this module
    """An instruction does not fit what is on the stack."""


class _Machine:
    """Carries the instructions out."""

    def __init__(self, data: bytes, file: str, limits: PickleLimits) -> None:
        self.position = 0
        self.memo: dict[int, Plain] = {}
        self.outer: list[list[Plain]] = []
        """The stacks below the marks that are open."""
        self.num_containers = 0
        self._data = data
        self._file = file
        self._limits = limits

    def run(self) -> Plain:
        """All instructions up to STOP. The frequent ones are carried out in the loop: there are millions."""
        data, memo, outer, limits = self._data, self.memo, self.outer, self._limits
        unsigned = struct.Struct("<I").unpack_from
        stack: list[Plain] = []
        push = stack.append
        i = 0
        while True:
            code = data[i]
            i += 1
            if code == 0x6A:  # LONG_BINGET
                push(memo[unsigned(data, i)[0]])
                i += 4
            elif code == 0x68:  # BINGET
                push(memo[data[i]])
                i += 1
            elif code == 0x94:  # MEMOIZE
                memo[len(memo)] = stack[-1]
            elif code == 0x8A:  # LONG1
                end = i + 1 + data[i]
                push(int.from_bytes(data[i + 1 : end], "little", signed=True))
                i = end
            elif code == 0x4B:  # BININT1
                push(data[i])
                i += 1
            elif code == 0x28:  # MARK
                outer.append(stack)
                stack = []
                push = stack.append
                if len(outer) > limits.depth:
                    self.too_large(i, f"more than {limits.depth} containers open at once")
            elif code == 0x7D:  # EMPTY_DICT
                self.num_containers += 1
                push({})
            elif code == 0x8C:  # SHORT_BINUNICODE
                end = i + 1 + data[i]
                push(self.text(i + 1, end))
                i = end
            elif code == 0x2E:  # STOP
                return stack[-1]
            else:
                self.position = i
                rare = _RARE.get(code)
                if rare is None:
                    self.refuse(code)
                stack = rare(self, stack)
                push = stack.append
                i = self.position
                if self.num_containers > limits.num_containers or len(memo) > 2 * limits.num_containers:
                    self.too_large(i, f"more than {limits.num_containers:,} containers")

    def take(self, num_bytes: int) -> bytes:
        """The next bytes of the pickle."""
        start, self.position = self.position, self.position + num_bytes
        if self.position > len(self._data):
            raise _Damaged
        return self._data[start : self.position]

    def number(self, num_bytes: int, *, signed: bool = False) -> int:
        """The next bytes as a little-endian number."""
        return int.from_bytes(self.take(num_bytes), "little", signed=signed)

    def text(self, start: int, end: int) -> str:
        """A stretch of the pickle as text."""
        if end > len(self._data):
            raise _Damaged
        return self._data[start:end].decode("utf-8", "surrogatepass")

    def close(self) -> list[Plain]:
        """The stack below the last mark."""
        if not self.outer:
            raise _Damaged
        return self.outer.pop()

    def refuse(self, code: int) -> NoReturn:
        """Raises for an instruction that plain data do not need."""
        named = _REACHES_OUT.get(code)
        what = f"{named} would run code" if named else f"instruction {bytes([code])!r} is of no plain value"
        raise SnapshotError(
            f"{self._file}: refused at byte {self.position - 1}: {what}; nothing of it was run",
            code="pickle_refused",
            hint="a snapshot holds lists, tuples, dicts, numbers and text alone; do not load this file with anything "
            "else unless you know who wrote it",
        )

    def too_large(self, position: int, what: str) -> NoReturn:
        """Raises for a pickle that goes over a limit."""
        raise SnapshotError(
            f"{self._file}: too large for a snapshot: {what} by byte {position}",
            code="pickle_too_large",
            hint=FEWER_STEPS,
        )


_Rare = Callable[[_Machine, list[Plain]], list[Plain]]


def _constant(value: Plain) -> _Rare:
    def instruction(_: _Machine, stack: list[Plain]) -> list[Plain]:
        stack.append(value)
        return stack

    return instruction


def _integer(num_bytes: int, *, signed: bool = False, counted: bool = False) -> _Rare:
    def instruction(machine: _Machine, stack: list[Plain]) -> list[Plain]:
        size = machine.number(num_bytes) if counted else num_bytes
        stack.append(machine.number(size, signed=signed))
        return stack

    return instruction


def _float(machine: _Machine, stack: list[Plain]) -> list[Plain]:
    stack.append(struct.unpack(">d", machine.take(8))[0])
    return stack


def _unicode(length_bytes: int) -> _Rare:
    def instruction(machine: _Machine, stack: list[Plain]) -> list[Plain]:
        stack.append(machine.take(machine.number(length_bytes)).decode("utf-8", "surrogatepass"))
        return stack

    return instruction


def _bytes(length_bytes: int) -> _Rare:
    def instruction(machine: _Machine, stack: list[Plain]) -> list[Plain]:
        stack.append(machine.take(machine.number(length_bytes)))
        return stack

    return instruction


def _skip(num_bytes: int) -> _Rare:
    def instruction(machine: _Machine, stack: list[Plain]) -> list[Plain]:
        machine.take(num_bytes)
        return stack

    return instruction


def _empty_list(machine: _Machine, stack: list[Plain]) -> list[Plain]:
    machine.num_containers += 1
    stack.append([])
    return stack


def _append(_: _Machine, stack: list[Plain]) -> list[Plain]:
    item = stack.pop()
    _top(stack, list).append(item)
    return stack


def _appends(machine: _Machine, items: list[Plain]) -> list[Plain]:
    stack = machine.close()
    _top(stack, list).extend(items)
    return stack


def _set_item(_: _Machine, stack: list[Plain]) -> list[Plain]:
    value, key = stack.pop(), stack.pop()
    _fill(_top(stack, dict), [key, value])
    return stack


def _set_items(machine: _Machine, items: list[Plain]) -> list[Plain]:
    stack = machine.close()
    _fill(_top(stack, dict), items)
    return stack


def _marked_tuple(machine: _Machine, items: list[Plain]) -> list[Plain]:
    stack = machine.close()
    machine.num_containers += 1
    stack.append(tuple(items))
    return stack


def _tuple(size: int) -> _Rare:
    def instruction(machine: _Machine, stack: list[Plain]) -> list[Plain]:
        if len(stack) < size:
            raise _Damaged
        machine.num_containers += 1
        items = tuple(stack[len(stack) - size :])
        del stack[len(stack) - size :]
        stack.append(items)
        return stack

    return instruction


def _put(length_bytes: int) -> _Rare:
    def instruction(machine: _Machine, stack: list[Plain]) -> list[Plain]:
        machine.memo[machine.number(length_bytes)] = stack[-1]
        return stack

    return instruction


def _pop(machine: _Machine, stack: list[Plain]) -> list[Plain]:
    if not stack:
        return machine.close()
    stack.pop()
    return stack


def _top(stack: list[Plain], kind: type) -> Plain:
    """What lies on top, which must be of just this type: a container that was built here."""
    if type(stack[-1]) is not kind:
        raise _Damaged
    return stack[-1]


def _fill(target: dict[Plain, Plain], items: list[Plain]) -> None:
    # Keys are hashed, and hashing containers goes as deep as they do.
    keys = items[::2]
    if len(items) % 2 or not _KEY_TYPES.issuperset(map(type, keys)):
        raise _Damaged
    target.update(zip(keys, items[1::2]))


_KEY_TYPES = frozenset({str, int, bool, float, bytes, type(None)})

#: The less frequent instructions of plain data, by their byte.
_RARE: dict[int, _Rare] = {
    0x80: _skip(1),  # PROTO
    0x95: _skip(8),  # FRAME
    0x4E: _constant(None),  # NONE
    0x88: _constant(True),  # NEWTRUE
    0x89: _constant(False),  # NEWFALSE
    0x4A: _integer(4, signed=True),  # BININT
    0x4D: _integer(2),  # BININT2
    0x8B: _integer(4, signed=True, counted=True),  # LONG4
    0x47: _float,  # BINFLOAT
    0x58: _unicode(4),  # BINUNICODE
    0x8D: _unicode(8),  # BINUNICODE8
    0x43: _bytes(1),  # SHORT_BINBYTES
    0x42: _bytes(4),  # BINBYTES
    0x8E: _bytes(8),  # BINBYTES8
    0x5D: _empty_list,  # EMPTY_LIST
    0x61: _append,  # APPEND
    0x65: _appends,  # APPENDS
    0x73: _set_item,  # SETITEM
    0x75: _set_items,  # SETITEMS
    0x29: _constant(()),  # EMPTY_TUPLE
    0x74: _marked_tuple,  # TUPLE
    0x85: _tuple(1),  # TUPLE1
    0x86: _tuple(2),  # TUPLE2
    0x87: _tuple(3),  # TUPLE3
    0x71: _put(1),  # BINPUT
    0x72: _put(4),  # LONG_BINPUT
    0x30: _pop,  # POP
    0x31: lambda machine, _: machine.close(),  # POP_MARK
}

#: What would import, call, or reach outside of the file.
_REACHES_OUT = {
    0x63: "GLOBAL", 0x93: "STACK_GLOBAL", 0x69: "INST", 0x6F: "OBJ", 0x52: "REDUCE", 0x62: "BUILD",
    0x81: "NEWOBJ", 0x92: "NEWOBJ_EX", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4",
    0x50: "PERSID", 0x51: "BINPERSID", 0x97: "NEXT_BUFFER",
}  # fmt: skip
