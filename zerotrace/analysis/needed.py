"""Which events the analysis of a rank looks at: most operators of the host it does not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from zerotrace.analysis.fsdp import is_fsdp_annotation
from zerotrace.analysis.gathers.phases import BACKWARD_OPERATOR, OPTIMIZER_STEP
from zerotrace.labels import is_label
from zerotrace.model import Mode
from zerotrace.tables import codes_and_names, take_rows

_OPERATOR_CAT = "cpu_op"

# Operators that tell phases apart, and calls of collectives. Labels and annotations are operators in traces of some
# versions of torch.
_TELLING = (OPTIMIZER_STEP, "c10d::")


def tells(name: str) -> bool:
    """Whether what has this name tells of other rows: a label, FSDP2's, the optimizer's step, a collective's call."""
    return name.startswith(_TELLING) or is_label(name) or is_fsdp_annotation(name)


def needed_rows(events: pa.Table, mode: Mode) -> pa.Table:
    """The rows without operators whose only figure is their own time; in host mode, that is what counts.

    Args:
        events: rows of :data:`zerotrace.schema.EVENTS`.
        mode: device or host time.
    """
    if mode is Mode.HOST:
        return events
    cats, distinct_cats = codes_and_names(events, "cat")
    names, distinct_names = codes_and_names(events, "name")
    is_operator = np.array([*(cat == _OPERATOR_CAT for cat in distinct_cats), False])[cats]
    told = [*(name.startswith(BACKWARD_OPERATOR) or tells(name) for name in distinct_names), True]
    kept = ~is_operator | np.array(told)[names]
    return events if kept.all() else take_rows(events, np.flatnonzero(kept))
