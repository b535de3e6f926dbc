"""Every interval of the timeline, nanosecond-exact, in as few bytes as a page can read at once.

Layout: one binary blob, compressed as a whole. For each *group* (rank and device; rank alone in host mode) the
rows of device time are sorted by start, longest first, and written column by column:

========== ===== ==================================================================================
column     bytes
========== ===== ==================================================================================
start      4     difference to the start before, ns; 0xFFFFFFFF means: next value of ``big_starts``
duration   4     ns; 0xFFFFFFFF means: next value of ``big_durations``
name       4     index into ``names``
lane       2, 4  index into the group's ``lanes`` (streams of a device, threads of a host); 4 bytes where the
                 group has more than 65,536 of them
category   1     index into :data:`~zerotrace.report.rows.CATEGORIES`
collective 4     1 + index into ``collectives``, 0 for none; rows of category comm only
seq        4     1 + sequence number, 0 for none; rows of category comm only
meeting    4     1 + number of the matched collective, 0 for none; rows of category comm only
wait       6     ns until its last member came; rows of category comm only
========== ===== ==================================================================================

What the members of a matched collective share (see :mod:`zerotrace.report.meetings`) follows by its number, 6 bytes a
value. For each rank that has labels, its phases and modules follow in the same way (columns start, duration, name,
kind; see :mod:`zerotrace.report.bands`).

Numbers wider than a byte are written as byte planes (all lowest bytes, then all next ones): the upper planes
are nearly constant, so that gzip takes them for almost nothing. Names and late gathers follow as UTF-8 JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.model import Analysis, Category
from zerotrace.report.bands import BandRows, band_note, rank_bands
from zerotrace.report.blob import Blob, Column
from zerotrace.report.embed import printable
from zerotrace.report.late import LateGathers, late_gathers
from zerotrace.report.meetings import Meetings
from zerotrace.report.rows import CATEGORIES, Collective, Ints, Rows, Vocabulary, rank_rows
from zerotrace.schema import COLLECTIVES, GATHERS
from zerotrace.tables import BoolArray

_ESCAPE = 0xFFFFFFFF
_MAX_EXACT = 1 << 53
_MAX_SHORT_LANES = 1 << 16


class Group(Struct, frozen=True):
    """One timeline of its own: the rows of one rank on one device."""

    rank: int
    device: int | None
    lanes: tuple[int | None, ...]
    """Streams, or threads in host mode; ``None`` where the trace does not say."""
    count: int
    base_ns: int
    """Nanoseconds since the epoch that are zero in this group (see :func:`encode_timeline`)."""
    first_ns: int
    """Start of the first row, from ``base_ns``."""
    big_starts: tuple[int, ...]
    big_durations: tuple[int, ...]
    columns: dict[str, Column]


class Bands(Struct, frozen=True):
    """Phases and modules of one rank, as its host's labels say."""

    rank: int
    count: int
    first_ns: int
    """Start of the first, from the base of the rank; it may lie before that."""
    big_starts: tuple[int, ...]
    big_durations: tuple[int, ...]
    columns: dict[str, Column]


class Window(Struct, frozen=True):
    """A step window, in nanoseconds from the base of its rank."""

    rank: int
    step: int
    start_ns: int
    end_ns: int


class TimelinePayload(Struct, frozen=True):
    """Header and bytes of the timeline."""

    groups: tuple[Group, ...]
    bands: tuple[Bands, ...]
    band_note: str | None
    """Why there are no phases; ``None`` where there are some."""
    windows: tuple[Window, ...]
    collectives: tuple[Collective, ...]
    meetings: dict[str, Column] | None
    """What the members of each matched collective share; ``None`` where no table tells."""
    late: Column
    """Late gathers by rank and device, as JSON."""
    num_late: int | None
    """How many there are; ``None`` where it cannot be told."""
    late_note: str
    """What to say where a rank has none."""
    names: Column
    num_intervals: int
    note: str | None
    data: bytes


def encode_timeline(
    analysis: Analysis, events: Iterable[tuple[int, pa.Table]], tables: Mapping[str, pa.Table] | None = None
) -> TimelinePayload:
    """Encode all rows of device time (host time, in host mode) of a run.

    Times count from the first row or window of the run, on the clock of the first host: each rank's base is moved by
    the offset of its host's clock. Where the clocks of ranks lie so far apart that a double could not hold the
    difference (104 days: one trace without a base time, say) each rank counts from its own first. The note says so.

    Args:
        analysis: the run; only its step windows and clocks are used.
        events: (rank, table in the schema ``EVENTS``), each rank once.
        tables: ``collectives`` and ``gathers``, where the run has them.
    """
    tables = tables or {}
    meetings = Meetings.read(tables.get(COLLECTIVES.name))
    names, collectives = Vocabulary(), Vocabulary()
    rows: list[Rows] = []
    labelled: list[BandRows] = []
    for rank, table in events:
        rows += rank_rows(rank, table, names, collectives)
        labelled += rank_bands(rank, table, names)
    rows.sort(key=lambda group: (group.rank, -1 if group.device is None else group.device))
    bases, note = _time_bases(analysis, rows)
    blob = Blob()
    groups = tuple(_encode_group(group, bases[group.rank], meetings, blob) for group in rows)
    bands = tuple(_encode_bands(found, bases[found.rank], blob) for found in labelled if found.rank in bases)
    late = late_gathers(analysis, tables.get(GATHERS.name), bases, names)
    texts = json.dumps([printable(str(name)) for name in names.values()], ensure_ascii=False)
    return TimelinePayload(
        groups=groups,
        bands=bands,
        band_note=band_note(analysis, labelled),
        windows=tuple(
            Window(w.rank, w.step, w.start_ns - bases[w.rank], w.end_ns - bases[w.rank])
            for w in sorted(analysis.windows, key=lambda w: (w.rank, w.start_ns))
        ),
        collectives=tuple(c for c in collectives.values() if isinstance(c, Collective)),
        meetings={name: blob.append(values, 6) for name, values in meetings.columns.items()} if meetings else None,
        late=blob.append_bytes(_late_json(late)),
        num_late=late.count,
        late_note=late.note,
        names=blob.append_bytes(texts.encode()),
        num_intervals=sum(group.count for group in groups),
        note=note,
        data=blob.getvalue(),
    )


class _Times(Struct, frozen=True):
    """Starts and durations as they are written."""

    first_ns: int
    big_starts: tuple[int, ...]
    big_durations: tuple[int, ...]
    columns: dict[str, Column]


def _encode_times(start: Ints, duration: Ints, base_ns: int, blob: Blob) -> _Times:
    deltas = np.diff(start, prepend=start[:1])
    return _Times(
        first_ns=int(start[0]) - base_ns,
        big_starts=tuple(deltas[deltas >= _ESCAPE].tolist()),
        big_durations=tuple(duration[duration >= _ESCAPE].tolist()),
        columns={
            "start": blob.append(np.minimum(deltas, _ESCAPE), 4),
            "duration": blob.append(np.minimum(duration, _ESCAPE), 4),
        },
    )


def _late_json(late: LateGathers) -> bytes:
    return json.dumps(late.groups, separators=(",", ":")).encode()


def _encode_group(rows: Rows, base_ns: int, meetings: Meetings | None, blob: Blob) -> Group:
    comm = rows.category == CATEGORIES.index(Category.COMM.value)
    times = _encode_times(rows.start, rows.duration, base_ns, blob)
    return Group(
        rank=rows.rank,
        device=rows.device,
        lanes=rows.lanes,
        count=len(rows.start),
        base_ns=base_ns,
        first_ns=times.first_ns,
        big_starts=times.big_starts,
        big_durations=times.big_durations,
        columns={
            **times.columns,
            "name": blob.append(rows.name, 4),
            "lane": blob.append(rows.lane, 2 if len(rows.lanes) <= _MAX_SHORT_LANES else 4),
            "category": blob.append(rows.category, 1),
            "collective": blob.append(rows.collective[comm] + 1, 4),
            "seq": blob.append(rows.seq[comm], 4),
            **_meeting_columns(rows, comm, meetings, blob),
        },
    )


def _meeting_columns(rows: Rows, comm: BoolArray, meetings: Meetings | None, blob: Blob) -> dict[str, Column]:
    if meetings is None:
        return {}
    number, wait = meetings.of_rows(rows.rank, rows.event[comm])
    return {"meeting": blob.append(number + 1, 4), "wait": blob.append(wait, 6)}


def _encode_bands(rows: BandRows, base_ns: int, blob: Blob) -> Bands:
    times = _encode_times(rows.start, rows.duration, base_ns, blob)
    return Bands(
        rank=rows.rank,
        count=len(rows.start),
        first_ns=times.first_ns,
        big_starts=times.big_starts,
        big_durations=times.big_durations,
        columns={**times.columns, "name": blob.append(rows.name, 4), "kind": blob.append(rows.kind, 1)},
    )


def _time_bases(analysis: Analysis, rows: Sequence[Rows]) -> tuple[dict[int, int], str | None]:
    """Zero of each rank's clock on the page, and what to say where they are not the same."""
    spans = [(w.rank, w.start_ns, w.end_ns) for w in analysis.windows]
    spans += [(r.rank, int(r.start[0]), int((r.start + r.duration).max())) for r in rows]
    offset = {rank: analysis.clock.offset_of(rank) if analysis.clock else 0 for rank in {span[0] for span in spans}}
    first: dict[int, int] = {}
    last = 0
    for rank, start, end in spans:
        first[rank] = min(first.get(rank, start), start)
        last = max(last, end - offset[rank])
    if not first:
        return {}, None
    base = min(start - offset[rank] for rank, start in first.items())
    if last - base < _MAX_EXACT:
        note = "Clocks of hosts are aligned here: see Method." if any(offset.values()) else None
        return {rank: base + offset[rank] for rank in first}, note
    return first, "The clocks of the ranks lie more than 100 days apart: each rank starts at its own zero here."
