"""The annotations that torch's FSDP2 writes into every trace, read as what labels of a capture would say.

Source: ``torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py``, torch 2.6 to 2.13. The parameters of one wrapped
module are a *group*; ``FSDP::all_gather (blocks.3)`` is one submission of it, and ``FSDP::post_backward_reduce
(blocks.3)`` one reduction of its gradients; without a name it is the root's. ``FSDP::pre_forward (blocks.3)`` and
``FSDP::pre_backward (blocks.3)`` come right ahead of the module and end with the compute stream waiting for the group:
they are its fetches.

A submission in ``FSDP::forward_prefetch for blocks.3`` or ``FSDP::backward_prefetch for blocks.3``, in the turn of
another module, is a prefetch. So is one in the ``pre_forward`` of a group's own module: the host comes to it while the
device is still at a module before it, and gathers on a stream that does not wait for that. torch calls it an implicit
prefetch. The root alone has nothing before it. One in the group's own ``pre_backward`` is a demand.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.labelled import LabelSpans
from zerotrace.ingest.classify import ANNOTATION_CATS
from zerotrace.intervals import Int64Array
from zerotrace.labels import GatherKind, Label, LabelEvent, Phase
from zerotrace.tables import codes_and_names, ints

_PREFIX = "FSDP::"
_OF_GROUP = re.compile(r"FSDP::(all_gather|pre_forward|pre_backward|post_backward_reduce)(?: \((.*)\))?", re.DOTALL)
_PREFETCH = re.compile(r"FSDP::(forward|backward)_prefetch for (.*)", re.DOTALL)

_MEANINGS = {
    "all_gather": Label(event=LabelEvent.GATHER),
    "pre_forward": Label(event=LabelEvent.FETCH, phase=Phase.FORWARD),
    "pre_backward": Label(event=LabelEvent.FETCH, phase=Phase.BACKWARD),
    "post_backward_reduce": Label(event=LabelEvent.REDUCE, phase=Phase.BACKWARD),
}


class FsdpSpans(Struct, frozen=True, eq=False):
    """What the annotations of one rank say, as labels.

    Attributes:
        gathers: one a submission; ``module`` is the one in whose turn it was made, none where that is unknown.
        groups: whose parameters each of ``gathers`` has: the name of the wrapped module, ``""`` for the root.
        fetches: one a wait for a group; ``module`` is its wrapped module.
        reductions: one a reduction of a group's gradients; likewise.
    """

    gathers: LabelSpans
    groups: Sequence[str]
    fetches: LabelSpans
    reductions: LabelSpans

    def groups_of(self, labelled: LabelSpans) -> Sequence[str | None]:
        """Whose parameters labelled gathers have: the group of the annotation that each label lies in, or is."""
        inside = self.gathers.around(labelled.start, labelled.pid, labelled.tid)
        return [self.groups[row] if row >= 0 else None for row in inside.tolist()]

    def fetches_of(self, groups: Sequence[str | None], submitted: Int64Array) -> Int64Array:
        """For submissions of groups, the fetch in which each is needed first; -1 where the trace ends before it.

        Args:
            groups: whose parameters they have; ``None`` where unknown.
            submitted: when they were made; shape ``(n,)``.
        """
        fetches: dict[str | None, list[int]] = {}
        for row, label in enumerate(self.fetches.labels):
            fetches.setdefault(label.module, []).append(row)
        needing = np.full(len(groups), -1, dtype=np.int64)
        for row, (group, moment) in enumerate(zip(groups, submitted.tolist())):
            own = fetches.get(group, []) if group is not None else []
            needing[row] = next((fetch for fetch in own if self.fetches.end[fetch] > moment), -1)
        return needing


def is_fsdp_annotation(name: str) -> bool:
    """Whether an event of this name is one of those that are read here."""
    return _parse(name) is not None


def fsdp_spans(events: pa.Table) -> FsdpSpans | None:
    """The annotations of one rank; ``None`` where nothing was gathered by FSDP2.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
    """
    found = _annotations(events)
    all_gathers = found.of(LabelEvent.GATHER)
    is_prefetch = np.array([label.kind is not None for label in all_gathers.labels], dtype=bool)
    gathers, prefetches = (_take(all_gathers, np.flatnonzero(rows)) for rows in (~is_prefetch, is_prefetch))
    if not len(gathers):
        return None
    fetches = found.of(LabelEvent.FETCH)
    ahead = prefetches.around(gathers.start, gathers.pid, gathers.tid).tolist()
    turn = fetches.around(gathers.start, gathers.pid, gathers.tid).tolist()
    groups = [label.module or "" for label in gathers.labels]
    labels = [
        _submission(
            group,
            prefetches.labels[i] if i >= 0 else None,
            fetches.labels[j] if j >= 0 else None,
        )
        for group, i, j in zip(groups, ahead, turn)
    ]
    return FsdpSpans(replace(gathers, labels=labels), groups, fetches, found.of(LabelEvent.REDUCE))


def with_fsdp(labels: LabelSpans, spans: FsdpSpans | None) -> LabelSpans:
    """The labels of a rank with what FSDP2 says by itself, as far as no label says it.

    Args:
        labels: those of the capture, if any.
        spans: what :func:`fsdp_spans` found.
    """
    if spans is None:
        return labels
    own = [
        part
        for event, part in (
            (LabelEvent.GATHER, spans.gathers),
            (LabelEvent.FETCH, spans.fetches),
            (LabelEvent.REDUCE, spans.reductions),
        )
        if not len(labels.of(event))
    ]
    parts = [labels, *own]
    names = ("start", "end", "pid", "tid")
    start, end, pid, tid = (np.concatenate([getattr(part, name) for part in parts]) for name in names)
    listed = [label for part in parts for label in part.labels]
    # Of two that begin at once, the longer one is around the other.
    order = np.lexsort((-end, start))
    return LabelSpans([listed[row] for row in order.tolist()], start[order], end[order], pid[order], tid[order])


def _submission(group: str, prefetch: Label | None, turn: Label | None) -> Label:
    """What a submission is.

    Args:
        group: whose parameters it has.
        prefetch: the annotation of a prefetch around it.
        turn: the fetch around it.
    """
    label = Label(event=LabelEvent.GATHER, module=turn.module if turn is not None else None)
    if prefetch is not None:
        return replace(label, kind=GatherKind.PREFETCH, phase=prefetch.phase)
    if turn is None:
        return label
    is_implicit = turn.phase is Phase.FORWARD and group != ""
    return replace(label, kind=GatherKind.PREFETCH if is_implicit else GatherKind.DEMAND, phase=turn.phase)


def _annotations(events: pa.Table) -> LabelSpans:
    """All of them, sorted by start; that of a prefetch is a gather that has its kind already."""
    codes, names = codes_and_names(events, "name")
    parsed = {code: label for code, name in enumerate(names) if (label := _parse(name)) is not None}
    cats, distinct = codes_and_names(events, "cat")
    chosen = np.zeros(len(names) + 1, dtype=bool)
    chosen[list(parsed)] = True
    on_host = np.array([*(cat in ANNOTATION_CATS for cat in distinct), False])
    rows = np.flatnonzero(chosen[codes] & on_host[cats])
    start, end = ints(events, "start_ns")[rows], (ints(events, "start_ns") + ints(events, "dur_ns"))[rows]
    order = np.lexsort((-end, start))
    rows = rows[order]
    return LabelSpans(
        labels=[parsed[code] for code in codes[rows].tolist()],
        start=start[order],
        end=end[order],
        pid=ints(events, "pid")[rows],
        tid=ints(events, "tid")[rows],
    )


def _parse(name: str) -> Label | None:
    if not name.startswith(_PREFIX):
        return None
    if found := _OF_GROUP.fullmatch(name):
        return replace(_MEANINGS[found[1]], module=found[2] or "")
    if found := _PREFETCH.fullmatch(name):
        kind, phase = GatherKind.PREFETCH, Phase(found[1])
        return Label(event=LabelEvent.GATHER, kind=kind, phase=phase, module=found[2])
    return None


def _take(spans: LabelSpans, rows: Int64Array) -> LabelSpans:
    labels = [spans.labels[row] for row in rows.tolist()]
    return LabelSpans(labels, spans.start[rows], spans.end[rows], spans.pid[rows], spans.tid[rows])
