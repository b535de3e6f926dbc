"""The tracks of one rank, from its rows of the tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.launches import on_device
from zerotrace.analysis.partition import DeviceTime, device_times
from zerotrace.export.lanes import lanes
from zerotrace.export.packets import Argument, CounterUnit, PacketSequence
from zerotrace.ingest.classify import SYNC_CAT
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import STEP_ALL, Category, Owner, StepWindow
from zerotrace.tables import codes_and_names, equals, ints, optional_ints

#: The columns of ``EVENTS`` that tracks are made from.
EVENT_COLUMNS = ("event", "cat", "name", "category", "start_ns", "dur_ns", "device", "stream", "tid")

#: Of ``COLLECTIVES``: what goes on its slice, and what else is needed.
COLLECTIVE_ARGUMENTS = (
    "name", "group", "group_size", "seq", "dtype", "size_bytes", "phase", "wait_ns", "skew_ns", "transfer_ns",
    "last_rank", "algbw_gbps", "busbw_gbps", "gather",
)  # fmt: skip
COLLECTIVE_COLUMNS = ("collective", "rank", "event", "device", "start_ns", "end_ns", *COLLECTIVE_ARGUMENTS)

#: Of ``GATHERS``, what goes on its slice.
GATHER_ARGUMENTS = (
    "gather", "step", "phase", "module", "num_params", "parameters", "bytes", "need_module", "slack_ns", "gather_ns",
    "hidden_ns", "exposed_ns", "blocking_ns", "transfer_ns", "wait_ns", "late", "cold", "inferred",
)  # fmt: skip
GATHER_COLUMNS = ("rank", "kind", "device", "start_ns", "end_ns", *GATHER_ARGUMENTS)

# The order of a rank's tracks, from the top down.
_STEPS, _TIME, _EXPOSED, _WAITING, _SO_FAR, _STREAM, _SYNC, _GATHERS, _MEMORY, _THREAD = range(0, 1000, 100)

_MIRRORED_CAT = "gpu_user_annotation"
_HOST_CATEGORY = "host"
_FIRST_PID = 1  # 0 is the kernel's idle process, to Perfetto
_MAX_TID = 1 << 31
_MANY_AT_ONCE = 64  # collectives that run at once on a device: more are not looked through for the one waited for

Row = tuple[int, int, int, Mapping[str, Argument], Sequence[int]]
_NOTHING: Mapping[str, Argument] = {}


class RankTables(Struct, frozen=True, kw_only=True):
    """What is known of one rank, all of it on the rank's own clock."""

    rank: int
    labels: Sequence[str]
    """What it runs on, in a few words each."""
    windows: Sequence[StepWindow]
    events: pa.Table
    """With the columns :data:`EVENT_COLUMNS`."""
    collectives: Sequence[Mapping[str, Any]]
    """Rows with the columns :data:`COLLECTIVE_COLUMNS`."""
    by_launch: bool
    """Whether the figures of steps are of what they launched; tracks are cut at windows all the same."""
    knows_waiting: bool
    """Whether collectives were matched over the ranks."""
    gathers: Sequence[Mapping[str, Any]]
    """Rows with the columns :data:`GATHER_COLUMNS`."""
    memory: pa.Table | None
    """Rows of ``MEMORY``."""


class RankTracks:
    """Writes the tracks of one rank."""

    def __init__(self, sequence: PacketSequence, tables: RankTables, shift_ns: int) -> None:
        """Begins the process of a rank.

        Args:
            sequence: where its packets go.
            tables: what is known of it.
            shift_ns: what is taken from every time.
        """
        self._out = sequence
        self._tables = tables
        self._shift = shift_ns
        self._pid = _FIRST_PID + tables.rank
        self._process = sequence.process(self._pid, f"rank {tables.rank}", tables.labels, tables.rank)
        self._times = device_times(tables.events)
        self._several = len(self._times) > 1

    def write(self, *, host: bool) -> None:
        """All tracks of the rank.

        Args:
            host: whether threads of the host are written, too.
        """
        self._steps()
        for time in self._times:
            self._device(time)
        self._gathers()
        self._events(host=host)
        self._memory()

    # ------------------------------------------------------------------ what the partition says

    def _steps(self) -> None:
        windows = sorted(self._tables.windows, key=lambda w: (w.start_ns, w.end_ns))
        names = ["all" if w.step == STEP_ALL else f"step {w.step}" for w in windows]
        arguments: list[Mapping[str, Argument]] = [{"step": w.step} for w in windows]
        starts, ends = (np.array(side, dtype=np.int64) for side in zip(*((w.start_ns, w.end_ns) for w in windows)))
        self._slices("steps", _STEPS, "step", starts, ends, names, arguments)

    def _device(self, time: DeviceTime) -> None:
        prefix = self._prefix(time.device)
        states = {
            "compute": time.compute - time.comm,
            "compute, hiding communication": time.compute & time.comm,
            "exposed communication": time.exposed,
            "copy": time.copy - (time.compute | time.comm),
        }
        whole = Intervals.union([w.start_ns for w in self._tables.windows], [w.end_ns for w in self._tables.windows])
        states["idle"] = whole - time.busy
        self._in_windows(
            f"{prefix}device time" if time.device is not None else "host time",
            _TIME, "time", states, "Each instant of a step has one state, as in the partition of steps.",
        )  # fmt: skip
        self._in_windows(
            f"{prefix}exposed communication", _EXPOSED, "exposed", {"exposed": time.exposed},
            "Communication with no compute beside it." + self._adds_up_to("exposed_ns"),
        )  # fmt: skip
        if self._tables.knows_waiting:
            self._waiting(time, prefix)
        self._exposed_so_far(time, prefix)

    def _in_windows(
        self, name: str, order: int, category: str, states: Mapping[str, Intervals], description: str
    ) -> None:
        """Intervals cut at the borders of the step windows; what lies outside of all of them has no step."""
        starts, ends, names, arguments = [], [], [], []
        for state, found in states.items():
            for step, part in self._cut(found):
                starts.append(part.starts)
                ends.append(part.ends)
                names += [state] * len(part)
                arguments += [{} if step is None else {"step": step}] * len(part)
        self._slices(name, order, category, _joined(starts), _joined(ends), names, arguments, description)

    def _cut(self, found: Intervals) -> Iterator[tuple[int | None, Intervals]]:
        windows = self._tables.windows
        for window in windows:
            yield window.step, found.clip(window.start_ns, window.end_ns)
        yield None, found - Intervals.union([w.start_ns for w in windows], [w.end_ns for w in windows])

    def _waiting(self, time: DeviceTime, prefix: str) -> None:
        """Exposed communication before the last member of its collective has come."""
        rows = [row for row in self._tables.collectives if row["device"] == time.device]
        start = np.array([row["start_ns"] for row in rows], dtype=np.int64)
        end = np.array([row["end_ns"] for row in rows], dtype=np.int64)
        arrived = start + np.array([max(row["wait_ns"] or 0, 0) for row in rows], dtype=np.int64)
        waiting = time.exposed - Intervals.union(arrived, end)
        waiting &= Intervals.union(start, end)
        starts, ends, names, arguments = [], [], [], []
        for step, part in self._cut(waiting):
            starts.append(part.starts)
            ends.append(part.ends)
            for late in _awaited(rows, start, arrived, part.starts):
                names.append("waiting" if late is None else f"waiting for rank {late}")
                arguments.append({} if step is None else {"step": step})
        self._slices(
            f"{prefix}waiting for a late rank", _WAITING, "wait", _joined(starts), _joined(ends), names, arguments,
            "Exposed communication before the last rank has come." + self._adds_up_to("exposed_wait_ns"),
        )  # fmt: skip

    def _exposed_so_far(self, time: DeviceTime, prefix: str) -> None:
        track = self._out.counter_track(
            self._process, f"{prefix}exposed so far in the step", _SO_FAR, CounterUnit.NS,
            "Exposed communication since the step began: at its end, exposed_ns.",
        )  # fmt: skip
        values: list[tuple[int, int]] = []
        for window in sorted(self._tables.windows, key=lambda w: w.start_ns):
            part = time.exposed.clip(window.start_ns, window.end_ns)
            values.append((window.start_ns - self._shift, 0))
            before = 0
            for start, end in zip(part.starts.tolist(), part.ends.tolist()):
                values.append((start - self._shift, before))
                before += end - start
                values.append((end - self._shift, before))
            values.append((window.end_ns - self._shift, before))
        self._out.counter(track, values)

    # ------------------------------------------------------------------ what the traces say

    def _events(self, *, host: bool) -> None:
        """Every row of the event table on the track of its stream or thread."""
        events = self._tables.events
        here = on_device(events)
        mirrored, sync = equals(events, "cat", _MIRRORED_CAT), equals(events, "cat", SYNC_CAT)
        device, _ = optional_ints(events, "device")
        stream, has_stream = optional_ints(events, "stream")
        tid, has_tid = optional_ints(events, "tid")
        told = _Told.of(self._tables.collectives)
        for which, order in ((here, _STREAM), (sync & ~here, _SYNC)):
            for index, number, known in _distinct(which, device, stream, has_stream):
                rows = np.flatnonzero(which & (device == index) & (stream == number) & (has_stream == known))
                name = f"{self._prefix(index)}stream {number if known else 'unknown'}"
                if which is here:
                    self._rows(rows, f"{name}: {self._mostly(rows)}", order, told, nests=False)
                else:
                    self._rows(rows, f"{name}: synchronisation", order, told, nests=True)
        for which, noun in ((mirrored & ~here & ~sync, "annotations of stream"), (~here & ~sync & ~mirrored, "thread")):
            if noun == "thread" and not host and bool(here.any()):
                continue
            for _, number, known in _distinct(which, np.zeros_like(tid), tid, has_tid):
                rows = np.flatnonzero(which & (tid == number) & (has_tid == known))
                if noun == "thread":
                    self._rows(rows, number if known else "thread unknown", _THREAD, told, nests=True)
                else:
                    self._rows(rows, f"{noun} {number if known else 'unknown'}", _SYNC, told, nests=True)

    def _rows(self, rows: Int64Array, name: str | int, order: int, told: _Told, *, nests: bool) -> None:
        """Rows of the event table on one track, and on further ones of its name where they would cross.

        A number for a name is that of a thread.
        """
        events = self._tables.events
        start = ints(events, "start_ns")[rows] - self._shift
        end = start + np.maximum(ints(events, "dur_ns")[rows], 0)
        event = ints(events, "event")[rows]
        codes, texts = codes_and_names(events, "name")
        used, inverse = np.unique(codes[rows], return_inverse=True)
        numbers = np.array(self._out.names([texts[code] if code >= 0 else "" for code in used.tolist()]))[inverse]
        kinds = self._kinds(rows)
        main: int | None = None
        for lane in lanes(start, end, nests=nests):
            if not isinstance(name, int):
                track = self._out.track(self._process, name, order)
            elif main is None and 0 < name < _MAX_TID:
                track = main = self._out.thread(self._process, self._pid, name, f"thread {name}", order)
            else:
                parent = self._process if main is None else main
                track = self._out.track(parent, f"thread {name}" + (", crossing" if main is not None else ""), order)
            columns = (start, end, numbers, event)
            self._out.slices(
                track,
                [kinds[row] for row in lane.tolist()],
                (
                    (a, b, number, told.arguments.get(at, _NOTHING), told.flows.get(at, ()))
                    for a, b, number, at in zip(*(column[lane].tolist() for column in columns))
                ),
            )

    def _kinds(self, rows: Int64Array) -> list[str]:
        """The category of each row: what its time counts as, else Kineto's."""
        category, categories = codes_and_names(self._tables.events, "category")
        cat, cats = codes_and_names(self._tables.events, "cat")
        return [
            categories[ours] if ours >= 0 else cats[theirs] if theirs >= 0 else _HOST_CATEGORY
            for ours, theirs in zip(category[rows].tolist(), cat[rows].tolist())
        ]

    def _mostly(self, rows: Int64Array) -> str:
        """What runs on a stream for most of its time."""
        events = self._tables.events
        duration = ints(events, "dur_ns")[rows]
        times = {c.value: int(duration[equals(events, "category", c.value)[rows]].sum()) for c in Category}
        return max(times, key=lambda word: times[word])

    # ------------------------------------------------------------------ gathers and memory

    def _gathers(self) -> None:
        by_kind: dict[str, list[Mapping[str, Any]]] = {}
        for row in self._tables.gathers:
            if row["start_ns"] is not None and row["end_ns"] is not None:
                by_kind.setdefault(row["kind"] or "unknown", []).append(row)
        for kind, rows in sorted(by_kind.items()):
            starts, ends = (np.array([row[side] for row in rows], dtype=np.int64) for side in ("start_ns", "end_ns"))
            names = [kind if row["module"] is None else f"{kind} {row['module'] or 'root module'}" for row in rows]
            arguments = [_known(row, GATHER_ARGUMENTS) for row in rows]
            self._slices(f"gathers: {kind}", _GATHERS, "gather", starts, ends, names, arguments)

    def _memory(self) -> None:
        memory = self._tables.memory
        if memory is None or not memory.num_rows:
            return
        time, device = ints(memory, "time_ns") - self._shift, ints(memory, "device")
        for index in np.unique(device).tolist():
            here = device == index
            prefix = f"device {index} " if len(np.unique(device)) > 1 else ""
            for place, word in enumerate(("allocated", "reserved", *(owner.value for owner in Owner))):
                values = ints(memory, f"{word}_bytes")[here]
                # The last of several at one instant counts, and only where it is another one than before.
                at = time[here]
                last = np.append(at[1:] > at[:-1], True)
                at, values = at[last], values[last]
                fresh = np.append(True, values[1:] != values[:-1])
                fresh[-1:] = True
                if not values.any():
                    continue
                track = self._out.counter_track(
                    self._process, f"{prefix}memory: {word}", _MEMORY + place, CounterUnit.BYTES,
                    "Bytes over the memory window of the capture, which is another step than the profiled ones.",
                )  # fmt: skip
                self._out.counter(track, zip(at[fresh].tolist(), values[fresh].tolist()))

    # ------------------------------------------------------------------ common

    def _adds_up_to(self, figure: str) -> str:
        if self._tables.by_launch:
            return f" What lies in each step's window; its {figure} is of what it launched."
        return f" The slices of a step add up to its {figure}."

    def _prefix(self, device: int | None) -> str:
        return f"device {device} " if self._several and device is not None else ""

    def _slices(
        self,
        name: str,
        order: int,
        category: str,
        starts: Int64Array,
        ends: Int64Array,
        names: Sequence[str],
        arguments: Sequence[Mapping[str, Argument]],
        description: str | None = None,
    ) -> None:
        """Slices that follow each other on a track, and on further ones of its name where they would overlap."""
        if not len(starts):
            return
        numbers = self._out.names(names)
        starts, ends = starts - self._shift, ends - self._shift
        for lane in lanes(starts, ends, nests=False):
            track = self._out.track(self._process, name, order, description)
            self._out.slices(
                track,
                [category] * len(lane),
                (
                    (a, b, numbers[row], arguments[row], ())
                    for row, a, b in zip(lane.tolist(), starts[lane].tolist(), ends[lane].tolist())
                ),
            )


class _Told(Struct, frozen=True):
    """What the collectives of a rank say of its events, by the number of the event."""

    arguments: Mapping[int, Mapping[str, Argument]]
    flows: Mapping[int, Sequence[int]]
    """One flow a matched collective, which passes through it on every member."""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> _Told:
        return cls(
            {row["event"]: _known(row, COLLECTIVE_ARGUMENTS, name="collective") for row in rows},
            {row["event"]: (row["collective"] + 1,) for row in rows if row["collective"] is not None},
        )


def _known(row: Mapping[str, Any], columns: Sequence[str], **renamed: str) -> dict[str, Argument]:
    return {renamed.get(column, column): row[column] for column in columns if row[column] is not None}


def _awaited(
    rows: Sequence[Mapping[str, Any]], start: Int64Array, arrived: Int64Array, instants: Int64Array
) -> list[int | None]:
    """Who is last at the collective that is waited for at each instant, that which began latest if there are several.

    Args:
        rows: of ``COLLECTIVES``, by start.
        start: of each row, shape ``(n,)``.
        arrived: when its last member had come.
        instants: shape ``(m,)``.
    """
    found: list[int | None] = []
    for instant, begun in zip(instants.tolist(), np.searchsorted(start, instants, side="right").tolist()):
        recent = range(begun - 1, max(begun - 1 - _MANY_AT_ONCE, -1), -1)
        found.append(next((rows[row]["last_rank"] for row in recent if arrived[row] > instant), None))
    return found


def _joined(parts: Sequence[Int64Array]) -> Int64Array:
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _distinct(which: Any, first: Int64Array, second: Int64Array, known: Any) -> list[tuple[int, int, bool]]:
    """The distinct pairs among the chosen rows, and whether the second of each is known."""
    rows = np.flatnonzero(which)
    return sorted(set(zip(first[rows].tolist(), second[rows].tolist(), known[rows].tolist())))
