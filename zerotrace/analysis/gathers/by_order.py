"""Kinds of all-gathers that no label explains, from the order of the host's calls.

In the step phase it is the refresh of a persisted parameter. Elsewhere, where the trace shows which streams wait, the
coordinator's way of working tells: a demand is submitted and waited for at once, a prefetch stays pending while compute
or the next fetch is launched. Without these waits a gather is a prefetch if compute that was launched after it starts
before its end, a demand if such compute had been launched and started only after it on an idle device, and of unknown
kind otherwise.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.gathers.calls import Order
from zerotrace.analysis.gathers.submissions import KINDS, PHASES, Submissions, no_texts
from zerotrace.intervals import Int64Array
from zerotrace.labels import GatherKind, Phase
from zerotrace.tables import BoolArray

_DEMAND, _PREFETCH, _REFRESH = (KINDS.index(kind) for kind in GatherKind)
_STEP = PHASES.index(Phase.STEP)

_NEVER = np.iinfo(np.int64).max


class GatherRows(Struct, frozen=True, eq=False):
    """All-gathers that no label explains. Columns have one entry each.

    Attributes:
        time: when the call began.
        done: when it ended.
        ended: end of the row on the device.
        phase: index into ``PHASES``; absent where unknown.
        step: the step in which it was called.
        elements: what it puts out; absent where unknown.
        ends_beside: whether compute runs right before its end.
    """

    time: Int64Array
    done: Int64Array
    ended: Int64Array
    phase: Int64Array
    step: Int64Array
    elements: Int64Array
    ends_beside: BoolArray


class Inference(Struct, frozen=True, eq=False):
    """What the order of calls tells of the gathers.

    Attributes:
        kind: index into ``KINDS``; absent where unknown.
        ready: when the host told a stream to wait for the gather; absent where unknown.
        stream: the stream on which gathers are waited for; ``None`` where the trace does not show it.
    """

    kind: Int64Array
    ready: Int64Array
    stream: int | None

    def fetch_order(self, order: Order) -> Order | None:
        """The order of calls with only the waits that fetches make; ``None`` where these are not known."""
        if self.stream is None:
            return None
        waits = {stream: order.waits[stream] for stream in (self.stream, order.main) if stream in order.waits}
        return replace(order.without(self.stream), waits=waits)


def inferred_submissions(gathers: GatherRows, inference: Inference, order: Order) -> Submissions:
    """One submission a gather, without names.

    Args:
        gathers: sorted by time.
        inference: their kinds.
        order: calls for the device.
    """
    count = gathers.time.size
    absent = np.full(count, ABSENT, dtype=np.int64)
    ready = np.where((inference.kind == _DEMAND) & (inference.ready == ABSENT), gathers.done, inference.ready)
    return Submissions(
        submit=gathers.time,
        kind=inference.kind,
        phase=gathers.phase,
        module=no_texts(count),
        parameters=no_texts(count),
        num_params=absent,
        elements=gathers.elements,
        bytes=absent,
        submission=absent,
        inferred=np.ones(count, dtype=bool),
        need=np.where(ready != ABSENT, order.without(inference.stream).first_start_after(ready), ABSENT),
        need_module=no_texts(count),
    )


def infer_kinds(gathers: GatherRows, order: Order, comm_streams: Collection[int]) -> Inference:
    """The kind of each gather.

    Args:
        gathers: sorted by time.
        order: calls for the device.
        comm_streams: streams of the gathers themselves.
    """
    kind = np.where(gathers.phase == _STEP, _REFRESH, ABSENT).astype(np.int64)
    ready = np.full(kind.shape, ABSENT, dtype=np.int64)
    fetched = np.flatnonzero(gathers.phase != _STEP)
    if not fetched.size:
        return Inference(kind, ready, None)
    candidates = [stream for stream in order.waits if stream != order.main and stream not in comm_streams]
    for stream in sorted(candidates, key=lambda stream: -order.waits[stream].size):
        found = _by_waits(gathers.time[fetched], gathers.step[fetched], order.waits[stream], order.without(stream))
        if found is not None:
            kind[fetched], ready[fetched] = found
            return Inference(kind, ready, stream)
    kind[fetched] = _by_device(gathers, fetched, order)
    return Inference(kind, ready, None)


def _by_waits(
    time: Int64Array, step: Int64Array, waits: Int64Array, order: Order
) -> tuple[Int64Array, Int64Array] | None:
    """Kinds and the wait of each gather; ``None`` if these cannot be the waits for gathers."""
    if (np.searchsorted(time, waits) < np.arange(1, waits.size + 1)).any() or not waits.size:
        return None
    fetch_ends = order.waits.get(order.main, np.empty(0, dtype=np.int64))
    following = np.append(waits, _NEVER)[np.searchsorted(waits, time)]
    next_gather = np.append(time[1:], _NEVER)
    between = [np.searchsorted(moments, following) - np.searchsorted(moments, time) for moments in
               (order.launched, fetch_ends)]  # fmt: skip
    at_once = (between[0] == 0) & (between[1] == 0) & (following < next_gather)
    after_fetch = _last_before(fetch_ends, time) > _last_before(order.launched, time)
    # Right behind a fetch a gather is its prefetch, or the demand of the first module in one that launches nothing.
    prefetching = np.isin(step, np.unique(step[~at_once]))
    is_demand = at_once & ~(after_fetch & prefetching)
    ready = np.full(time.shape, ABSENT, dtype=np.int64)
    latest = np.searchsorted(time, waits) - 1
    pending = iter(np.flatnonzero(~is_demand).tolist())
    for wait, last in zip(waits.tolist(), latest.tolist()):
        if is_demand[last] and ready[last] == ABSENT:
            ready[last] = wait
        elif (oldest := next(pending, None)) is not None:
            ready[oldest] = wait
    if ((ready != ABSENT) & (ready < time)).any():
        return None
    return np.where(is_demand, _DEMAND, _PREFETCH), ready


def _last_before(moments: Int64Array, time: Int64Array) -> Int64Array:
    return np.insert(moments, 0, np.iinfo(np.int64).min)[np.searchsorted(moments, time)]


def _by_device(gathers: GatherRows, chosen: Int64Array, order: Order) -> Int64Array:
    """Kinds of some gathers, by when the next compute starts that was launched after each."""
    time, ended = gathers.time[chosen], gathers.ended[chosen]
    following = np.searchsorted(order.launched, time)
    there = following < order.launched.size
    launched = np.append(order.launched, ABSENT)[following]
    begins = np.append(order.started, ABSENT)[following]
    overtakes = there & (begins < ended)
    held_back = there & (begins >= ended) & (launched < ended) & ~gathers.ends_beside[chosen]
    return np.where(overtakes, _PREFETCH, np.where(held_back, _DEMAND, ABSENT)).astype(np.int64)
