"""Collectives of many ranks as the analysis across ranks has them, made from arrival times and without traces.

    judge(arrive(own_us))

``own_us`` says how long each rank is by itself ahead of each collective, microseconds, shape ``(num_collectives,
num_ranks)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from zerotrace.analysis.across import Meeting
from zerotrace.analysis.arrivals import arrivals
from zerotrace.analysis.clock_report import report_clocks
from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.analysis.matching import match
from zerotrace.analysis.own_time import OwnTimes
from zerotrace.analysis.profiler_start import ProfilerStart
from zerotrace.analysis.stragglers import find_stragglers
from zerotrace.ingest.columns import Texts
from zerotrace.model import Stragglers

TRANSFER_NS = 50_000
STEPS = 4


@dataclass(frozen=True)
class Arriving:
    """What :func:`zerotrace.analysis.stragglers.find_stragglers` looks at."""

    meeting: Meeting
    own: OwnTimes
    hosts: Mapping[int, str | None]
    step_ns: float


def arrive(own_us: npt.NDArray[np.float64], hosts: Mapping[int, str | None] | None = None) -> Arriving:
    """Collectives of all ranks one after the other; they leave each of them at one moment."""
    own = np.rint(own_us * 1000).astype(np.int64)
    count, num_ranks = own.shape
    ends = np.cumsum(own.max(axis=1) + TRANSFER_NS)
    starts = (ends - own.max(axis=1) - TRANSFER_NS)[:, None] + own
    size = starts.size
    nothing, zeros = np.full(size, ABSENT, dtype=np.int64), np.zeros(size, dtype=np.int64)
    same, none = Texts(np.zeros(size, dtype=np.int32), ["x"]), Texts(np.full(size, -1, dtype=np.int32), [])
    rows = CollectiveRows(
        rank=np.repeat(np.arange(num_ranks), count),
        device=zeros,
        event=np.arange(size),
        step=np.tile(np.arange(count) * STEPS // count, num_ranks),
        start=starts.T.ravel(),
        end=np.tile(ends, num_ranks),
        name=Texts(same.codes, ["allreduce"]),
        group=Texts(same.codes, [str(list(range(num_ranks)))]),
        dtype=Texts(same.codes, ["BFloat16"]),
        phase=none,
        purpose=none,
        size=np.full(size, num_ranks),
        seq=np.tile(np.arange(count), num_ranks),
        in_elements=np.full(size, 640),
        out_elements=np.full(size, 640),
        src=nothing,
        dst=nothing,
    )
    of_rank = hosts or dict.fromkeys(range(num_ranks))
    matches = match(rows, of_rank)
    started = ProfilerStart(waits=np.zeros(size, dtype=bool), steps=frozenset(), notes=())
    meeting = Meeting(rows, matches, arrivals(rows, matches), report_clocks(rows, matches)[0], started, ())
    previous = np.where(np.arange(size) % count == 0, ABSENT, np.arange(size) - 1)
    time = own.T.ravel()
    times = OwnTimes(previous, time, time, zeros, zeros, zeros, nothing, nothing)
    return Arriving(meeting, times, of_rank, float(ends[-1]) / STEPS)


def judge(arriving: Arriving) -> Stragglers:
    """The verdict."""
    judged = find_stragglers(arriving.meeting, arriving.own, STEPS, arriving.step_ns, arriving.hosts)
    assert judged is not None
    return judged[0]
