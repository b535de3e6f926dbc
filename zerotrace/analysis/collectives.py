"""The rows of communication of a run: what they are called, who takes part, how much they move.

Which of them are one collective is told by :mod:`zerotrace.analysis.matching`, who waits for whom by
:mod:`zerotrace.analysis.arrivals`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import asdict

from zerotrace.analysis.grouping import combined
from zerotrace.analysis.labelled import LabelSpans, tell
from zerotrace.analysis.launches import Launches
from zerotrace.ingest.classify import COPY_CATS
from zerotrace.ingest.columns import Texts
from zerotrace.ingest.steps import steps_at
from zerotrace.intervals import Int64Array, Intervals
from zerotrace.model import Category, StepWindow
from zerotrace.tables import BoolArray, codes_and_names, equals, ints, optional_ints

#: Absent integers inside numpy columns.
ABSENT = -1

_KIND_IN_KERNEL_NAME = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|broadcast|send_?recv|reduce|gather|scatter)", re.IGNORECASE
)


class CollectiveRows(Struct, frozen=True, eq=False):
    """Rows of communication, of one rank or of many. All columns have one entry a row.

    Attributes:
        rank: global rank.
        device: device index on the host; absent in host mode.
        event: position in the rank's trace.
        step: step in which the row was launched; :data:`zerotrace.ingest.steps.NO_STEP` outside of all.
        start: start on the rank's own clock, nanoseconds.
        end: end.
        name: collective, or what the kernel's name says of it.
        group: member ranks and group name, as one text; none where the trace does not say.
        dtype: element type; none where unknown.
        size: members of the group; absent where unknown.
        seq: sequence number in the group; absent where the trace has none.
        in_elements: elements put in.
        out_elements: elements got out.
        src: sender of a point-to-point transfer.
        dst: its receiver.
        phase: forward, backward or step; none where no label says.
        purpose: what the label says in which it was launched, see :class:`zerotrace.analysis.labelled.Told`.
    """

    rank: Int64Array
    device: Int64Array
    event: Int64Array
    step: Int64Array
    start: Int64Array
    end: Int64Array
    name: Texts
    group: Texts
    dtype: Texts
    size: Int64Array
    seq: Int64Array
    in_elements: Int64Array
    out_elements: Int64Array
    src: Int64Array
    dst: Int64Array
    phase: Texts
    purpose: Texts

    def __len__(self) -> int:
        """Number of rows."""
        return int(self.rank.size)

    def take(self, rows: Int64Array | BoolArray) -> CollectiveRows:
        """The columns at ``rows``."""
        taken: dict[str, Any] = {
            name: values.take(rows) if isinstance(values, Texts) else values[rows]
            for name, values in asdict(self).items()
        }
        return CollectiveRows(**taken)

    @classmethod
    def concatenate(cls, parts: Sequence[CollectiveRows]) -> CollectiveRows:
        """The rows of several ranks as one."""
        columns: dict[str, Any] = {}
        for name in cls.__struct_fields__:
            pieces = [getattr(part, name) for part in parts]
            are_texts = isinstance(pieces[0], Texts)
            columns[name] = Texts.concatenate(pieces) if are_texts else np.concatenate(pieces)
        return cls(**columns)


def comm_rows(events: pa.Table) -> Int64Array:
    """Rows of an event table that stand for a collective each, in the order of their start.

    One operator may launch a kernel and copies around it, which all carry its metadata: the kernel alone stands for
    the collective. Where it launches nothing but copies (the copy engines move the data), the first of them does. The
    other copies are communication too, but no collectives of their own.
    """
    return _comm_spans(events)[0]


def _comm_spans(events: pa.Table) -> tuple[Int64Array, Int64Array]:
    """The rows of :func:`comm_rows`, and when each collective is over: with the last of its copies."""
    start = ints(events, "start_ns")
    rows = np.flatnonzero(equals(events, "category", Category.COMM.value))
    rows = rows[np.argsort(start[rows], kind="stable")]
    end = start[rows] + ints(events, "dur_ns")[rows]
    codes, cats = codes_and_names(events, "cat")
    is_copy = np.isin(codes[rows], [code for code, cat in enumerate(cats) if cat in COPY_CATS])
    if not is_copy.any():
        return rows, end
    external_id, known = optional_ints(events, "external_id")
    known = known[rows] & (external_id[rows] > 0)  # 0 is what a row has that no operator launched
    # One operator calls one collective on one device; where ids are used twice, what the rows say of themselves counts.
    names, _ = codes_and_names(events, "collective")
    operator = combined(external_id[rows], ints(events, "device")[rows], ints(events, "seq")[rows], names[rows])
    led = is_copy & known & np.isin(operator, operator[~is_copy & known])
    copies = np.flatnonzero(is_copy & known & ~led)
    _, first, which = np.unique(operator[copies], return_index=True, return_inverse=True)
    np.maximum.at(end, copies[first][which.ravel()], end[copies])
    stands = ~led
    stands[copies] = False
    stands[copies[first]] = True
    return rows[stands], end[stands]


def collective_rows(
    rank: int, events: pa.Table, windows: Sequence[StepWindow], launches: Launches, labels: LabelSpans
) -> CollectiveRows:
    """The rows of communication of one rank, in the order of their start.

    Args:
        rank: global rank.
        events: rows of :data:`zerotrace.schema.EVENTS`.
        windows: the rank's step windows.
        launches: launches of ``events``.
        labels: labels of ``events``.
    """
    rows, end = _comm_spans(events)
    start = ints(events, "start_ns")[rows]
    told = tell(rows, launches, labels)
    return CollectiveRows(
        rank=np.full(rows.size, rank, dtype=np.int64),
        device=_or_absent(events, "device", rows),
        event=ints(events, "event")[rows],
        step=steps_at(tuple(windows), launches.start[rows]),
        start=start,
        end=end,
        name=_texts(events, "collective", rows).or_else(_texts(events, "name", rows).map(_kind_of)),
        group=_groups(_texts(events, "group_ranks", rows), _texts(events, "group_name", rows)),
        dtype=_texts(events, "dtype", rows),
        phase=told.phase,
        purpose=told.purpose,
        **{ours: _or_absent(events, theirs, rows) for ours, theirs in _INTEGERS.items()},
    )


def exposed_part(rows: CollectiveRows, exposed: Mapping[int | None, Intervals]) -> Int64Array:
    """Of each row, how long no compute runs on its device. Shape ``(num_rows,)``, nanoseconds.

    Args:
        rows: rows of one rank.
        exposed: exposed communication of each of its devices.
    """
    found = np.zeros(len(rows), dtype=np.int64)
    for device, when in exposed.items():
        here = rows.device == (ABSENT if device is None else device)
        found[here] = when.length_before(rows.end[here]) - when.length_before(rows.start[here])
    return found


def _kind_of(text: str) -> str:
    """What the name of a row without metadata says: ``allgather`` of an NCCL kernel, ``all_gather`` of gloo's."""
    if text.startswith("gloo:"):
        return text.removeprefix("gloo:")
    kernel = text.partition("(")[0]
    found = _KIND_IN_KERNEL_NAME.search(kernel)
    return found[1].lower().replace("_", "") if found else kernel


def _groups(members: Texts, names: Texts) -> Texts:
    """Member ranks and group name as one text; none where both are unknown."""
    width = len(names.distinct) + 1
    pairs, which = np.unique((members.codes.astype(np.int64) + 1) * width + names.codes + 1, return_inverse=True)
    texts = []
    for member, name in (divmod(pair, width) for pair in pairs.tolist()):
        known = ([members.distinct[member - 1]] if member else []) + ([names.distinct[name - 1]] if name else [])
        texts.append(" ".join(known) or None)
    return Texts.of(texts).take(which.ravel())


def _texts(table: pa.Table, column: str, rows: Int64Array) -> Texts:
    codes, names = codes_and_names(table, column)
    return Texts(codes[rows].astype(np.int32), names).compact()


def _or_absent(table: pa.Table, column: str, rows: Int64Array) -> Int64Array:
    values, present = optional_ints(table, column)
    return np.where(present[rows], values[rows], ABSENT)


_INTEGERS = {
    "size": "group_size",
    "seq": "seq",
    "in_elements": "in_elements",
    "out_elements": "out_elements",
    "src": "src_rank",
    "dst": "dst_rank",
}
