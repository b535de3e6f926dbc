"""Event rows to the Arrow table that everything after ingest reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pyarrow as pa

from zerotrace.ingest.classify import NOT_COLLECTIVES, SYNC_CAT, device_category, host_category
from zerotrace.ingest.columns import Ints, Texts, as_int
from zerotrace.ingest.kineto import UNKNOWN_ID, Args, Event
from zerotrace.ingest.rows import EventRows
from zerotrace.ingest.steps import NO_STEP, steps_at
from zerotrace.intervals import Int64Array
from zerotrace.model import Category, Mode, StepWindow
from zerotrace.schema import EVENTS
from zerotrace.tables import BoolArray, number_pairs

_COLLECTIVE_TEXTS = ("collective", "group_name", "group_ranks", "dtype")
_COLLECTIVE_INTS = ("group_size", "seq", "in_elements", "out_elements", "src_rank", "dst_rank")

_MAX_DEVICE = (1 << 31) - 1


def collectives_of(rows: EventRows) -> dict[int, Args]:
    """The collective that each row carries, by row.

    Recent traces write it on the kernel; in others it stands only on the ``record_param_comms`` operator of the
    same External id, from which kernels and copies inherit it.
    """
    operators = np.flatnonzero(rows.names.where(lambda name: name == "record_param_comms")).tolist()
    described = {_external_id(rows.args[row]): rows.args[row] for row in operators}
    described.pop(UNKNOWN_ID, None)
    described = {number: args for number, args in described.items() if args.collective is not None}
    devices = np.flatnonzero(rows.is_device).tolist()
    found = {row: rows.args[row] for row in (*operators, *devices) if rows.args[row].collective is not None}
    for row in devices if described else ():
        if row not in found:
            args = described.get(_external_id(rows.args[row]))
            if args is not None:
                found[row] = args
    return found


def row_categories(rows: EventRows, collectives: Mapping[int, Args], mode: Mode) -> Texts:
    """The category of each row; no text for rows that are no device time (no host time, in host mode)."""
    everything = np.ones(len(rows), dtype=bool)
    if mode is Mode.DEVICE:
        moves_data = np.zeros(len(rows), dtype=bool)
        moves_data[[row for row, args in collectives.items() if _is_collective(args)]] = True
        return _by_distinct_name(rows, rows.is_device, moves_data, device_category)
    thread = Texts.of([f"{event.pid}/{event.tid}" for event in rows.events])
    gloo_threads = np.unique(thread.codes[rows.names.where(lambda name: name.startswith("gloo:"))])
    return _by_distinct_name(rows, everything, np.isin(thread.codes, gloo_threads), host_category)


def event_table(
    rows: EventRows, collectives: Mapping[int, Args], category: Texts, windows: tuple[StepWindow, ...]
) -> pa.Table:
    """The table of :data:`zerotrace.schema.EVENTS`, sorted as it says (host rows first)."""
    step = steps_at(windows, rows.start_ns)
    is_sync = rows.cats.where(lambda cat: cat == SYNC_CAT)
    on_device, waits = np.flatnonzero(rows.is_device), np.flatnonzero(is_sync)
    on_lanes = np.flatnonzero(rows.is_device | is_sync)
    everywhere = np.ones(len(rows), dtype=bool)
    lanes = _lane_columns(rows, on_lanes)
    order = _sort_order(rows.start_ns, on_lanes, lanes)
    dense: dict[str, Texts | Ints] = {
        "event": Ints(rows.position, everywhere),
        "cat": rows.cats,
        "name": rows.names,
        "category": category,
        "start_ns": Ints(rows.start_ns, everywhere),
        "dur_ns": Ints(rows.dur_ns, everywhere),
        "step": Ints(step, step != NO_STEP),
        "pid": Ints.of([event.pid for event in rows.events]),
        "tid": _threads(rows),
        "correlation": Ints.of([args.correlation for args in rows.args]).without(UNKNOWN_ID),
        "external_id": _external_ids(rows),
    }
    columns = {name: column.take(order) for name, column in dense.items()}
    # Columns that few rows have are put straight into their sorted places: the rest of each is never touched.
    place = np.empty_like(order)
    place[order] = np.arange(order.size)
    sparse = (
        (on_lanes, lanes),
        (on_device, _int_columns(rows, on_device, ("transfer_bytes",))),
        (on_device, {"launch_shape": _launch_shapes(rows, on_device)}),
        (waits, _int_columns(rows, waits, ("wait_on_stream", "wait_on_correlation"))),
        (np.fromiter(collectives, np.int64, len(collectives)), _collective_columns(collectives.values())),
    )
    for where, found in sparse:
        columns.update({name: column.spread(len(rows), place[where]) for name, column in found.items()})
    schema = EVENTS.arrow()
    arrays = []
    for field in schema:
        column = columns[field.name]
        arrays.append(column.arrow() if isinstance(column, Texts) else column.arrow(field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def without_device(rows: EventRows) -> Int64Array:
    """Positions in the file of device rows that name no device in any way."""
    place = np.flatnonzero(rows.is_device)
    pairs = [(rows.events[row], rows.args[row]) for row in place.tolist()]
    return rows.position[place[~_has_device(pairs)]]


def _stated_devices(pairs: Sequence[tuple[Event, Args]]) -> Ints:
    return Ints.of([event.pid if args.device is None else args.device for event, args in pairs])


def _has_device(pairs: Sequence[tuple[Event, Args]]) -> BoolArray:
    stated = _stated_devices(pairs)
    return np.asarray(stated.present & (np.abs(stated.values) <= _MAX_DEVICE), dtype=bool)


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


def _collective_columns(carriers: Collection[Args]) -> dict[str, Texts | Ints]:
    """Columns that only the rows have that carry a collective."""
    texts = {field: Texts.of(list(map(attrgetter(field), carriers))) for field in _COLLECTIVE_TEXTS}
    ints = {field: Ints.of(list(map(attrgetter(field), carriers))) for field in _COLLECTIVE_INTS}
    return {**texts, **ints}


def _int_columns(rows: EventRows, place: Int64Array, fields: Sequence[str]) -> dict[str, Ints]:
    """Integer arguments of the rows at ``place``. Kineto writes -1 where it does not know."""
    carriers = [rows.args[row] for row in place.tolist()]
    return {field: Ints.of(list(map(attrgetter(field), carriers))).without(-1) for field in fields}


def _launch_shapes(rows: EventRows, place: Int64Array) -> Texts:
    """Grid and block of the rows at ``place`` that have them, each shape written once: ``17x1x1/256x1x1``."""
    carriers = [rows.args[row] for row in place.tolist()]
    shapes: list[Any] = [
        (*args.grid, "/", *args.block) if type(args.grid) is list and type(args.block) is list else None
        for args in carriers
    ]
    try:
        distinct = dict.fromkeys(shapes)
    except TypeError:  # something else than numbers in the place of a size
        shapes = [None if shape is None else tuple(map(str, shape)) for shape in shapes]
        distinct = dict.fromkeys(shapes)
    texts = {shape: None if shape is None else _shape_text(shape) for shape in distinct}
    return Texts.of([texts[shape] for shape in shapes])


def _shape_text(shape: tuple[Any, ...]) -> str:
    return "x".join(map(str, shape)).replace("x/x", "/")


def _lane_columns(rows: EventRows, place: Int64Array) -> dict[str, Ints]:
    """Device and stream of the rows at ``place``. Old traces name them by pid and ``tid: "stream 7"`` alone."""
    pairs = [(rows.events[row], rows.args[row]) for row in place.tolist()]
    # A process drives one device as a rule; `device_unknown` says where a row was given to device 0 for that reason.
    device = Ints(np.where(_has_device(pairs), _stated_devices(pairs).values, 0), np.ones(len(pairs), dtype=bool))
    stream = Ints.of([_number_in(event.tid) if args.stream is None else args.stream for event, args in pairs])
    return {"device": device, "stream": stream}


def _threads(rows: EventRows) -> Ints:
    tids = Ints.of([event.tid for event in rows.events])
    return tids if tids.present.all() else Ints.of([_number_in(event.tid) for event in rows.events])


def _external_ids(rows: EventRows) -> Ints:
    ids = Ints.of([args.external_id for args in rows.args]).without(UNKNOWN_ID)
    if [args.legacy_external_id for args in rows.args].count(UNKNOWN_ID) == len(rows):
        return ids
    without = np.flatnonzero(~ids.present)  # few: those of old traces, and of no operator
    others = Ints.of([_external_id(rows.args[row]) for row in without.tolist()]).without(UNKNOWN_ID)
    values, present = ids.values.copy(), ids.present.copy()
    values[without], present[without] = others.values, others.present
    return Ints(values, present)


def _sort_order(start_ns: Int64Array, place: Int64Array, lanes: Mapping[str, Ints]) -> Int64Array:
    """Rows by device, stream and start; host rows, which have no device, first.

    Args:
        start_ns: start of every row.
        place: the rows that have a lane.
        lanes: device and stream of those.
    """
    device, stream = lanes["device"], lanes["stream"]
    by_start = np.argsort(start_ns, kind="stable")
    num_lanes, which = number_pairs(device.values, np.where(stream.present, stream.values, -1))
    # Nearly all rows are the host's: only the others need to be told apart by lane, and a few lanes fit in 16 bits.
    lane = np.zeros(start_ns.size, dtype=np.int16 if num_lanes < np.iinfo(np.int16).max else np.int64)
    lane[place] = which + 1
    return np.asarray(by_start[np.argsort(lane[by_start], kind="stable")], dtype=np.int64)


def _text(texts: Texts, code: int) -> str:
    return texts.distinct[code] if code >= 0 else ""


def _is_collective(args: Args) -> bool:
    return isinstance(args.collective, str) and bool(args.collective) and args.collective not in NOT_COLLECTIVES


def _external_id(args: Args) -> int:
    """The id under today's or the old spelling; :data:`UNKNOWN_ID` where it is no number."""
    stated = args.legacy_external_id if args.external_id == UNKNOWN_ID else args.external_id
    return stated if type(stated) is int else UNKNOWN_ID if (number := as_int(stated)) is None else number


def _number_in(value: Any) -> int | None:
    """``7`` of ``7`` and of ``"stream 7"``."""
    if isinstance(value, int):
        return value
    digits = re.search(r"\d+", value) if isinstance(value, str) else None
    return as_int(digits[0]) if digits else None
