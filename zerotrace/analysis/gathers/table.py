"""The table of gathers: one row a gather and rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from zerotrace.analysis.collectives import ABSENT
from zerotrace.analysis.gathers.complete import CompleteGathers
from zerotrace.analysis.gathers.submissions import KINDS, PHASES
from zerotrace.ingest.columns import Texts
from zerotrace.ingest.steps import NO_STEP
from zerotrace.intervals import Int64Array
from zerotrace.schema import GATHERS
from zerotrace.tables import BoolArray, bool_array, int_array

_Numbers = tuple[Int64Array, BoolArray]


def gathers_table(parts: Sequence[CompleteGathers]) -> pa.Table:
    """Rows of :data:`zerotrace.schema.GATHERS`, rank by rank.

    Args:
        parts: the gathers of each rank, in the order of ranks.
    """
    schema = GATHERS.arrow()
    columns = [_columns(part) for part in parts]
    arrays = []
    for field in schema:
        pieces = [column[field.name] for column in columns]
        if all(isinstance(piece, Texts) for piece in pieces):
            arrays.append(Texts.concatenate([piece for piece in pieces if isinstance(piece, Texts)]).arrow())
            continue
        values, present = (np.concatenate(side) for side in zip(*(p for p in pieces if isinstance(p, tuple))))
        make = bool_array if field.type == pa.bool_() else int_array
        arrays.append(make(values, present, field.type))
    return pa.Table.from_arrays(arrays, schema=schema)


def slacks(part: CompleteGathers) -> tuple[Int64Array, Int64Array]:
    """The gathers whose need and end are known, and ``need − end`` of each."""
    need, end = part.own.found.need, part.own.times.end
    known = np.flatnonzero((need != ABSENT) & (end != ABSENT))
    return known, (need - end)[known]


def _columns(part: CompleteGathers) -> dict[str, _Numbers | Texts]:
    own, times, found = part.own, part.own.times, part.own.found
    slack, has_slack = np.zeros(len(part), dtype=np.int64), np.zeros(len(part), dtype=bool)
    known, values = slacks(part)
    slack[known], has_slack[known] = values, True
    numbers = {
        "rank": np.full(len(part), part.rank, dtype=np.int64),
        "gather": np.arange(len(part)),
        "submission": found.submission,
        "device": times.device,
        "num_params": found.num_params,
        "bytes": found.bytes,
        "num_collectives": times.num_collectives,
        "submit_ns": found.submit,
        "start_ns": times.start,
        "end_ns": times.end,
        "need_ns": found.need,
        "gather_ns": times.gather,
        "hidden_ns": times.hidden,
        "exposed_ns": times.exposed,
        "blocking_ns": times.blocking,
        "transfer_ns": part.transfer,
        "wait_ns": np.where(part.transfer != ABSENT, times.gather - part.transfer, ABSENT),
        "hidden_transfer_ns": part.hidden_transfer,
        "late": part.late,
        "cold": part.cold,
        "inferred": found.inferred.astype(np.int64),
    }
    return {
        **{name: (column, column != ABSENT) for name, column in numbers.items()},
        "step": (own.step, own.step != NO_STEP),
        "slack_ns": (slack, has_slack),
        "kind": Texts(found.kind.astype(np.int32), [kind.value for kind in KINDS]),
        "phase": Texts(found.phase.astype(np.int32), [phase.value for phase in PHASES]),
        "module": found.module,
        "parameters": found.parameters,
        "need_module": found.need_module,
    }
