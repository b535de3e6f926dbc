"""Arrow columns from numpy arrays and back.

pyarrow's own conversions (``pa.array``, ``to_numpy``) import pandas on first use, which costs as much as reading
a trace. These go over the buffers that both libraries share, and copy nothing that they need not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zerotrace.intervals import Int64Array

BoolArray = npt.NDArray[np.bool_]


def int_array(values: npt.NDArray[np.int64], present: BoolArray | None, type_: pa.DataType) -> pa.Array:
    """An integer column.

    Args:
        values: shape ``(n,)``.
        present: shape ``(n,)``, false where the column is null; ``None`` if it is nowhere.
        type_: ``pa.int32()`` or ``pa.int64()``.
    """
    data = np.ascontiguousarray(values, dtype=np.int32 if type_ == pa.int32() else np.int64)
    bitmap = None
    if present is not None and not present.all():
        bitmap = pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(type_, data.size, [bitmap, pa.py_buffer(data)])


def bool_array(values: npt.NDArray[np.int64], present: BoolArray, type_: pa.DataType) -> pa.Array:
    """A column of truth values: ``values`` not 0, null where ``present`` is false. ``type_`` is ``pa.bool_()``."""
    bitmap = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(
        type_, values.size, [bitmap, pa.py_buffer(np.packbits(values != 0, bitorder="little"))]
    )


def text_array(codes: npt.NDArray[np.int32], distinct: Sequence[str]) -> pa.DictionaryArray:
    """A dictionary-encoded text column.

    Args:
        codes: shape ``(n,)``; -1 where the column is null.
        distinct: the text of each code.
    """
    encoded = [text.encode("utf-8", "replace") for text in distinct]
    offsets = np.zeros(len(encoded) + 1, dtype=np.int32)
    np.cumsum([len(text) for text in encoded], out=offsets[1:])
    texts = pa.StringArray.from_buffers(len(encoded), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded)))
    return pa.DictionaryArray.from_arrays(int_array(codes.astype(np.int64), codes >= 0, pa.int32()), texts)


def float_array(values: npt.NDArray[np.float64]) -> pa.Array:
    """A column of floats, null where NaN. ``values`` has shape ``(n,)``."""
    present = ~np.isnan(values)
    bitmap = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.Array.from_buffers(pa.float64(), values.size, [bitmap, pa.py_buffer(np.ascontiguousarray(values))])


def column_array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    """A small column from Python values; null where ``None``.

    Args:
        values: integers, floats or texts, as ``type_`` says, or ``None``.
        type_: int32, int64, float64 or a dictionary of strings.
    """
    if pa.types.is_dictionary(type_):
        distinct = list(dict.fromkeys(value for value in values if value is not None))
        codes = [-1 if value is None else distinct.index(value) for value in values]
        return text_array(np.array(codes, dtype=np.int32), distinct)
    if pa.types.is_floating(type_):
        return float_array(np.array([np.nan if value is None else value for value in values], dtype=np.float64))
    present = np.array([value is not None for value in values], dtype=bool)
    return int_array(np.array([value or 0 for value in values], dtype=np.int64), present, type_)


def take_rows(table: pa.Table, rows: Int64Array) -> pa.Table:
    """Some rows of a table of integers and dictionary-encoded texts, in that order; each column in one piece."""
    columns = []
    for field in table.schema:
        if pa.types.is_dictionary(field.type):
            codes, dictionary = _codes(table, field.name)
            indices = int_array(codes[rows], codes[rows] >= 0, pa.int32())
            columns.append(pa.DictionaryArray.from_arrays(indices, dictionary))
        else:
            values, present = optional_ints(table, field.name)
            columns.append(int_array(values[rows], present[rows], field.type))
    return pa.Table.from_arrays(columns, schema=table.schema)


def in_one_piece(tables: Iterable[pa.Table]) -> pa.Table:
    """Tables of one schema behind one another, each column in one piece; at least one table.

    One column is copied after another, and lets go of its pieces: all of the table twice would be too much.
    """
    whole = pa.concat_tables(tables)
    schema, columns = whole.schema, whole.columns
    del whole
    for number, column in enumerate(columns):
        columns[number] = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        del column
    return pa.Table.from_arrays(columns, schema=schema)


def empty_table(schema: pa.Schema) -> pa.Table:
    """A table of integers and dictionary-encoded texts without rows; a slice without any keeps the rest in memory."""
    nothing = np.empty(0, dtype=np.int64)
    columns = [
        text_array(nothing.astype(np.int32), [])
        if pa.types.is_dictionary(field.type)
        else int_array(nothing, None, field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def ints(table: pa.Table, column: str) -> Int64Array:
    """An integer column without nulls, shape ``(num_rows,)``; read-only where it lies in one piece."""
    return optional_ints(table, column)[0]


def optional_ints(table: pa.Table, column: str) -> tuple[Int64Array, BoolArray]:
    """An integer column: the values (0 where null) and which of them are there.

    Returns:
        ``(values, present)``, both of shape ``(num_rows,)``. The values may be the table's own, and cannot be written.
    """
    parts = [_ints_of(chunk) for chunk in table[column].chunks]
    if not parts:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=bool)
    if len(parts) == 1:
        values, present = parts[0]
    else:
        values, present = (np.concatenate(pieces) for pieces in zip(*parts))
    return values if present.all() else np.where(present, values, 0), present


def equals(table: pa.Table, column: str, text: str) -> BoolArray:
    """Where a dictionary-encoded column holds ``text``; false where it is null. Shape ``(num_rows,)``."""
    codes, names = codes_and_names(table, column)
    return np.asarray(codes == (names.index(text) if text in names else -2), dtype=bool)


def codes_and_names(table: pa.Table, column: str) -> tuple[Int64Array, list[str]]:
    """A dictionary-encoded text column: the code of each row (-1 where null) and the text of each code."""
    codes, dictionary = _codes(table, column)
    return codes, [] if dictionary is None else dictionary.to_pylist()


def _codes(table: pa.Table, column: str) -> tuple[Int64Array, pa.Array | None]:
    chunks = table[column].chunks
    if not chunks:
        return np.empty(0, dtype=np.int64), None
    if len(chunks) > 1:
        chunks = table[column].unify_dictionaries().chunks
    parts = [_ints_of(chunk.indices) for chunk in chunks]
    codes = [values if present.all() else np.where(present, values, -1) for values, present in parts]
    return codes[0] if len(codes) == 1 else np.concatenate(codes), chunks[0].dictionary


def distinct_values(values: Int64Array) -> Int64Array:
    """Each value once, rising. Where nearly all differ, as ids do, this is many times faster than numpy's own."""
    ordered = np.sort(values)
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])[: ordered.size]], dtype=np.int64)


def number_pairs(first: npt.NDArray[np.integer[Any]], second: npt.NDArray[np.integer[Any]]) -> tuple[int, Int64Array]:
    """Numbers the distinct pairs, in the order of ``first``, then ``second``.

    Returns:
        How many there are, and the number of each entry's pair, shape ``(n,)``.
    """
    _, major = np.unique(first, return_inverse=True)
    distinct, minor = np.unique(second, return_inverse=True)
    pairs, which = np.unique(major * max(distinct.size, 1) + minor, return_inverse=True)
    return int(pairs.size), which


def _ints_of(array: pa.Array) -> tuple[Int64Array, BoolArray]:
    bitmap, data = array.buffers()
    kind = np.dtype(np.int32) if array.type == pa.int32() else np.dtype(np.int64)
    here = slice(array.offset, array.offset + len(array))
    values = np.frombuffer(data, dtype=kind)[here] if data is not None else np.zeros(len(array), dtype=kind)
    if bitmap is None:
        present = np.ones(len(array), dtype=bool)
    else:
        present = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little")[here].astype(bool)
    return values.astype(np.int64, copy=False), present
