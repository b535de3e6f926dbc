"""Submissions of parameters, as labels or inference tell them."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import asdict

from zerotrace.ingest.columns import Texts
from zerotrace.intervals import Int64Array
from zerotrace.labels import GatherKind, Phase
from zerotrace.tables import BoolArray

#: What the codes of kinds and phases stand for.
KINDS: tuple[GatherKind, ...] = tuple(GatherKind)
PHASES: tuple[Phase, ...] = tuple(Phase)


class Submissions(Struct, frozen=True, kw_only=True, eq=False):
    """Submissions of one rank. All columns have one entry a submission; numbers that are unknown are absent.

    Attributes:
        submit: when the host began it, nanoseconds.
        kind: index into :data:`KINDS`.
        phase: index into :data:`PHASES`.
        module: the module in whose turn it was made; none where unknown, ``""`` is the root.
        parameters: the names that are known, comma-separated.
        num_params: how many parameters.
        elements: elements of the whole parameters; of what the collective puts out, where inferred.
        bytes: the same in bytes.
        submission: running number that is the same on all ranks.
        inferred: whether this is inference and not a label.
        need: start of the first compute row of the first module that uses one of the parameters.
        need_module: that module; none where unknown.
    """

    submit: Int64Array
    kind: Int64Array
    phase: Int64Array
    module: Texts
    parameters: Texts
    num_params: Int64Array
    elements: Int64Array
    bytes: Int64Array
    submission: Int64Array
    inferred: BoolArray
    need: Int64Array
    need_module: Texts

    def __len__(self) -> int:
        """Number of submissions."""
        return int(self.submit.size)

    @classmethod
    def concatenate(cls, first: Submissions, second: Submissions) -> Submissions:
        """Both, the first ahead."""
        columns: dict[str, Any] = {}
        for name in cls.__struct_fields__:
            pair = [getattr(part, name) for part in (first, second)]
            columns[name] = Texts.concatenate(pair) if isinstance(pair[0], Texts) else np.concatenate(pair)
        return cls(**columns)

    def take(self, order: Int64Array) -> Submissions:
        """The submissions at ``order``."""
        columns = asdict(self)
        for name, column in columns.items():
            columns[name] = column.take(order) if isinstance(column, Texts) else column[order]
        return Submissions(**columns)


def no_texts(count: int) -> Texts:
    """A column without any text."""
    return Texts(np.full(count, -1, dtype=np.int32), [])
