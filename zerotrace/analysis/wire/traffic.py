"""What each rank sent in each step, by kind and by what ZeRO sent it for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.bandwidth import bytes_moved
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.kinds import kind_of, sent_share
from zerotrace.analysis.wire.roles import roles_of
from zerotrace.ingest.columns import Texts
from zerotrace.ingest.steps import NO_STEP
from zerotrace.intervals import Int64Array
from zerotrace.model import CollectiveKind, WireRole
from zerotrace.schema import WIRE
from zerotrace.tables import float_array, int_array

KINDS = tuple(CollectiveKind)
ROLES = tuple(WireRole)


class RankTraffic(Struct, frozen=True, eq=False):
    """The collectives of ranks in their steps, counted. All columns have one entry a rank, step, kind and role.

    Attributes:
        rank: global rank.
        step: step in which they were launched.
        kind: index into :data:`KINDS`.
        role: index into :data:`ROLES`.
        phase: phase; none where no label says.
        dtype: element type; none where unknown.
        group_size: members of the group; absent where unknown.
        num_calls: collectives.
        elements: elements of S; absent where one of them is unknown.
        size: S, bytes; likewise.
        sent: bytes sent; NaN where one of them is unknown.
        by_label: whether labels told the sizes, since the trace does not.
    """

    rank: Int64Array
    step: Int64Array
    kind: Int64Array
    role: Int64Array
    phase: Texts
    dtype: Texts
    group_size: Int64Array
    num_calls: Int64Array
    elements: Int64Array
    size: Int64Array
    sent: npt.NDArray[np.float64]
    by_label: bool = False


def rank_traffic(rows: CollectiveRows) -> RankTraffic:
    """Counts the collectives of one rank.

    Args:
        rows: rows of communication of one rank, in the order of their start.
    """
    rows = rows.take(rows.step != NO_STEP)
    kinds = [kind_of(name) for name in rows.name.distinct]
    kind = np.array([*map(KINDS.index, kinds), KINDS.index(CollectiveKind.OTHER)])[rows.name.codes]
    gathers = kind == KINDS.index(CollectiveKind.ALL_GATHER)
    elements = np.where(gathers, rows.out_elements, rows.in_elements)
    return add_up(
        RankTraffic(
            rank=rows.rank,
            step=rows.step,
            kind=kind,
            role=roles_of(rows, kind, elements),
            phase=rows.phase,
            dtype=rows.dtype,
            group_size=rows.size,
            num_calls=np.ones(len(rows), dtype=np.int64),
            elements=elements,
            size=(size := bytes_moved(rows)),
            sent=sent_by_ring(kind, rows.size, size),
        )
    )


def add_up(single: RankTraffic) -> RankTraffic:
    """One entry a step, kind, role, phase, element type and group size.

    Args:
        single: of one rank, with several entries of them.
    """
    columns = (single.step, single.kind, single.role, single.phase.codes, single.dtype.codes, single.group_size)
    first, which = _numbered(columns)
    return replace(
        single,
        rank=single.rank[first],
        step=single.step[first],
        kind=single.kind[first],
        role=single.role[first],
        phase=single.phase.take(first),
        dtype=single.dtype.take(first),
        group_size=single.group_size[first],
        num_calls=_sums(single.num_calls, which, first.size),
        elements=_sums(single.elements, which, first.size),
        size=_sums(single.size, which, first.size),
        sent=np.asarray(np.bincount(which, weights=single.sent, minlength=first.size), dtype=np.float64),
    )


def wire_table(traffic: Sequence[RankTraffic]) -> pa.Table:
    """The traffic of all ranks: :data:`zerotrace.schema.WIRE`.

    Args:
        traffic: of each rank, in the order of ranks.
    """

    def ints(name: str) -> Int64Array:
        return np.concatenate([np.asarray(getattr(part, name), dtype=np.int64) for part in traffic])

    texts = {name: Texts.concatenate([getattr(part, name) for part in traffic]) for name in ("phase", "dtype")}
    names = {"kind": (ints("kind"), [kind.value for kind in KINDS]), "role": (ints("role"), [r.value for r in ROLES])}
    sources = {"size_bytes": "size"}
    arrays = []
    for column in WIRE.columns:
        if column.name in names:
            codes, distinct = names[column.name]
            arrays.append(Texts(codes.astype(np.int32), distinct).arrow())
        elif column.name in texts:
            arrays.append(texts[column.name].arrow())
        elif column.name == "sent_bytes":
            arrays.append(float_array(np.concatenate([part.sent for part in traffic])))
        else:
            values = ints(sources.get(column.name, column.name))
            # step −1 is the window of the whole trace
            arrays.append(int_array(values, values != ABSENT if column.nullable else None, column.type))
    return pa.Table.from_arrays(arrays, schema=WIRE.arrow())


def sent_by_ring(kind: Int64Array, group_size: Int64Array, size: Int64Array) -> npt.NDArray[np.float64]:
    """Bytes that each row sends; NaN where they are unknown."""
    sent = np.full(size.size, np.nan)
    for number, members in {*zip(kind.tolist(), group_size.tolist())}:
        # A point-to-point row need not say how many there are in its group.
        share = sent_share(KINDS[number], max(members, 1)) if members != ABSENT or _is_single(KINDS[number]) else None
        if share is not None:
            here = (kind == number) & (group_size == members)
            sent[here] = np.where(size[here] == ABSENT, np.nan, size[here] * share)
    return sent


def _is_single(kind: CollectiveKind) -> bool:
    return kind in (CollectiveKind.SEND, CollectiveKind.RECV)


def _sums(values: Int64Array, which: Int64Array, count: int) -> Int64Array:
    """Sums of the entries of each number; absent where one of them is."""
    total = np.zeros(count, dtype=np.int64)
    np.add.at(total, which, values)
    unknown = np.zeros(count, dtype=bool)
    unknown[which[values == ABSENT]] = True
    return np.where(unknown, ABSENT, total)


def _numbered(columns: Sequence[npt.NDArray[np.signedinteger]]) -> tuple[Int64Array, Int64Array]:
    """Numbers the distinct combinations: a row of each, and the number of each row's."""
    key = np.zeros(columns[0].size, dtype=np.int64)
    for column in columns:
        distinct, codes = np.unique(column, return_inverse=True)
        key = key * max(distinct.size, 1) + codes.ravel()
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    return first, which.ravel()
