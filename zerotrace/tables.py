"""Arrow columns as numpy arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zerotrace.intervals import Int64Array


def ints(table: pa.Table, column: str) -> Int64Array:
    """A column without nulls, shape ``(num_rows,)``, int64."""
    return table[column].to_numpy().astype(np.int64, copy=False)


def optional_ints(table: pa.Table, column: str) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """A column with nulls: the values (0 where null) and which of them are there.

    Returns:
        ``(values, present)``, both of shape ``(num_rows,)``.
    """
    array = table[column]
    present = array.is_valid().to_numpy()
    return array.fill_null(0).to_numpy().astype(np.int64, copy=False), present


def equals(table: pa.Table, column: str, text: str) -> npt.NDArray[np.bool_]:
    """Where a dictionary-encoded column holds ``text``; false where it is null. Shape ``(num_rows,)``."""
    codes, names = codes_and_names(table, column)
    return codes == (names.index(text) if text in names else -2)


def codes_and_names(table: pa.Table, column: str) -> tuple[Int64Array, list[str]]:
    """A dictionary-encoded column: the code of each row (-1 where null) and the text of each code."""
    array = table[column].unify_dictionaries().combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], type=array.type)
    return array.indices.fill_null(-1).to_numpy().astype(np.int64), array.dictionary.to_pylist()
