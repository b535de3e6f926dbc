"""The events of a trace that count, as columns with exact times: what is dropped is counted and said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from zerotrace.ingest.classify import COLLECTIVE_OPERATOR, DEVICE_CATS, SYNC_CAT, canonical_cat
from zerotrace.ingest.columns import Ints, TextPool, Texts, as_int, number_in
from zerotrace.ingest.files import name_of
from zerotrace.ingest.kineto import COMPLETE, NO_ARGS, UNKNOWN_ID, Args, Document, Event
from zerotrace.ingest.pieces import Piece
from zerotrace.ingest.spool import Scalar, Spool
from zerotrace.ingest.times import (
    FLOAT_EXACT_BELOW_US,
    MAX_BASE_NS,
    MAX_DURATION_US,
    floats_to_ns,
    text_to_ns,
    to_microseconds,
)
from zerotrace.intervals import Int64Array
from zerotrace.model import Diagnostic, Level
from zerotrace.tables import BoolArray

# Python frames and the profiler's own span carry no time that any figure counts.
_LEFT_OUT_CATS = frozenset({"python_function", "trace"})

_COLLECTIVE_TEXTS = ("collective", "group_name", "group_ranks", "dtype")
_COLLECTIVE_INTS = ("group_size", "seq", "in_elements", "out_elements", "src_rank", "dst_rank")
_COPY_INTS = ("transfer_bytes",)
_WAIT_INTS = ("wait_on_stream", "wait_on_correlation")

_FAULTS = ("a negative duration", "no usable time", "neither start nor duration (both 0)")

_MAX_DEVICE = (1 << 31) - 1


class Carried(Struct, frozen=True, eq=False):
    """Columns that only some rows have.

    Attributes:
        rows: which rows, rising; shape ``(m,)``.
        columns: by name, each with ``m`` entries.
    """

    rows: Int64Array
    columns: Mapping[str, Texts | Ints]

    def take(self, kept: BoolArray) -> Carried:
        """What is left of them where some of all rows are dropped."""
        here = kept[self.rows]
        place = np.cumsum(kept) - 1
        return Carried(place[self.rows[here]], {name: column.take(here) for name, column in self.columns.items()})

    def ints(self, name: str) -> Ints:
        """An integer column."""
        column = self.columns[name]
        assert isinstance(column, Ints)
        return column

    def texts(self, name: str) -> Texts:
        """A column of texts."""
        column = self.columns[name]
        assert isinstance(column, Texts)
        return column

    def of_rows(self, rows: Int64Array) -> Int64Array:
        """The entry of each of these rows, all of which must have one."""
        return np.searchsorted(self.rows, rows)


class _Pools(Struct, frozen=True):
    """The distinct texts of all columns."""

    cats: TextPool
    names: TextPool
    carried: Mapping[str, TextPool]


class EventRows:
    """The complete events that count, in file order, on the absolute clock. All columns have one entry a row.

    Columns lie in the spool, and each is loaded when it is asked for: a trace has millions of rows.

    Args:
        spool: where they lie.
        pools: their texts.
        base_ns: what starts are relative to in the spool.
        kept: which rows of the spool these are; all of them by default.
    """

    def __init__(self, spool: Spool, pools: _Pools, base_ns: int, kept: BoolArray | None = None) -> None:
        self._spool = spool
        self._pools = pools
        self._base_ns = base_ns
        self._kept = kept
        self._num_rows = int(spool.count("start_ns", np.int64) if kept is None else kept.sum())

    def __len__(self) -> int:
        """Number of rows."""
        return self._num_rows

    @property
    def cats(self) -> Texts:
        """Kineto categories, in today's spelling."""
        return self._pools.cats.texts(self._load("cats", np.int32))

    @property
    def names(self) -> Texts:
        """Names of the events."""
        return self._pools.names.texts(self._load("names", np.int32)).filled("")

    @property
    def start_ns(self) -> Int64Array:
        """Starts."""
        return self._load("start_ns", np.int64) + self._base_ns

    @property
    def is_device(self) -> BoolArray:
        """Which of them are rows of device time."""
        return self._load("is_device", np.bool_)

    @property
    def position(self) -> Int64Array:
        """Place in ``traceEvents``."""
        return self._load("position", np.int64)

    @property
    def dur_ns(self) -> Int64Array:
        """Durations."""
        return self._load("dur_ns", np.int64)

    @property
    def pid(self) -> Ints:
        """Process ids."""
        return self._load_ints("pid")

    @property
    def tid(self) -> Ints:
        """Thread ids."""
        return self._load_ints("tid")

    @property
    def correlation(self) -> Ints:
        """What links calls and rows of device time."""
        return self._load_ints("correlation")

    @property
    def external_id(self) -> Ints:
        """What links operators and rows of device time."""
        return self._load_ints("external_id")

    @property
    def lanes(self) -> Carried:
        """``device``, ``stream`` of rows of device time and of synchronisation.

        ``stated`` says whether the trace names the device, or the row was given to device 0.
        """
        return self._carried("lanes", ints=("device", "stream", "stated"))

    @property
    def copies(self) -> Carried:
        """``transfer_bytes`` and ``launch_shape`` of rows of device time."""
        return self._carried("copies", ints=_COPY_INTS, texts=("launch_shape",))

    @property
    def waits(self) -> Carried:
        """``wait_on_stream`` and ``wait_on_correlation`` of rows of synchronisation."""
        return self._carried("waits", ints=_WAIT_INTS)

    @property
    def collectives(self) -> Carried:
        """Metadata of collectives, where it stands: on rows of device time and on operators.

        ``named`` says whether the name is a text.
        """
        return self._carried("collectives", ints=(*_COLLECTIVE_INTS, "named"), texts=_COLLECTIVE_TEXTS)

    def without(self, dropped: BoolArray) -> EventRows:
        """The rows that are not ``dropped``."""
        kept = ~dropped
        from_spool = kept
        if self._kept is not None:
            from_spool = self._kept.copy()
            from_spool[self._kept] = kept
        return EventRows(self._spool, self._pools, self._base_ns, from_spool)

    def _load(self, name: str, dtype: type[Scalar]) -> npt.NDArray[Scalar]:
        column = self._spool.load(name, dtype)
        return column if self._kept is None else column[self._kept]

    def _load_ints(self, name: str) -> Ints:
        column = self._spool.load_ints(name)
        return column if self._kept is None else column.take(self._kept)

    def _carried(self, group: str, ints: Sequence[str], texts: Sequence[str] = ()) -> Carried:
        columns: dict[str, Texts | Ints] = {name: self._spool.load_ints(f"{group}.{name}") for name in ints}
        for name in texts:
            columns[name] = self._pools.carried[name].texts(self._spool.load(f"{group}.{name}", np.int32))
        carried = Carried(self._spool.load(group, np.int64), columns)
        return carried if self._kept is None else carried.take(self._kept)


class RowsBuilder:
    """Takes the events of a trace piece by piece, and keeps columns alone.

    Args:
        spool: where they are kept.
    """

    def __init__(self, spool: Spool) -> None:
        self.num_rows = 0
        self._spool = spool
        self._cats = TextPool(canonical_cat)
        self._names = TextPool()
        self._pools = {name: TextPool() for name in (*_COLLECTIVE_TEXTS, "launch_shape")}
        self._faults = [_Fault(what) for what in _FAULTS]

    def add(self, piece: Piece) -> None:
        """Takes a piece; only its columns are kept."""
        listed = piece.events
        complete = np.frombuffer(bytes([type(event) in COMPLETE for event in listed]), dtype=np.bool_)
        place = np.flatnonzero(complete)
        events = listed if place.size == len(listed) else [listed[i] for i in place.tolist()]
        cats = self._cats.encode([event.cat for event in events])
        start_ns, dur_ns, sound = _exact_times(events, place, piece.times)
        is_device, is_sync, left_out = (
            _where(self._cats, cats, which) for which in (DEVICE_CATS, {SYNC_CAT}, _LEFT_OUT_CATS)
        )
        nowhere = is_device & (start_ns == 0) & (dur_ns == 0)
        bad = (sound & (dur_ns < 0), ~sound, sound & nowhere)
        for fault, found in zip(self._faults, bad):
            fault.count(found & ~left_out, is_device, place + piece.first)
        kept = np.flatnonzero(~(left_out | bad[0] | bad[1] | bad[2]))
        if kept.size < len(events):
            events = [events[i] for i in kept.tolist()]
            place, cats, start_ns, dur_ns = place[kept], cats[kept], start_ns[kept], dur_ns[kept]
            is_device, is_sync = is_device[kept], is_sync[kept]
        args = [event.args or NO_ARGS for event in events]
        names = self._names.encode([event.name for event in events])
        spool = self._spool
        spool.append("position", place + piece.first)
        spool.append("cats", cats)
        spool.append("names", names)
        spool.append("start_ns", start_ns)
        spool.append("dur_ns", dur_ns)
        spool.append("is_device", is_device)
        spool.append_ints("pid", Ints.of([event.pid for event in events]))
        spool.append_ints("tid", _threads(events))
        spool.append_ints("correlation", Ints.of([one.correlation for one in args]).without(UNKNOWN_ID))
        spool.append_ints("external_id", _external_ids(args))
        self._keep_carried("lanes", np.flatnonzero(is_device | is_sync), events, args, _lanes)
        self._keep_carried("copies", np.flatnonzero(is_device), events, args, self._copies)
        self._keep_carried("waits", np.flatnonzero(is_sync), events, args, _waits)
        describing = np.flatnonzero(is_device | _where(self._names, names, {COLLECTIVE_OPERATOR}))
        with_metadata = [row for row in describing.tolist() if args[row].collective is not None]
        self._keep_carried("collectives", np.array(with_metadata, dtype=np.int64), events, args, self._collectives)
        self.num_rows += len(events)

    def finish(self, base_ns: int, path: Path, diagnostics: list[Diagnostic]) -> EventRows:
        """All that was taken, as one.

        Args:
            base_ns: what the times of the trace are relative to.
            path: for messages.
            diagnostics: what was dropped is added here.
        """
        diagnostics += [note for fault in self._faults if (note := fault.diagnostic(path)) is not None]
        return EventRows(self._spool, _Pools(self._cats, self._names, self._pools), base_ns)

    def _keep_carried(
        self,
        group: str,
        rows: Int64Array,
        events: Sequence[Event],
        args: Sequence[Args],
        make: Callable[[Sequence[Event], Sequence[Args]], Mapping[str, Any]],
    ) -> None:
        if not rows.size:
            return
        places = rows.tolist()
        columns = make([events[row] for row in places], [args[row] for row in places])
        self._spool.append(group, rows + self.num_rows)
        for name, column in columns.items():
            if isinstance(column, Ints):
                self._spool.append_ints(f"{group}.{name}", column)
            else:
                self._spool.append(f"{group}.{name}", column)

    def _copies(self, _events: Sequence[Event], args: Sequence[Args]) -> dict[str, Any]:
        return {"launch_shape": self._pools["launch_shape"].encode(_launch_shapes(args)), **_ints(args, _COPY_INTS)}

    def _collectives(self, _events: Sequence[Event], args: Sequence[Args]) -> dict[str, Any]:
        texts = {name: self._pools[name].encode(list(map(attrgetter(name), args))) for name in _COLLECTIVE_TEXTS}
        ints = {name: Ints.of(list(map(attrgetter(name), args))) for name in _COLLECTIVE_INTS}
        named = [int(isinstance(one.collective, str)) for one in args]
        return {**texts, **ints, "named": Ints.of(named)}


def base_time(document: Document, path: Path, diagnostics: list[Diagnostic]) -> int:
    """What the times of a trace are relative to, in nanoseconds; 0 where that is unknown, which is said."""
    base = as_int(document.base_time_ns)
    if base is not None and abs(base) <= MAX_BASE_NS:
        return base
    if document.base_time_ns is not None:
        message = f"{name_of(path)}: baseTimeNanoseconds is no time ({str(document.base_time_ns)[:40]}); taken as 0"
        hint = "the ranks' clocks cannot be told apart from it; nothing within this rank changes"
        diagnostics.append(
            Diagnostic(code="base_time_invalid", level=Level.WARNING, file=name_of(path), message=message, hint=hint)
        )
    return 0


class _Fault:
    """One kind of event that cannot be used."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._num_device = 0
        self._num_host = 0
        self._first: int | None = None

    def count(self, bad: BoolArray, is_device: BoolArray, position: Int64Array) -> None:
        if not bad.any():
            return
        self._num_device += int((bad & is_device).sum())
        self._num_host += int((bad & ~is_device).sum())
        if self._first is None:
            self._first = int(position[bad][0])

    def diagnostic(self, path: Path) -> Diagnostic | None:
        count = self._num_device + self._num_host
        if not count:
            return None
        dropped = f"{self._num_device} device rows and {self._num_host} host events with {self._what} dropped"
        return Diagnostic(
            code="events_dropped",
            level=Level.WARNING,
            file=name_of(path),
            count=count,
            event=self._first,
            message=f"{name_of(path)}: {dropped}",
        )


def _where(pool: TextPool, codes: Any, texts: frozenset[str] | set[str]) -> BoolArray:
    """Where a column holds one of these texts."""
    numbers = [number for text in texts if (number := pool.number(text)) is not None]
    if len(numbers) == 1:
        return np.asarray(codes == numbers[0], dtype=bool)
    return np.isin(codes, numbers)


def _exact_times(
    events: Sequence[Event], place: Int64Array, texts: Callable[[], list[tuple[str, str]]]
) -> tuple[Int64Array, Int64Array, BoolArray]:
    """Start and duration in nanoseconds, relative to the base, and which of them are numbers at all."""
    ts = to_microseconds([event.ts for event in events])
    dur = to_microseconds([event.dur for event in events])
    sound = ~(np.isnan(ts) | np.isnan(dur) | (dur > MAX_DURATION_US))
    ts[~sound] = dur[~sound] = 0.0
    if ts.size and max(np.abs(ts).max(), np.abs(dur).max()) >= FLOAT_EXACT_BELOW_US:
        listed = texts()
        exact = np.zeros((2, ts.size), dtype=np.int64)
        for row in np.flatnonzero(sound).tolist():
            try:
                exact[:, row] = [text_to_ns(number) for number in listed[int(place[row])]]
            except ValueError:
                sound[row] = False
        return exact[0], exact[1], sound
    return floats_to_ns(ts), floats_to_ns(dur), sound


def _lanes(events: Sequence[Event], args: Sequence[Args]) -> dict[str, Ints]:
    """Device and stream. Old traces name them by pid and ``tid: "stream 7"`` alone."""
    named = Ints.of([event.pid if one.device is None else one.device for event, one in zip(events, args)])
    stated = named.present & (np.abs(named.values) <= _MAX_DEVICE)
    everywhere = np.ones(len(events), dtype=bool)
    return {
        # A process drives one device as a rule; `device_unknown` says where a row was given to device 0 for that.
        "device": Ints(np.where(stated, named.values, 0), everywhere),
        "stream": Ints.of(
            [number_in(event.tid) if one.stream is None else one.stream for event, one in zip(events, args)]
        ),
        "stated": Ints(stated.astype(np.int64), everywhere),
    }


def _waits(_events: Sequence[Event], args: Sequence[Args]) -> dict[str, Ints]:
    return _ints(args, _WAIT_INTS)


def _ints(args: Sequence[Args], fields: Sequence[str]) -> dict[str, Ints]:
    """Integer arguments. Kineto writes -1 where it does not know."""
    return {field: Ints.of(list(map(attrgetter(field), args))).without(-1) for field in fields}


def _launch_shapes(args: Sequence[Args]) -> list[str | None]:
    """Grid and block of the rows that have them, each distinct shape written once: ``17x1x1/256x1x1``."""
    shapes: list[Any] = [
        (*one.grid, "/", *one.block) if type(one.grid) is list and type(one.block) is list else None for one in args
    ]
    try:
        distinct = dict.fromkeys(shapes)
    except TypeError:  # something else than numbers in the place of a size
        shapes = [None if shape is None else tuple(map(str, shape)) for shape in shapes]
        distinct = dict.fromkeys(shapes)
    texts = {shape: None if shape is None else _shape_text(shape) for shape in distinct}
    return [texts[shape] for shape in shapes]


def _shape_text(shape: tuple[Any, ...]) -> str:
    return "x".join(map(str, shape)).replace("x/x", "/")


def _threads(events: Sequence[Event]) -> Ints:
    tids = Ints.of([event.tid for event in events])
    return tids if tids.present.all() else Ints.of([number_in(event.tid) for event in events])


def _external_ids(args: Sequence[Args]) -> Ints:
    """The id under today's spelling, or else under the old one."""
    ids = Ints.of([one.external_id for one in args]).without(UNKNOWN_ID)
    without = np.flatnonzero(~ids.present)  # few: those of old traces, and of no operator
    old = [args[row].legacy_external_id if args[row].external_id == UNKNOWN_ID else None for row in without.tolist()]
    if old.count(UNKNOWN_ID) + old.count(None) == len(old):
        return ids
    others = Ints.of(old).without(UNKNOWN_ID)
    values, present = ids.values.copy(), ids.present.copy()
    values[without], present[without] = others.values, others.present
    return Ints(values, present)
