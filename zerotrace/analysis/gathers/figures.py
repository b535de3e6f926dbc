"""The figures of stage 3's gathers: what prefetch hides, by step, rank, kind, phase and module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import cast

import numpy as np
from msgspec import Struct

from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.gathers.complete import CompleteGathers
from zerotrace.analysis.gathers.submissions import KINDS, PHASES
from zerotrace.ingest.columns import Texts
from zerotrace.ingest.steps import NO_STEP
from zerotrace.intervals import Int64Array
from zerotrace.labels import GatherKind, Phase
from zerotrace.model import (
    GatherGroup,
    GatherReport,
    GatherStep,
    GatherTotals,
    HeldGather,
    LinkUse,
    SlackBin,
    StepWindow,
)
from zerotrace.tables import BoolArray
from zerotrace.units import NS_PER_S

_DEMAND, _PREFETCH, _REFRESH = (KINDS.index(kind) for kind in GatherKind)

#: More gathers that hold compute back nobody reads; the table has all of them.
MAX_HELD = 200

_MS = 1_000_000
#: Borders of the slack histogram, nanoseconds.
SLACK_BORDERS_NS = (-100 * _MS, -10 * _MS, -_MS, -_MS // 10, 0, _MS // 10, _MS, 10 * _MS, 100 * _MS)


class _Columns(Struct, frozen=True, eq=False):
    """The gathers of all ranks; columns as in :class:`CompleteGathers` and what it holds."""

    rank: Int64Array
    number: Int64Array
    step: Int64Array
    kind: Int64Array
    phase: Int64Array
    num_params: Int64Array
    num_bytes: Int64Array
    num_collectives: Int64Array
    submit: Int64Array
    start: Int64Array
    end: Int64Array
    need: Int64Array
    gather: Int64Array
    hidden: Int64Array
    exposed: Int64Array
    blocking: Int64Array
    transfer: Int64Array
    hidden_transfer: Int64Array
    late: Int64Array
    module: Texts
    need_module: Texts

    @classmethod
    def of(cls, parts: Sequence[CompleteGathers]) -> _Columns:
        def all_of(path: str) -> Int64Array:
            return np.concatenate([attrgetter(path)(part) for part in parts])

        return cls(
            rank=np.concatenate([np.full(len(part), part.rank, dtype=np.int64) for part in parts]),
            number=np.concatenate([np.arange(len(part)) for part in parts]),
            step=all_of("own.step"),
            kind=all_of("own.found.kind"),
            phase=all_of("own.found.phase"),
            num_params=all_of("own.found.num_params"),
            num_bytes=all_of("own.found.bytes"),
            num_collectives=all_of("own.times.num_collectives"),
            submit=all_of("own.found.submit"),
            start=all_of("own.times.start"),
            end=all_of("own.times.end"),
            need=all_of("own.found.need"),
            gather=all_of("own.times.gather"),
            hidden=all_of("own.times.hidden"),
            exposed=all_of("own.times.exposed"),
            blocking=all_of("own.times.blocking"),
            transfer=all_of("transfer"),
            hidden_transfer=all_of("hidden_transfer"),
            late=all_of("late"),
            module=Texts.concatenate([part.own.found.module for part in parts]),
            need_module=Texts.concatenate([part.own.found.need_module for part in parts]),
        )

    def slack_of(self, row: int) -> int | None:
        known = self.need[row] != ABSENT and self.end[row] != ABSENT
        return int(self.need[row] - self.end[row]) if known else None


def gather_report(parts: Sequence[CompleteGathers], windows: Sequence[StepWindow]) -> GatherReport:
    """All figures of a run's gathers.

    Args:
        parts: the gathers of each rank.
        windows: step windows of all ranks.
    """
    columns = _Columns.of(parts)
    of_rank = {part.rank: _Columns.of([part]) for part in parts}  # a rank's figures need no look at the others' rows
    steps_of: dict[int, list[int]] = {}
    for window in windows:
        steps_of.setdefault(window.rank, []).append(window.step)
    steps = tuple(step for part in parts for step in _steps(part, of_rank[part.rank], steps_of.get(part.rank, ())))
    cold = sorted({step.step for step in steps if step.cold})
    warm = _warm(columns, cold)
    return GatherReport(
        inferred_ratio=_inferred_ratio(columns, np.concatenate([part.own.found.inferred for part in parts])),
        steps=steps,
        cold_steps=tuple(cold),
        total=_group(columns, warm) if warm.any() else None,
        ranks=tuple(_group(mine, _warm(mine, cold), rank=rank) for rank, mine in of_rank.items() if warm.any()),
        kinds=tuple(
            _group(columns, chosen, kind=kind)
            for code, kind in enumerate(KINDS)
            if (chosen := warm & (columns.kind == code)).any()
        ),
        phases=tuple(
            _group(columns, chosen, phase=phase)
            for code, phase in enumerate(PHASES)
            if (chosen := warm & (columns.phase == code)).any()
        ),
        modules=tuple(_modules(columns, warm & (columns.kind != _REFRESH))),
        late=tuple(_held(columns, warm & (columns.late == 1))),
        missed=tuple(_held(columns, warm & (columns.kind == _DEMAND) & (columns.blocking > 0))),
        link=_link(columns, warm & (columns.kind != _REFRESH)),
        slack=tuple(_slack(columns, warm)),
        num_persisted=_num_persisted(columns, warm),
    )


def _warm(columns: _Columns, cold: Sequence[int]) -> BoolArray:
    return np.asarray((columns.step != NO_STEP) & ~np.isin(columns.step, cold), dtype=bool)


def totals(columns: _Columns, chosen: BoolArray) -> GatherTotals:
    """Sums over the chosen gathers."""
    return _totals(columns, chosen, _Groups(np.zeros(chosen.size, dtype=np.int64), 1))[0]


class _Groups(Struct, frozen=True, eq=False):
    """Rows that belong together, by the number of each row's group: all groups are summed at once."""

    which: Int64Array
    count: int

    def size(self, chosen: BoolArray) -> Int64Array:
        """Chosen rows of each group."""
        return np.bincount(self.which[chosen], minlength=self.count)

    def sum_of_known(self, column: Int64Array, chosen: BoolArray) -> list[int]:
        """Sum over the chosen rows of each group, as far as they are known."""
        known = chosen & (column != ABSENT)
        found = np.zeros(self.count, dtype=np.int64)
        np.add.at(found, self.which[known], column[known])
        return cast("list[int]", found.tolist())

    def sum_if_known(self, column: Int64Array, chosen: BoolArray) -> list[int | None]:
        """The same; ``None`` where one of them is not known."""
        unknown = self.size(chosen & (column == ABSENT)).tolist()
        return [None if absent else value for absent, value in zip(unknown, self.sum_of_known(column, chosen))]


def _totals(columns: _Columns, chosen: BoolArray, groups: _Groups) -> list[GatherTotals]:
    """Sums over the chosen gathers of each group."""
    there = chosen & (columns.gather != ABSENT)
    sums = zip(
        groups.size(chosen).tolist(),
        groups.sum_of_known(columns.num_collectives, chosen),
        groups.sum_if_known(columns.num_bytes, chosen),
        groups.sum_of_known(columns.gather, chosen),
        groups.sum_of_known(columns.hidden, chosen),
        groups.sum_of_known(columns.exposed, chosen),
        groups.sum_if_known(columns.blocking, there),
        groups.sum_if_known(columns.transfer, there),
        groups.sum_if_known(columns.hidden_transfer, there),
    )
    return [
        GatherTotals(
            num_gathers=num_gathers,
            num_collectives=num_collectives,
            num_bytes=num_bytes,
            gather_ns=gather,
            hidden_ns=hidden,
            exposed_ns=exposed,
            blocking_ns=blocking,
            transfer_ns=transfer,
            wait_ns=None if transfer is None else gather - transfer,
            hidden_transfer_ns=hidden_transfer,
            hidden_ratio=hidden / gather if gather else None,
            hidden_transfer_ratio=hidden_transfer / transfer if transfer and hidden_transfer is not None else None,
        )
        for (
            num_gathers,
            num_collectives,
            num_bytes,
            gather,
            hidden,
            exposed,
            blocking,
            transfer,
            hidden_transfer,
        ) in sums
    ]


def _group(
    columns: _Columns, chosen: BoolArray, *, kind: GatherKind | None = None, phase: Phase | None = None,
    rank: int | None = None, module: str | None = None,
) -> GatherGroup:  # fmt: skip
    return GatherGroup(
        kind=kind,
        phase=phase,
        rank=rank,
        module=module,
        num_late=_num_late(columns, chosen),
        num_demand=int((chosen & (columns.kind == _DEMAND)).sum()),
        totals=totals(columns, chosen),
    )


def _steps(part: CompleteGathers, columns: _Columns, steps: Sequence[int]) -> Iterator[GatherStep]:
    """The figures of each step of one rank."""
    if not steps:
        return
    numbers = np.array(steps, dtype=np.int64)
    order = np.argsort(numbers, kind="stable")
    place = order[np.minimum(np.searchsorted(numbers[order], columns.step), numbers.size - 1)]
    inside = numbers[place] == columns.step
    groups = _Groups(place, numbers.size)
    of_kind = {code: inside & (columns.kind == code) for code in (_DEMAND, _PREFETCH, _REFRESH, ABSENT)}
    count = {code: groups.size(chosen).tolist() for code, chosen in of_kind.items()}
    there = columns.gather != ABSENT
    num_undecided = groups.size(inside & there & (columns.blocking == ABSENT)).tolist()
    num_late = groups.size(inside & (columns.late == 1)).tolist()
    every, fetched = _totals(columns, inside, groups), _totals(columns, inside & ~of_kind[_REFRESH], groups)
    blocking = {code: groups.sum_if_known(columns.blocking, of_kind[code] & there) for code in (_DEMAND, _PREFETCH)}
    refreshes = np.flatnonzero(of_kind[_REFRESH] & (columns.end != ABSENT))
    refresh_start = np.full(numbers.size, np.iinfo(np.int64).max)
    np.minimum.at(refresh_start, place[refreshes], columns.submit[refreshes])
    refresh_end = np.full(numbers.size, np.iinfo(np.int64).min)
    np.maximum.at(refresh_end, place[refreshes], columns.end[refreshes])
    refreshed = groups.size(of_kind[_REFRESH] & (columns.end != ABSENT)).tolist()
    cold = dict(zip(part.own.step[::-1].tolist(), part.cold[::-1].tolist()))  # of a step's rows the first says it
    host = part.own.coordinator
    for number, step in enumerate(steps):
        is_cold = cold.get(step, 0)
        yield GatherStep(
            rank=part.rank,
            step=step,
            cold=None if is_cold == ABSENT else bool(is_cold),
            num_demand=count[_DEMAND][number],
            num_prefetch=count[_PREFETCH][number],
            num_refresh=count[_REFRESH][number],
            num_unknown=count[ABSENT][number],
            num_late=None if num_undecided[number] else num_late[number],
            totals=every[number],
            fetched=fetched[number],
            demand_blocking_ns=blocking[_DEMAND][number],
            prefetch_blocking_ns=blocking[_PREFETCH][number],
            refresh_start_ns=int(refresh_start[number]) if refreshed[number] else None,
            refresh_end_ns=int(refresh_end[number]) if refreshed[number] else None,
            coordinator_ns=_or_none(host.host[number]),
            coordinator_host_bound_ns=_or_none(host.host_bound[number]),
            num_forced_syncs=_or_none(host.num_forced[number]),
            forced_sync_ns=_or_none(host.forced[number]),
        )


def _modules(columns: _Columns, chosen: BoolArray) -> Iterator[GatherGroup]:
    """One group a module, in the order in which modules are first submitted for; the unknown one last."""
    codes = columns.need_module.codes
    used, first = np.unique(codes[chosen], return_index=True)
    when = columns.submit[chosen][first]
    for place in np.lexsort((when, used < 0)).tolist():
        code = int(used[place])
        name = columns.need_module.distinct[code] if code >= 0 else None
        yield _group(columns, chosen & (codes == code), module=name)


def _held(columns: _Columns, chosen: BoolArray) -> Iterator[HeldGather]:
    rows = np.flatnonzero(chosen)
    for row in rows[np.argsort(-columns.blocking[rows], kind="stable")][:MAX_HELD].tolist():
        phase = int(columns.phase[row])
        yield HeldGather(
            rank=int(columns.rank[row]),
            step=int(columns.step[row]),
            gather=int(columns.number[row]),
            phase=PHASES[phase] if phase != ABSENT else None,
            module=_text(columns.module, row),
            need_module=_text(columns.need_module, row),
            start_ns=int(columns.start[row]),
            end_ns=int(columns.end[row]),
            blocking_ns=int(columns.blocking[row]),
            slack_ns=columns.slack_of(row),
            num_bytes=_or_none(columns.num_bytes[row]),
        )


def _link(columns: _Columns, chosen: BoolArray) -> LinkUse | None:
    """Rates of gathers whose size and transfer are known."""
    rows = np.flatnonzero(chosen & (columns.num_bytes > 0) & (columns.transfer > 0))
    if not rows.size:
        return None
    size, transfer = columns.num_bytes[rows], columns.transfer[rows]
    order = np.argsort(-size, kind="stable")
    num_large = int(np.searchsorted(np.cumsum(size[order]), size.sum() / 2)) + 1
    large = order[:num_large]
    best = float(size[large].sum() / transfer[large].sum())
    return LinkUse(
        num_gathers=int(rows.size),
        median_bytes=float(np.median(size)),
        best_bytes_per_s=best * NS_PER_S,
        transfer_ns=int(transfer.sum()),
        at_best_ns=float(size.sum() / best),
    )


def _slack(columns: _Columns, warm: BoolArray) -> Iterator[SlackBin]:
    known = np.flatnonzero(warm & (columns.need != ABSENT) & (columns.end != ABSENT))
    if not known.size:
        return
    place = np.searchsorted(SLACK_BORDERS_NS, (columns.need - columns.end)[known], side="right")
    borders = (None, *SLACK_BORDERS_NS, None)
    for number, (low, high) in enumerate(pairwise(borders)):
        kinds = columns.kind[known[place == number]]
        yield SlackBin(
            low_ns=low,
            high_ns=high,
            num_demand=int((kinds == _DEMAND).sum()),
            num_prefetch=int((kinds == _PREFETCH).sum()),
            num_unknown=int((kinds == ABSENT).sum()),
        )


def _inferred_ratio(columns: _Columns, inferred: BoolArray) -> float:
    fetched = columns.kind != _REFRESH
    return float(inferred[fetched].mean()) if fetched.any() else float(inferred.mean())


def _num_persisted(columns: _Columns, warm: BoolArray) -> int | None:
    """Parameters that a step refreshes, on the rank and step with the most; one a collective where none are counted."""
    rows = np.flatnonzero(warm & (columns.kind == _REFRESH))
    if not rows.size:
        return None
    params = np.where(columns.num_params[rows] == ABSENT, columns.num_collectives[rows], columns.num_params[rows])
    _, which = np.unique(np.stack((columns.rank[rows], columns.step[rows])), axis=1, return_inverse=True)
    return int(np.bincount(which.ravel(), weights=params).max())


def _num_late(columns: _Columns, chosen: BoolArray) -> int | None:
    known = columns.blocking[chosen & (columns.gather != ABSENT)] != ABSENT
    return int((columns.late[chosen] == 1).sum()) if known.all() else None


def _or_none(value: int) -> int | None:
    return None if value == ABSENT else int(value)


def _text(texts: Texts, row: int) -> str | None:
    code = int(texts.codes[row])
    return texts.distinct[code] if code >= 0 else None
