"""What a rank of a gloo job sent: gloo's annotations have no sizes, and the labels of a capture do.

A label says how many elements are reduced, gathered or broadcast in it, and the operators of ``torch.distributed`` in
it say by which collective.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.kinds import kind_of
from zerotrace.analysis.labelled import LabelSpans
from zerotrace.analysis.wire.roles import role_of_purpose
from zerotrace.analysis.wire.traffic import KINDS, ROLES, RankTraffic, add_up, sent_by_ring
from zerotrace.ingest.columns import Texts
from zerotrace.ingest.steps import NO_STEP, steps_at
from zerotrace.intervals import Int64Array
from zerotrace.labels import LabelEvent
from zerotrace.model import CollectiveKind, StepWindow
from zerotrace.tables import codes_and_names, ints, optional_ints

_OPERATOR = "c10d::"
#: They move nothing of the model.
_NOTHING_MOVED = ("barrier", "monitored_barrier")


class _Moved(Struct, frozen=True):
    """All collectives of one label."""

    label: int
    kind: int
    num_calls: int


def traffic_by_label(
    rank: int, events: pa.Table, windows: Sequence[StepWindow], labels: LabelSpans, world_size: int | None
) -> RankTraffic | None:
    """Counts what labels say that one rank has sent.

    Args:
        rank: global rank.
        events: rows of :data:`zerotrace.schema.EVENTS`, with the host's operators.
        windows: the rank's step windows.
        labels: labels of ``events``.
        world_size: ranks of the job, all of which are taken to take part; ``None`` where that is unknown.

    Returns:
        The traffic; ``None`` where some collective of a step is in no label, or in one that does not tell its size.
    """
    buckets = labels.of(LabelEvent.GATHER, LabelEvent.REDUCE, LabelEvent.POST_STEP_GATHER)
    moved = _moved(events, windows, buckets)
    if not moved or world_size is None:
        return None
    chosen = [buckets.labels[one.label] for one in moved]
    roles = [role_of_purpose((label.kind or label.event).value) for label in chosen]
    if any(role is None or label.elements is None or label.bytes is None for role, label in zip(roles, chosen)):
        return None
    start = buckets.start[[one.label for one in moved]]
    calls = labels.of(LabelEvent.PHASE)
    around = [calls.labels[i].phase if i >= 0 else None for i in calls.around(start).tolist()]
    phases = [label.phase or phase for label, phase in zip(chosen, around)]
    kind, group_size = _column([one.kind for one in moved]), np.full(len(moved), world_size, dtype=np.int64)
    size = _column([label.bytes or 0 for label in chosen])
    return add_up(
        RankTraffic(
            rank=np.full(len(moved), rank, dtype=np.int64),
            step=steps_at(tuple(windows), start),
            kind=kind,
            role=_column([ROLES.index(role) for role in roles if role is not None]),
            phase=Texts.of([phase and phase.value for phase in phases]),
            dtype=Texts.of([None] * len(moved)),
            group_size=group_size,
            num_calls=_column([one.num_calls for one in moved]),
            elements=_column([ABSENT if label.elements is None else label.elements for label in chosen]),
            size=size,
            sent=sent_by_ring(kind, group_size, size),
            by_label=True,
        )
    )


def _moved(events: pa.Table, windows: Sequence[StepWindow], buckets: LabelSpans) -> list[_Moved]:
    """The labels in which collectives were called, each with their kind.

    Empty where one was called outside of all labels, or two kinds of them in one label.
    """
    codes, names = codes_and_names(events, "name")
    called = [name.removeprefix(_OPERATOR).strip("_") if name.startswith(_OPERATOR) else "" for name in names]
    moves = np.array([*(bool(name) and name not in _NOTHING_MOVED for name in called), False])
    rows = np.flatnonzero(moves[codes])
    start = ints(events, "start_ns")[rows]
    inside = steps_at(tuple(windows), start) != NO_STEP
    rows, start = rows[inside], start[inside]
    kinds = np.array([*(KINDS.index(kind_of(name)) for name in called), 0])[codes[rows]]
    pid, tid = (optional_ints(events, name)[0][rows] for name in ("pid", "tid"))
    which = buckets.around(start, pid, tid)
    found = {(label, kind) for label, kind in zip(which.tolist(), kinds.tolist())}
    if (which < 0).any() or KINDS.index(CollectiveKind.OTHER) in kinds or len(found) != np.unique(which).size:
        return []
    counts = np.bincount(which, minlength=len(buckets))
    return [_Moved(label, kind, int(counts[label])) for label, kind in sorted(found)]


def _column(values: Sequence[int]) -> Int64Array:
    return np.array(values, dtype=np.int64)
