"""Python values, as JSON holds them, to Arrow columns. What does not fit its column becomes null, not a guess."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_INT64_MAX = (1 << 63) - 1
_INT32_MAX = (1 << 31) - 1

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Texts:
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
            array = pa.array(values, type=pa.string())
        except (pa.ArrowInvalid, pa.ArrowTypeError):
            array = pa.array([v if v is None or isinstance(v, str) else str(v) for v in values], type=pa.string())
        encoded = array.dictionary_encode()
        return cls(encoded.indices.fill_null(-1).to_numpy(), encoded.dictionary.to_pylist())

    def map(self, change: Callable[[str], str]) -> Texts:
        """The same column with ``change`` applied to each distinct text."""
        changed = Texts.of([change(text) for text in self.distinct] or [""])
        return Texts(np.where(self.codes < 0, np.int32(-1), changed.codes[self.codes]), changed.distinct)

    def where(self, accept: Callable[[str], bool]) -> BoolArray:
        """Rows whose text is accepted; shape ``(n,)``, false where there is no text."""
        accepted = np.array([*(accept(text) for text in self.distinct), False])
        return accepted[self.codes]

    def take(self, rows: npt.NDArray[np.int64]) -> Texts:
        """The column at ``rows``."""
        return Texts(self.codes[rows], self.distinct)

    def arrow(self) -> pa.DictionaryArray:
        """The column in Arrow; null where there is no text."""
        return pa.DictionaryArray.from_arrays(
            pa.array(self.codes, mask=self.codes < 0), pa.array(self.distinct, type=pa.string())
        )


def int_column(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """Integers; null for missing values and for what is not an integer in range.

    Args:
        values: int, integral float or text, ``None`` or anything else.
        type_: ``pa.int32()`` or ``pa.int64()``.
    """
    try:
        return pa.array(values, type=type_)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        limit = _INT32_MAX if type_ == pa.int32() else _INT64_MAX
        return pa.array([_integer(value, limit) for value in values], type=type_)


def as_int(value: Any) -> int | None:
    """An integer from a number or its text; ``None`` for whatever is neither."""
    return _integer(value, _INT64_MAX)


def _integer(value: Any, limit: int) -> int | None:
    try:
        number = int(value) if not isinstance(value, float) or value.is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None
    return number if number is not None and -limit - 1 <= number <= limit else None
