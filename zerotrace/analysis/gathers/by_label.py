"""Gathers by the labels of the capture, and the fetch in which each is needed.

The coordinator fetches a module right before it runs: what the module lacks is submitted on demand, then the stream of
gathers is told to wait for each submission that holds one of its parameters, demanded now or prefetched before. So the
first fetch that waits for a submission is that of the first module that uses one of its parameters. A trace shows the
waits, but not for which submission each is. Demands are waited for in their own fetch; prefetches are made in the
order in which modules run, so that the oldest one that is pending is the next to be waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.fsdp import FsdpSpans
from zerotrace.analysis.gathers.calls import Order
from zerotrace.analysis.gathers.submissions import KINDS, PHASES, Submissions
from zerotrace.analysis.labelled import LabelSpans
from zerotrace.ingest.columns import Texts
from zerotrace.intervals import Int64Array
from zerotrace.labels import GatherKind

_DEMAND, _PREFETCH = KINDS.index(GatherKind.DEMAND), KINDS.index(GatherKind.PREFETCH)


def labelled_submissions(gathers: LabelSpans, fetches: LabelSpans, order: Order) -> Submissions:
    """What ``gather`` labels say, and when the parameters are needed.

    Args:
        gathers: labels of gathers, sorted by start.
        fetches: labels of the coordinator's fetches, sorted by start.
        order: calls for the device.
    """
    labels = gathers.labels
    kind = _kinds(gathers)
    parameters = [label.params for label in labels]
    num_params = [label.num_params for label in labels]
    fetch = np.where(kind == _DEMAND, fetches.around(gathers.start), ABSENT)
    counts, own_stream = _waits_of_fetches(fetches, gathers, order)
    if counts is not None:
        fetch = _by_waits(kind, gathers.start, fetch, counts, fetches.start)
    for row in np.flatnonzero((kind == _PREFETCH) & (fetch == ABSENT)).tolist():
        if len(parameters[row]) == num_params[row]:
            fetch[row] = _next_owner(parameters[row], fetches, int(gathers.start[row]))
    # A demand outside of the coordinator's fetches is over when its call is.
    ready = np.where(kind == _DEMAND, gathers.end, ABSENT)
    ready = np.where(fetch != ABSENT, np.append(fetches.end, ABSENT)[fetch], ready)
    return _submissions(gathers, ready, order.without(own_stream), [_module(fetches, row) for row in fetch.tolist()])


def fsdp_submissions(gathers: LabelSpans, fsdp: FsdpSpans, order: Order) -> Submissions:
    """What labels of FSDP2's gathers say, and when the parameters are needed: behind the next fetch of their group.

    Args:
        gathers: labels of gathers, or FSDP2's annotations read as such, sorted by start.
        fsdp: FSDP2's annotations.
        order: calls for the device.
    """
    groups = fsdp.groups_of(gathers)
    fetch = fsdp.fetches_of(groups, gathers.start)
    ready = np.append(fsdp.fetches.end, ABSENT)[fetch]
    return _submissions(gathers, ready, order, groups)


def _submissions(gathers: LabelSpans, ready: Int64Array, order: Order, needed_by: Sequence[str | None]) -> Submissions:
    """What labels say.

    Args:
        gathers: labels of gathers, sorted by start.
        ready: when the host had the device wait for each; absent where unknown.
        order: calls for the device.
        needed_by: the module that needs each first.
    """
    labels = gathers.labels
    return Submissions(
        submit=gathers.start,
        kind=_kinds(gathers),
        phase=_numbers([None if label.phase is None else PHASES.index(label.phase) for label in labels]),
        module=Texts.of([label.module for label in labels]),
        parameters=Texts.of([",".join(label.params) or None for label in labels]),
        num_params=_numbers([label.num_params for label in labels]),
        elements=_numbers([label.elements for label in labels]),
        bytes=_numbers([label.bytes for label in labels]),
        submission=_numbers([label.submission for label in labels]),
        inferred=np.zeros(len(labels), dtype=bool),
        need=np.where(ready != ABSENT, order.first_start_after(ready), ABSENT),
        need_module=Texts.of(needed_by),
    )


def _kinds(gathers: LabelSpans) -> Int64Array:
    return _numbers([None if label.kind is None else KINDS.index(label.kind) for label in gathers.labels])


def _module(fetches: LabelSpans, fetch: int) -> str | None:
    return fetches.labels[fetch].module if fetch != ABSENT else None


def _waits_of_fetches(fetches: LabelSpans, gathers: LabelSpans, order: Order) -> tuple[Int64Array | None, int | None]:
    """How many submissions each fetch waits for; ``None`` where the trace does not show it. And on which stream.

    A fetch ends with one wait of the compute stream for the stream of gathers. Where the two are one stream, that is
    the last of its waits, and the stream is ``None``.
    """
    counts = {
        stream: np.bincount(fetch[(fetch != ABSENT) & (gathers.around(times) == ABSENT)], minlength=len(fetches))
        for stream, times in order.waits.items()
        for fetch in [fetches.around(times)]
    }
    main = counts.pop(order.main, None)
    stream = max(counts, key=lambda stream: int(counts[stream].sum()), default=None)
    if stream is not None and counts[stream].any():
        return counts[stream], stream
    if main is None or not main.any():
        return None, None
    return np.maximum(main - 1, 0), None


def _by_waits(
    kind: Int64Array, submit: Int64Array, fetch: Int64Array, counts: Int64Array, begin: Int64Array
) -> Int64Array:
    """Gives each prefetch the fetch that waits for it; gives nothing where the counts do not fit."""
    left = counts - np.bincount(fetch[fetch != ABSENT], minlength=counts.size)
    prefetches = np.flatnonzero(kind == _PREFETCH)
    if (left < 0).any() or left.sum() > prefetches.size:
        return fetch
    waiting = np.repeat(np.arange(counts.size), left)
    waited = prefetches[: waiting.size]
    if (submit[waited] >= begin[waiting]).any():
        return fetch
    assigned: Int64Array = fetch.copy()
    assigned[waited] = waiting
    return assigned


def _next_owner(parameters: Sequence[str], fetches: LabelSpans, submit: int) -> int:
    """The next fetch of a module that owns one of the parameters."""
    owners = {name.rpartition(".")[0] for name in parameters}
    first = int(np.searchsorted(fetches.start, submit))
    return next((i for i in range(first, len(fetches)) if fetches.labels[i].module in owners), ABSENT)


def _numbers(values: Sequence[int | None]) -> Int64Array:
    return np.array([ABSENT if value is None else value for value in values], dtype=np.int64)
