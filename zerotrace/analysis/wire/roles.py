"""What ZeRO sends a collective for: read from labels where there are any, else from kind, size and order."""

from __future__ import annotations

import numpy as np

from zerotrace.analysis.collectives import ABSENT, CollectiveRows
from zerotrace.intervals import Int64Array
from zerotrace.labels import GatherKind, LabelEvent, Phase
from zerotrace.model import CollectiveKind, WireRole
from zerotrace.tables import BoolArray

#: Norms and overflow flags are a number or two; no bucket of gradients is that small.
MAX_CONTROL_ELEMENTS = 16

_INTEGERS = frozenset({"Byte", "Char", "Bool", "Short", "Int", "Long", "UInt16", "UInt32", "UInt64"})
_REDUCTIONS = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER, CollectiveKind.REDUCE)
_NUMBER = {role: number for number, role in enumerate(WireRole)}

_BY_PURPOSE = {
    GatherKind.DEMAND.value: WireRole.PARAMETERS,
    GatherKind.PREFETCH.value: WireRole.PARAMETERS,
    GatherKind.REFRESH.value: WireRole.UPDATED,
    LabelEvent.POST_STEP_GATHER.value: WireRole.UPDATED,
    LabelEvent.REDUCE.value: WireRole.GRADIENTS,
}


def role_of_purpose(purpose: str | None) -> WireRole | None:
    """What the label says that a collective is for; ``None`` where it says nothing of it."""
    return _BY_PURPOSE.get(purpose or "")


def roles_of(rows: CollectiveRows, kind: Int64Array, elements: Int64Array) -> Int64Array:
    """The role of each row of one rank, as its number among :class:`WireRole`. Shape ``(num_rows,)``.

    A label decides where the row was launched in one. Else, in the group in which ZeRO works (the one with the most
    elements): reductions are of gradients, unless launched in the forward pass; all-gathers and broadcasts that start
    after the step's last such reduction are of updated parameters (torch's ZeroRedundancyOptimizer broadcasts), the
    other all-gathers of parameters about to be used. A reduction of a few numbers is control, as is whatever is
    integer: quantised traffic is known by its labels.

    Args:
        rows: rows of one rank that lie in a step, in the order of their start.
        kind: number of each row's kind among :class:`CollectiveKind`.
        elements: elements of S; absent where unknown.
    """
    distinct = [_BY_PURPOSE.get(purpose) for purpose in rows.purpose.distinct]
    labelled = np.array([*(_NUMBER[role] if role else ABSENT for role in distinct), ABSENT])[rows.purpose.codes]
    reduces, gathers = _is(kind, *_REDUCTIONS), _is(kind, CollectiveKind.ALL_GATHER)
    few = (elements != ABSENT) & (elements <= MAX_CONTROL_ELEMENTS) & ~gathers & ~_is_single(kind)
    control = rows.dtype.where(lambda dtype: dtype in _INTEGERS) | few | rows.name.where(_is_barrier)
    in_forward = rows.phase.where(lambda phase: phase == Phase.FORWARD.value)
    role = np.full(len(rows), _NUMBER[WireRole.OTHER], dtype=np.int64)
    role[reduces & ~in_forward] = _NUMBER[WireRole.GRADIENTS]
    role[gathers] = _NUMBER[WireRole.PARAMETERS]
    role[control] = _NUMBER[WireRole.CONTROL]
    role = np.where(labelled == ABSENT, role, labelled)
    own = _own_group(rows, role, labelled != ABSENT, elements)
    role[~own & (role != _NUMBER[WireRole.CONTROL])] = _NUMBER[WireRole.OTHER]
    late = _after_last(rows.step, role == _NUMBER[WireRole.GRADIENTS])
    role[late & gathers & (labelled == ABSENT) & (role == _NUMBER[WireRole.PARAMETERS])] = _NUMBER[WireRole.UPDATED]
    broadcasts = _is(kind, CollectiveKind.BROADCAST) & own
    role[late & broadcasts & (role == _NUMBER[WireRole.OTHER])] = _NUMBER[WireRole.UPDATED]
    return role


def _own_group(rows: CollectiveRows, role: Int64Array, labelled: BoolArray, elements: Int64Array) -> BoolArray:
    """Rows in the group that moves most of what looks like ZeRO's; where there are labels, of what they name."""
    candidates = np.isin(role, [_NUMBER[r] for r in (WireRole.GRADIENTS, WireRole.PARAMETERS, WireRole.UPDATED)])
    if (candidates & labelled).any():
        candidates &= labelled
    # codes are -1 where the trace names no group, hence the shift by one
    weight = np.bincount(rows.group.codes[candidates] + 1, weights=np.maximum(elements[candidates], 1))
    return np.asarray(rows.group.codes + 1 == (weight.argmax() if weight.size else 0), dtype=bool)


def _after_last(step: Int64Array, marked: BoolArray) -> BoolArray:
    """Rows that come after the last marked row of their step, which has one. Rows are in the order of their start."""
    late = np.zeros(step.size, dtype=bool)
    for number in np.unique(step[marked]).tolist():
        here = np.flatnonzero(step == number)
        late[here] = here > np.flatnonzero(marked & (step == number))[-1]
    return late


def _is(kind: Int64Array, *kinds: CollectiveKind) -> BoolArray:
    order = list(CollectiveKind)
    return np.isin(kind, [order.index(wanted) for wanted in kinds])


def _is_single(kind: Int64Array) -> BoolArray:
    return _is(kind, CollectiveKind.SEND, CollectiveKind.RECV)


def _is_barrier(name: str) -> bool:
    return "barrier" in name.lower()
