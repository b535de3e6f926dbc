"""Event rows to the Arrow table that everything after ingest reads."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zerotrace.ingest.classify import NOT_COLLECTIVES, device_category, host_category
from zerotrace.ingest.columns import BoolArray, Texts, int_column
from zerotrace.ingest.kineto import Args
from zerotrace.ingest.rows import EventRows
from zerotrace.ingest.steps import NO_STEP, steps_at
from zerotrace.intervals import Int64Array
from zerotrace.model import Category, Mode, StepWindow
from zerotrace.schema import EVENTS

_COLLECTIVE_TEXTS = ("collective", "group_name", "group_ranks", "dtype")
_COLLECTIVE_INTS = ("group_size", "seq", "in_elements", "out_elements", "src_rank", "dst_rank")

# Synchronisation rows name a device and a stream too; they are no device time, but say who waits for whom.
_SYNC_CAT = "cuda_sync"


def collectives_of(rows: EventRows) -> dict[int, Args]:
    """The collective that each row carries, by row.

    Recent traces write it on the kernel; in others it stands only on the ``record_param_comms`` operator of the
    same External id, from which kernels and copies inherit it.
    """
    operators = np.flatnonzero(rows.names.where(lambda name: name == "record_param_comms")).tolist()
    described = {_external_id(rows.args[row]): rows.args[row] for row in operators}
    described.pop(None, None)
    found = {row: args for row, args in enumerate(rows.args) if args.collective is not None}
    for row in np.flatnonzero(rows.is_device).tolist():
        if row not in found:
            args = described.get(_external_id(rows.args[row]))
            if args is not None and args.collective is not None:
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
    on_device = rows.is_device | rows.cats.where(lambda cat: cat == _SYNC_CAT)
    device, stream = _lanes(rows, np.flatnonzero(on_device).tolist())
    columns: dict[str, pa.Array] = {
        "event": pa.array(rows.position),
        "cat": rows.cats.arrow(),
        "name": rows.names.arrow(),
        "category": category.arrow(),
        "start_ns": pa.array(rows.start_ns),
        "dur_ns": pa.array(rows.dur_ns),
        "step": pa.array(step.astype(np.int32), mask=step == NO_STEP),
        "device": device,
        "stream": stream,
        "pid": int_column([event.pid for event in rows.events], pa.int64()),
        "tid": _thread_column(rows),
        "correlation": int_column([args.correlation for args in rows.args], pa.int64()),
        "external_id": int_column([_external_id(args) for args in rows.args], pa.int64()),
        "transfer_bytes": int_column([args.transfer_bytes for args in rows.args], pa.int64()),
        "wait_on_stream": int_column([_not_minus_one(args.wait_on_stream) for args in rows.args], pa.int64()),
        "wait_on_correlation": int_column([_not_minus_one(args.wait_on_correlation) for args in rows.args], pa.int64()),
        **_collective_columns(len(rows), collectives),
    }
    schema = EVENTS.arrow()
    table = pa.table([columns[name] for name in schema.names], schema=schema)
    return table.take(pa.array(_sort_order(rows.start_ns, device, stream)))


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


def _collective_columns(num_rows: int, collectives: Mapping[int, Args]) -> dict[str, pa.Array]:
    """Columns that are null but for the rows that carry a collective."""
    place = np.fromiter(collectives, np.int64, len(collectives))
    # taking row -1 + 1 = 0 of a column with a null in front spreads the few values over all rows
    spread = np.zeros(num_rows, dtype=np.int64)
    spread[place] = np.arange(1, place.size + 1)
    index = pa.array(spread)
    columns: dict[str, pa.Array] = {}
    for field in _COLLECTIVE_TEXTS:
        texts = Texts.of([None, *(getattr(args, field) for args in collectives.values())])
        columns[field] = texts.take(spread).arrow()
    for field in _COLLECTIVE_INTS:
        type_ = EVENTS.arrow().field(field).type
        columns[field] = int_column([None, *(getattr(args, field) for args in collectives.values())], type_).take(index)
    return columns


def _lanes(rows: EventRows, on_device: list[int]) -> tuple[pa.Array, pa.Array]:
    """Device and stream of each row; null on the host. Old traces name them by pid and ``tid: "stream 7"`` alone."""
    device: list[Any] = [None] * len(rows)
    stream: list[Any] = [None] * len(rows)
    for row in on_device:
        event, args = rows.events[row], rows.args[row]
        device[row] = event.pid if args.device is None else args.device
        stream[row] = _number_in(event.tid) if args.stream is None else args.stream
    return int_column(device, pa.int32()), int_column(stream, pa.int64())


def _thread_column(rows: EventRows) -> pa.Array:
    tids = [event.tid for event in rows.events]
    try:
        return pa.array(tids, type=pa.int64())
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        return int_column([_number_in(tid) for tid in tids], pa.int64())


def _sort_order(start_ns: Int64Array, device: pa.Array, stream: pa.Array) -> npt.NDArray[np.int64]:
    lanes = [np.asarray(column.fill_null(-1)) for column in (stream, device)]
    return np.lexsort((start_ns, *lanes)).astype(np.int64, copy=False)


def _text(texts: Texts, code: int) -> str:
    return texts.distinct[code] if code >= 0 else ""


def _is_collective(args: Args) -> bool:
    return isinstance(args.collective, str) and args.collective not in NOT_COLLECTIVES


def _external_id(args: Args) -> Any:
    return args.legacy_external_id if args.external_id is None else args.external_id


def _not_minus_one(value: Any) -> Any:
    """Kineto writes -1 where it does not know."""
    return None if value == -1 else value


def _number_in(value: Any) -> int | None:
    """``7`` of ``7`` and of ``"stream 7"``."""
    if isinstance(value, int):
        return value
    digits = re.search(r"\d+", value) if isinstance(value, str) else None
    return int(digits[0]) if digits else None
