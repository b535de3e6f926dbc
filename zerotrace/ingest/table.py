"""Event rows to the Arrow table that everything after ingest reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

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
_SLICE = 1 << 17

# Columns that nothing looks at but the table.
_SPARED = ("pid", "tid", "correlation", "external_id")


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
    unnamed = rows.lanes.rows[rows.lanes.ints("stated").values == 0]
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
    order = _sort_order(rows)
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    carried = [(place[group.rows], group) for group in (rows.lanes, rows.copies, rows.waits, collectives)]
    del place
    schema = EVENTS.arrow()
    with Spool(folder) as ordered:
        # One column after another: all of one are in memory at a time, and slices are read off them in order.
        ordered.append("event", rows.position[order])
        ordered.append("dur_ns", rows.dur_ns[order])
        for name in _SPARED:
            ordered.append_ints(name, getattr(rows, name).take(order))
        for begin in range(0, max(order.size, 1), _SLICE):
            here = order[begin : begin + _SLICE]
            everywhere = np.ones(here.size, dtype=bool)
            start = rows.start_ns[here]
            step = steps_at(windows, start)
            columns: dict[str, Texts | Ints] = {
                "event": Ints(ordered.load("event", np.int64, begin, here.size), everywhere),
                "cat": rows.cats.take(here),
                "name": rows.names.take(here),
                "category": category.take(here),
                "start_ns": Ints(start, everywhere),
                "dur_ns": Ints(ordered.load("dur_ns", np.int64, begin, here.size), everywhere),
                "step": Ints(step, step != NO_STEP),
                **{name: ordered.load_ints(name, begin, here.size) for name in _SPARED},
            }
            for where, group in carried:
                # Columns that few rows have are put straight into their places: the rest of each is never touched.
                inside = np.flatnonzero((where >= begin) & (where < begin + _SLICE))
                for name, column in group.columns.items():
                    columns[name] = column.take(inside).spread(here.size, where[inside] - begin)
            arrays = []
            for field in schema:
                column = columns[field.name]
                arrays.append(column.arrow() if isinstance(column, Texts) else column.arrow(field.type))
            yield pa.Table.from_arrays(arrays, schema=schema)


def _sort_order(rows: EventRows) -> Int64Array:
    """Rows by device, stream and start; host rows, which have no device, first."""
    device, stream = rows.lanes.ints("device"), rows.lanes.ints("stream")
    by_start = np.argsort(rows.start_ns, kind="stable")
    num_lanes, which = number_pairs(device.values, np.where(stream.present, stream.values, -1))
    # Nearly all rows are the host's: only the others need to be told apart by lane, and a few lanes fit in 16 bits.
    lane = np.zeros(len(rows), dtype=np.int16 if num_lanes < np.iinfo(np.int16).max else np.int64)
    lane[rows.lanes.rows] = which + 1
    return np.asarray(by_start[np.argsort(lane[by_start], kind="stable")], dtype=np.int64)


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
    width = len(rows.names.distinct) + 1
    key = ((rows.cats.codes[chosen].astype(np.int64) + 1) * width + rows.names.codes[chosen] + 1) * 2 + flag[chosen]
    distinct, which = np.unique(key, return_inverse=True)
    order = list(Category)
    verdicts = np.full(distinct.size, -1, dtype=np.int32)
    for i, combination in enumerate(distinct.tolist()):
        place, flagged = divmod(combination, 2)
        cat, name = divmod(place, width)
        category = rule(_text(rows.cats, cat - 1), _text(rows.names, name - 1), bool(flagged))
        verdicts[i] = -1 if category is None else order.index(category)
    codes[chosen] = verdicts[which]
    return Texts(codes, [category.value for category in order])


def _text(texts: Texts, code: int) -> str:
    return texts.distinct[code] if code >= 0 else ""
