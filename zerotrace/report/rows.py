"""The rows of one rank that the timeline draws: Arrow columns as plain arrays, texts as numbers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from zerotrace.model import Category
from zerotrace.report.embed import printable

CATEGORIES: tuple[str, ...] = (Category.COMPUTE.value, Category.COMM.value, Category.COPY.value)

#: The columns of ``EVENTS`` that the page is made from.
EVENT_COLUMNS: tuple[str, ...] = (
    "event", "cat", "name", "category", "start_ns", "dur_ns", "device", "stream", "pid", "tid",
    "collective", "group_name", "group_size", "seq", "dtype", "in_elements", "out_elements",
)  # fmt: skip

Ints = npt.NDArray[np.int64]

_NULL = np.iinfo(np.int64).min

_DTYPE_BYTES = {
    "double": 8, "float64": 8, "long": 8, "int64": 8, "unsigned long": 8,
    "float": 4, "float32": 4, "int": 4, "int32": 4,
    "half": 2, "float16": 2, "bfloat16": 2, "short": 2, "int16": 2,
    "byte": 1, "char": 1, "int8": 1, "uint8": 1, "bool": 1,
    "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
}  # fmt: skip


class Collective(Struct, frozen=True):
    """What the rows of one collective have in common."""

    name: str
    group_name: str | None
    group_size: int | None
    dtype: str | None
    in_bytes: int | None
    out_bytes: int | None


class Rows(Struct):
    """Rows of one group while the payload is put together; all arrays of one length, sorted by start."""

    rank: int
    device: int | None
    lanes: tuple[int | None, ...]
    start: Ints
    duration: Ints
    name: Ints
    lane: Ints
    category: Ints
    collective: Ints
    seq: Ints
    event: Ints


class Vocabulary:
    """Texts or records numbered in the order in which they are first met."""

    def __init__(self) -> None:
        self._index: dict[object, int] = {}

    def add(self, value: object) -> int:
        """The number of ``value``, a new one if it is new."""
        return self._index.setdefault(value, len(self._index))

    def values(self) -> list[object]:
        """What was added, by number."""
        return list(self._index)


def rank_rows(rank: int, table: pa.Table, names: Vocabulary, collectives: Vocabulary) -> list[Rows]:
    """The rows of device time of one rank, one :class:`Rows` a device."""
    table = table.select(EVENT_COLUMNS).filter(pc.is_valid(table["category"]))
    start, duration = _ints(table, "start_ns"), np.maximum(_ints(table, "dur_ns"), 0)
    device = _ints(table, "device")
    lane = np.where(device == _NULL, _ints(table, "tid"), _ints(table, "stream"))
    category = _codes(table, "category", [*CATEGORIES].index)
    name = _codes(table, "name", names.add)
    collective = _collective_ids(table, collectives)
    seq, event = _ints(table, "seq"), _ints(table, "event")
    result = []
    for number in np.unique(device):
        chosen = np.flatnonzero(device == number)
        chosen = chosen[np.lexsort((-duration[chosen], start[chosen]))]
        lanes, lane_index = np.unique(lane[chosen], return_inverse=True)
        result.append(
            Rows(
                rank=rank,
                device=None if number == _NULL else int(number),
                lanes=tuple(None if value == _NULL else int(value) for value in lanes),
                start=start[chosen],
                duration=duration[chosen],
                name=name[chosen],
                lane=lane_index.astype(np.int64),
                category=category[chosen],
                collective=collective[chosen],
                seq=np.where(seq[chosen] < 0, 0, seq[chosen] + 1),
                event=event[chosen],
            )
        )
    return result


def _collective_ids(table: pa.Table, collectives: Vocabulary) -> Ints:
    """Index of each row's collective, −1 for none. Shape ``(num_rows,)``."""
    ids = np.full(table.num_rows, -1, dtype=np.int64)
    rows = np.flatnonzero(np.asarray(pc.is_valid(table["collective"])))
    if not len(rows):
        return ids
    table = table.take(pa.array(rows))
    texts = [_texts(table, column) for column in ("collective", "group_name", "dtype")]
    numbers = [_ints(table, column) for column in ("group_size", "in_elements", "out_elements")]
    unique, inverse = np.unique(np.stack([codes for _, codes in texts] + numbers), axis=1, return_inverse=True)
    known = []
    for key in unique.T.tolist():
        name, group_name, dtype = (
            printable(words[code]) if code >= 0 else None for (words, _), code in zip(texts, key[:3], strict=True)
        )
        size, num_in, num_out = (None if value == _NULL else value for value in key[3:])
        width = _DTYPE_BYTES.get((dtype or "").lower().removeprefix("torch."))
        known.append(
            collectives.add(
                Collective(
                    name=name or "",
                    group_name=group_name,
                    group_size=size,
                    dtype=dtype,
                    in_bytes=None if width is None or num_in is None else num_in * width,
                    out_bytes=None if width is None or num_out is None else num_out * width,
                )
            )
        )
    ids[rows] = np.array(known, dtype=np.int64)[inverse.reshape(-1)]
    return ids


def _ints(table: pa.Table, column: str) -> Ints:
    """An integer column; ``_NULL`` where it is null. Shape ``(num_rows,)``."""
    values = table[column].cast(pa.int64())
    return np.asarray(pc.fill_null(values, _NULL).to_numpy(), dtype=np.int64)


def _texts(table: pa.Table, column: str) -> tuple[list[str], Ints]:
    """Distinct texts of a column and each row's index among them, −1 where it is null."""
    values = table[column]
    if not pa.types.is_dictionary(values.type):
        values = values.dictionary_encode()
    encoded = values.unify_dictionaries().combine_chunks()
    codes = np.asarray(pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False), dtype=np.int64)
    return [str(text) for text in encoded.dictionary.to_pylist()], codes


def _codes(table: pa.Table, column: str, number: Callable[[str], int]) -> Ints:
    """Each row's number for its text, numbered only where a row has it; a null counts as the empty text."""
    words, codes = _texts(table, column)
    result = np.empty(len(codes), dtype=np.int64)
    used, inverse = np.unique(codes, return_inverse=True)
    numbers = [number(words[code] if code >= 0 else "") for code in used.tolist()]
    result[:] = np.array(numbers, dtype=np.int64)[inverse.reshape(-1)] if numbers else 0
    return result
