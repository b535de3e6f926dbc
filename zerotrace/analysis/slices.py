"""Slices of an event table: in memory while they are few, in a file without a name once they are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.ingest.spool import room_in
from zerotrace.tables import int_array, ints, text_array


class Extent(Struct, frozen=True, kw_only=True):
    """When the rows of a slice begin and end."""

    first_start: int
    last_start: int
    last_end: int

    @classmethod
    def of(cls, events: pa.Table) -> Extent:
        """That of a slice with at least one row."""
        start = ints(events, "start_ns")
        return cls(
            first_start=int(start.min()),
            last_start=int(start.max()),
            last_end=int((start + ints(events, "dur_ns")).max()),
        )

    def meets(self, begin: int, end: int) -> bool:
        """Whether a row may begin, or run, in ``[begin, end)``."""
        return self.first_start < end and (self.last_start >= begin or self.last_end > begin)


class Slices:
    """Slices of one event table, in its order.

    Args:
        max_rows: rows that are held in memory; when there are more, all go to the file.
        folder: where the file lies; the system's own place for temporary files by default.
    """

    def __init__(self, max_rows: int, folder: Path | None = None) -> None:
        self.num_rows = 0
        self.extents: list[Extent] = []
        self._max_rows = max_rows
        self._folder = folder
        self._schema: pa.Schema | None = None
        self._texts: dict[str, _SharedTexts] = {}
        self._held: list[pa.Table] = []
        self._file: IO[bytes] | None = None
        self._writer: Any = None
        self._readers: dict[tuple[str, ...], Any] = {}

    def close(self) -> None:
        """Lets go of the file."""
        if self._file is not None:
            # Closing writes what is left, for which there may be no room: nobody will read it.
            with suppress(OSError):
                self._file.close()

    def add(self, events: pa.Table) -> None:
        """Takes the next rows.

        Raises:
            OSError: there is no room in the folder.
            TraceError: ``no_room`` in the system's own place for temporary files.
        """
        if self._schema is None:
            self._schema = events.schema
            dictionaries = (field.name for field in events.schema if pa.types.is_dictionary(field.type))
            self._texts = {name: _SharedTexts() for name in dictionaries}
        if not events.num_rows:
            return
        self.extents.append(Extent.of(events))
        self.num_rows += events.num_rows
        for name, texts in self._texts.items():
            place = events.column_names.index(name)
            events = events.set_column(place, name, texts.codes(events[name]))
        self._held.append(events)
        if self.num_rows > self._max_rows:
            with room_in(self._folder):
                self._to_file()

    def __len__(self) -> int:
        """How many there are."""
        return len(self.extents)

    def __iter__(self) -> Iterator[pa.Table]:
        """All of them; one without rows where there is none."""
        yield from map(self.load, range(len(self))) if self.extents else [self.empty()]

    def empty(self) -> pa.Table:
        """One without rows."""
        assert self._schema is not None
        columns = [
            self._texts[field.name].column(pa.chunked_array([_no_codes()]))
            if field.name in self._texts
            else int_array(np.empty(0, dtype=np.int64), None, field.type)
            for field in self._schema
        ]
        return pa.Table.from_arrays(columns, schema=self._schema)

    def load(self, number: int, *names: str) -> pa.Table:
        """One of them.

        Args:
            number: which, from 0 on.
            names: which columns of it, in their order; all by default.
        """
        assert self._schema is not None
        schema = pa.schema([self._schema.field(name) for name in names]) if names else self._schema
        events = self._held[number] if self._writer is None else self._from_file(number, names)
        columns = [
            self._texts[name].column(events[name]) if name in self._texts else events[name] for name in schema.names
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def _to_file(self) -> None:
        if self._writer is None:
            folder = None if self._folder is None else str(self._folder)
            self._file = TemporaryFile(dir=folder)  # noqa: SIM115 - closed by close
            self._writer = pa.ipc.new_file(self._file, self._held[0].schema)
        for events in self._held:
            self._writer.write_batch(events.combine_chunks().to_batches()[0])
        self._held.clear()

    def _from_file(self, number: int, names: tuple[str, ...]) -> pa.Table:
        assert self._file is not None and self._schema is not None
        if not self._readers:
            with room_in(self._folder):
                self._writer.close()
        if names not in self._readers:
            fields = sorted(self._schema.get_field_index(name) for name in names)
            options = pa.ipc.IpcReadOptions(included_fields=fields) if names else None
            self._readers[names] = pa.ipc.open_file(self._file, options=options)
        return pa.Table.from_batches([self._readers[names].get_batch(number)])


class _SharedTexts:
    """One column of texts: all its slices have the distinct texts of the last one, which has those of the others."""

    def __init__(self) -> None:
        self._distinct = text_array(np.empty(0, dtype=np.int32), []).dictionary

    def codes(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        """The next slice as codes, which stay what they are whatever comes later."""
        if any(not chunk.dictionary.equals(self._distinct) for chunk in column.chunks):
            known = self._encoded(_no_codes())
            column = pa.chunked_array([known, *column.chunks]).unify_dictionaries()
            self._distinct = column.chunk(0).dictionary
        return pa.chunked_array([pa.concat_arrays([chunk.indices for chunk in column.chunks])])

    def column(self, codes: pa.ChunkedArray) -> pa.DictionaryArray:
        """A slice from its codes."""
        return self._encoded(codes.chunk(0))

    def _encoded(self, codes: pa.Array) -> pa.DictionaryArray:
        return pa.DictionaryArray.from_arrays(codes, self._distinct)


def _no_codes() -> pa.Array:
    return int_array(np.empty(0, dtype=np.int64), None, pa.int32())
