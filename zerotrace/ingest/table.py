"""Event rows to the Arrow table that everything after ingest reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zerotrace.freed import give_back_memory
from zerotrace.ingest.classify import COLLECTIVE_OPERATOR, NOT_COLLECTIVES, device_category, host_category
from zerotrace.ingest.columns import Ints, Texts
from zerotrace.ingest.rows import Carried, EventRows
from zerotrace.ingest.spool import Spool
from zerotrace.ingest.steps import NO_STEP, steps_at
from zerotrace.intervals import Int64Array
from zerotrace.model import Category, Mode, StepWindow
from zerotrace.schema import EVENTS
from zerotrace.tables import BoolArray, number_pairs

# Rows that are made into a table, and written, at once.
_SLICE = 1 << 16

# Columns of numbers that every row has, by where the rows have them, and such that some have.
_WHOLE = {"event": "position", "start_ns": "start_ns", "dur_ns": "dur_ns"}
_PARTIAL = ("pid", "tid", "correlation", "external_id")


def collectives_of(rows: EventRows) -> Carried:
    """The collective that each row carries.

    Recent traces write it on the kernel; in others it stands only on the ``record_param_comms`` operator of the
    same External id, from which kernels and copies inherit it.
    """
    stated = rows.collectives
    external_id = rows.external_id
    operators = np.flatnonzero(rows.names.where(lambda name: name == COLLECTIVE_OPERATOR) & external_id.present)
    # Of operators with one id the last counts.
    ids, last = np.unique(external_id.values[operators][::-1], return_index=True)
    source = operators[operators.size - 1 - last]
    described = np.isin(source, stated.rows)
    ids, source = ids[described], source[described]
    heirs = rows.is_device & external_id.present
    heirs[stated.rows] = False
    heir = np.flatnonzero(heirs)
    place = np.searchsorted(ids, external_id.values[heir])
    has_source = place < ids.size
    has_source[has_source] = ids[place[has_source]] == external_id.values[heir[has_source]]
    if not has_source.any():
        return stated
    heir, inherited = heir[has_source], stated.of_rows(source[place[has_source]])
    every_row = np.concatenate([stated.rows, heir])
    order = np.argsort(every_row, kind="stable")
    entry = np.concatenate([np.arange(stated.rows.size), inherited])[order]
    return Carried(every_row[order], {name: column.take(entry) for name, column in stated.columns.items()})


def row_categories(rows: EventRows, collectives: Carried, mode: Mode) -> Texts:
    """The category of each row; no text for rows that are no device time (no host time, in host mode)."""
    everything = np.ones(len(rows), dtype=bool)
    if mode is Mode.DEVICE:
        moves_data = np.zeros(len(rows), dtype=bool)
        moves_data[collectives.rows[_are_collectives(collectives)]] = True
        return _by_distinct_name(rows, rows.is_device, moves_data, device_category)
    _, thread = number_pairs(rows.pid.values, rows.tid.values)
    gloo_threads = np.unique(thread[rows.names.where(lambda name: name.startswith("gloo:"))])
    return _by_distinct_name(rows, everything, np.isin(thread, gloo_threads), host_category)


def without_device(rows: EventRows) -> Int64Array:
    """Positions in the file of device rows that name no device in any way."""
    lanes = rows.lanes
    unnamed = lanes.rows[lanes.ints("stated").values == 0]
    return np.asarray(rows.position[unnamed[rows.is_device[unnamed]]], dtype=np.int64)


def event_tables(
    rows: EventRows, collectives: Carried, category: Texts, windows: tuple[StepWindow, ...], folder: Path | None = None
) -> Iterator[pa.Table]:
    """The table of :data:`zerotrace.schema.EVENTS`, sorted as it says (host rows first), in slices.

    Args:
        rows: the events.
        collectives: what :func:`collectives_of` found.
        category: what :func:`row_categories` found.
        windows: step windows, sorted by start.
        folder: where columns that are too large for memory are kept meanwhile.
    """
    schema = EVENTS.arrow()
    with Spool(folder) as spool:
        ordered = _Ordered(rows, collectives, category, spool)
        give_back_memory(len(rows))
        for begin in range(0, max(len(rows), 1), _SLICE):
            columns = ordered.columns(begin, min(_SLICE, len(rows) - begin))
            start = columns["start_ns"]
            assert isinstance(start, Ints)
            step = steps_at(windows, start.values)
            columns["step"] = Ints(step, step != NO_STEP)
            arrays = []
            for field in schema:
                column = columns[field.name]
                arrays.append(column.arrow() if isinstance(column, Texts) else column.arrow(field.type))
            yield pa.Table.from_arrays(arrays, schema=schema)


class _Ordered:
    """The columns of the rows in the order of the table, out of memory.

    They are put in order one after another, so that all of one are in memory at a time, and read off slice by slice.

    Args:
        rows: the events.
        collectives: the collective that each carries.
        category: their categories.
        spool: where the columns go.
    """

    def __init__(self, rows: EventRows, collectives: Carried, category: Texts, spool: Spool) -> None:
        self._spool = spool
        self._distinct: dict[str, list[str]] = {}
        order = _sort_order(rows)
        for name, source in _WHOLE.items():
            self._put(name, Ints(getattr(rows, source), np.ones(order.size, dtype=bool)), order)
        for name in _PARTIAL:
            self._put(name, getattr(rows, name), order)
        self._put("cat", rows.cats, order)
        self._put("name", rows.names, order)
        self._put("category", category, order)
        place = np.empty_like(order)
        place[order] = np.arange(order.size, dtype=order.dtype)
        del order
        # Where in the table the rows are that have what few have, and its columns.
        self._carried: list[tuple[Int64Array, list[str]]] = []
        for group in (rows.lanes, rows.copies, rows.waits, collectives):
            where = place[group.rows].astype(np.int64)
            by_place = np.argsort(where)
            for name, column in group.columns.items():
                self._put(name, column, by_place)
            self._carried.append((where[by_place], [*group.columns]))

    def columns(self, begin: int, count: int) -> dict[str, Texts | Ints]:
        """Some rows of all columns."""
        found = {name: self._load(name, begin, count) for name in (*_WHOLE, *_PARTIAL, "cat", "name", "category")}
        for where, names in self._carried:
            # Put straight into their places: the rest of each column is never touched.
            low, high = np.searchsorted(where, (begin, begin + count)).tolist()
            for name in names:
                found[name] = self._load(name, low, high - low).spread(count, where[low:high] - begin)
        return found

    def _put(self, name: str, column: Texts | Ints, order: npt.NDArray[np.integer[Any]]) -> None:
        if isinstance(column, Texts):
            self._distinct[name] = column.distinct
        for begin in range(0, order.size, _SLICE):
            some = column.take(order[begin : begin + _SLICE])
            if isinstance(some, Texts):
                self._spool.append(name, some.codes)
            else:
                self._spool.append_ints(name, some)

    def _load(self, name: str, begin: int, count: int) -> Texts | Ints:
        if name in self._distinct:
            return Texts(self._spool.load(name, np.int32, begin, count), self._distinct[name])
        return self._spool.load_ints(name, begin, count)


def _sort_order(rows: EventRows) -> npt.NDArray[np.int32]:
    """Rows by device, stream and start; host rows, which have no device, first."""
    by_start = np.argsort(rows.start_ns, kind="stable").astype(np.int32)
    lanes = rows.lanes
    device, stream = lanes.ints("device"), lanes.ints("stream")
    num_lanes, which = number_pairs(device.values, np.where(stream.present, stream.values, -1))
    # Nearly all rows are the host's: only the others need to be told apart by lane, and a few lanes fit in 16 bits.
    lane = np.zeros(len(rows), dtype=np.int16 if num_lanes < np.iinfo(np.int16).max else np.int32)
    lane[lanes.rows] = which + 1
    lane = lane[by_start]
    in_lanes = by_start[lane > 0]
    return np.concatenate((by_start[lane == 0], in_lanes[np.argsort(lane[lane > 0], kind="stable")]))


def _are_collectives(collectives: Carried) -> BoolArray:
    """Which of the names are those of collectives."""
    moving = collectives.texts("collective").where(lambda name: bool(name) and name not in NOT_COLLECTIVES)
    return np.asarray(moving & (collectives.ints("named").values != 0), dtype=bool)


def _by_distinct_name(
    rows: EventRows, candidates: BoolArray, flag: BoolArray, rule: Callable[[str, str, bool], Category | None]
) -> Texts:
    """Applies ``rule(cat, name, flag)`` once to each distinct combination among the candidates."""
    codes = np.full(len(rows), -1, dtype=np.int32)
    chosen = np.flatnonzero(candidates)
    # Codes are -1 where there is no text, hence the shift by one.
    cats, names = rows.cats.take(chosen), rows.names.take(chosen)
    width = len(names.distinct) + 1
    key = ((cats.codes.astype(np.int64) + 1) * width + names.codes + 1) * 2 + flag[chosen]
    distinct, which = np.unique(key, return_inverse=True)
    order = list(Category)
    verdicts = np.full(distinct.size, -1, dtype=np.int32)
    for i, combination in enumerate(distinct.tolist()):
        place, flagged = divmod(combination, 2)
        cat, name = divmod(place, width)
        category = rule(_text(cats, cat - 1), _text(names, name - 1), bool(flagged))
        verdicts[i] = -1 if category is None else order.index(category)
    codes[chosen] = verdicts[which]
    return Texts(codes, [category.value for category in order])


def _text(texts: Texts, code: int) -> str:
    return texts.distinct[code] if code >= 0 else ""
