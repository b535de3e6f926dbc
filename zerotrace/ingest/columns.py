"""Python values, as JSON holds them, to columns in numpy. What does not fit its column becomes null, not a guess."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct

from zerotrace.intervals import Int64Array
from zerotrace.tables import BoolArray, int_array, text_array

_INT64_MAX = (1 << 63) - 1


class Texts(Struct, frozen=True, eq=False):
    """A column of texts in which each distinct text is kept, and looked at, once.

    Attributes:
        codes: shape ``(n,)``, int32; -1 where there is no text.
        distinct: the text of each code.
    """

    codes: npt.NDArray[np.int32]
    distinct: list[str]

    @classmethod
    def of(cls, values: Sequence[Any]) -> Texts:
        """Encodes ``values``: ``None`` is no text; whatever else is no string is taken by its ``str``."""
        try:
            distinct = dict.fromkeys(values)
        except TypeError:  # a list or an object in the place of a name
            distinct = {None: None, 0: None}
        if not all(value is None or isinstance(value, str) for value in distinct):
            values = [value if value is None or isinstance(value, str) else str(value) for value in values]
            distinct = dict.fromkeys(values)
        distinct.pop(None, None)
        code = {text: i for i, text in enumerate(distinct)}
        code[None] = -1
        return cls(np.fromiter(map(code.__getitem__, values), np.int32, len(values)), list(distinct))

    @classmethod
    def concatenate(cls, parts: Sequence[Texts]) -> Texts:
        """Several columns as one, in which equal texts have one code."""
        sizes = [len(part.distinct) for part in parts]
        before = np.cumsum([0, *sizes])[:-1].tolist()
        codes = [np.where(part.codes < 0, -1, part.codes + shift) for part, shift in zip(parts, before)]
        distinct = [text for part in parts for text in part.distinct]
        return cls(np.concatenate(codes).astype(np.int32), distinct).compact()

    def compact(self) -> Texts:
        """The same column without the texts that no row has, and with one code for equal ones."""
        used = np.bincount(self.codes[self.codes >= 0], minlength=len(self.distinct))
        number: dict[str, int] = {}
        codes = np.full(len(self.distinct) + 1, -1, dtype=np.int32)  # one entry more, which the code -1 finds
        for old in np.flatnonzero(used).tolist():
            codes[old] = number.setdefault(self.distinct[old], len(number))
        return Texts(codes[self.codes], list(number))

    def or_else(self, other: Texts) -> Texts:
        """The column with the texts of ``other``, which is as long, where it has none."""
        shift = np.int32(len(self.distinct))
        elsewhere = np.where(other.codes < 0, np.int32(-1), other.codes + shift)
        codes = np.where(self.codes < 0, elsewhere, self.codes)
        return Texts(codes, [*self.distinct, *other.distinct]).compact()

    def filled(self, text: str) -> Texts:
        """The column with ``text`` where there is none."""
        if not (self.codes < 0).any():
            return self
        return Texts(np.where(self.codes < 0, np.int32(len(self.distinct)), self.codes), [*self.distinct, text])

    def map(self, change: Callable[[str], str]) -> Texts:
        """The same column with ``change`` applied to each distinct text."""
        changed = Texts.of([change(text) for text in self.distinct])
        # one entry more, which the code -1 finds
        return Texts(np.append(changed.codes, np.int32(-1))[self.codes], changed.distinct)

    def where(self, accept: Callable[[str], bool]) -> BoolArray:
        """Rows whose text is accepted; shape ``(n,)``, false where there is no text."""
        return np.array([*(accept(text) for text in self.distinct), False])[self.codes]

    def take(self, rows: npt.NDArray[np.integer[Any]] | BoolArray) -> Texts:
        """The column at ``rows``."""
        return Texts(self.codes[rows], self.distinct)

    def spread(self, num_rows: int, rows: Int64Array) -> Texts:
        """A column of ``num_rows`` that has these texts at ``rows`` and none elsewhere."""
        codes = np.full(num_rows, -1, dtype=np.int32)
        codes[rows] = self.codes
        return Texts(codes, self.distinct)

    def arrow(self) -> pa.DictionaryArray:
        """The column in Arrow; null where there is no text."""
        return text_array(self.codes, self.distinct)


class TextPool:
    """Distinct texts, numbered as they turn up: columns that are encoded by one pool share their codes.

    Args:
        change: what is made of each distinct text first.
    """

    def __init__(self, change: Callable[[str], str] | None = None) -> None:
        self._numbers = _Numbers(change)

    @property
    def distinct(self) -> list[str]:
        """The text of each code."""
        return list(self._numbers.texts)

    def encode(self, values: Sequence[Any]) -> npt.NDArray[np.int32]:
        """The code of each value: -1 for ``None``; whatever else is no string is taken by its ``str``."""
        number = self._numbers.__getitem__
        try:
            return np.fromiter(map(number, values), np.int32, len(values))
        except TypeError:  # a list or an object in the place of a name
            return np.fromiter((number(_as_text(value)) for value in values), np.int32, len(values))

    def number(self, text: str) -> int | None:
        """The code of a text; ``None`` if it did not turn up."""
        return self._numbers.texts.get(text)

    def texts(self, codes: npt.NDArray[np.int32]) -> Texts:
        """A column of such codes."""
        return Texts(codes, self.distinct)


class _Numbers(dict[Any, int]):
    """Value -> code, made when a value is first asked for."""

    def __init__(self, change: Callable[[str], str] | None) -> None:
        super().__init__({None: -1})
        self.texts: dict[str, int] = {}
        self._change = change

    def __missing__(self, value: Any) -> int:
        text = str(_as_text(value))
        if self._change is not None:
            text = self._change(text)
        self[value] = code = self.texts.setdefault(text, len(self.texts))
        return code


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


class Ints(Struct, frozen=True, eq=False):
    """A column of integers.

    Attributes:
        values: shape ``(n,)``, int64; 0 where unknown.
        present: shape ``(n,)``; false where unknown.
    """

    values: Int64Array
    present: BoolArray

    @classmethod
    def of(cls, values: Sequence[Any]) -> Ints:
        """Takes integers, integral floats and their texts; whatever else there is, is unknown."""
        try:
            # One pass in C for the usual case. Unlike numpy, an array takes no float, no text and nothing unknown.
            return cls(np.frombuffer(array("q", values), dtype=np.int64), np.ones(len(values), dtype=bool))
        except (TypeError, OverflowError):  # something else than an integer, or beyond int64
            pass
        if None in values:
            rows = np.array([row for row, value in enumerate(values) if value is not None], dtype=np.int64)
            return cls.of([value for value in values if value is not None]).spread(len(values), rows)
        known = [as_int(value) for value in values]
        present = np.array([value is not None for value in known], dtype=bool)
        return cls(np.array([value or 0 for value in known], dtype=np.int64), present)

    @classmethod
    def concatenate(cls, parts: Sequence[Ints]) -> Ints:
        """Several columns as one."""
        if len(parts) == 1:
            return parts[0]
        return cls(np.concatenate([part.values for part in parts]), np.concatenate([part.present for part in parts]))

    def take(self, rows: npt.NDArray[np.integer[Any]] | BoolArray) -> Ints:
        """The column at ``rows``."""
        return Ints(self.values[rows], self.present[rows])

    def without(self, unknown: int) -> Ints:
        """The column with one value, by which the format says that it does not know, taken out."""
        return Ints(self.values, self.present & (self.values != unknown))

    def spread(self, num_rows: int, rows: Int64Array) -> Ints:
        """A column of ``num_rows`` that has these values at ``rows`` and knows nothing elsewhere."""
        values, present = np.zeros(num_rows, dtype=np.int64), np.zeros(num_rows, dtype=bool)
        values[rows], present[rows] = self.values, self.present
        return Ints(values, present)

    def arrow(self, type_: pa.DataType) -> pa.Array:
        """The column in Arrow; null where unknown, and where the value does not fit ``type_``."""
        fits = self.present
        if type_ == pa.int32():
            fits = fits & (self.values == self.values.astype(np.int32))
        return int_array(self.values, fits, type_)


def number_in(value: Any) -> int | None:
    """``7`` of ``7`` and of ``"stream 7"``."""
    if isinstance(value, int):
        return value
    digits = re.search(r"\d+", value) if isinstance(value, str) else None
    return as_int(digits[0]) if digits else None


def as_int(value: Any) -> int | None:
    """An integer from a number or its text; ``None`` for whatever is neither, or beyond int64."""
    try:
        number = int(value) if not isinstance(value, float) or value.is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and abs(number) <= _INT64_MAX else None
