"""The rows of a rank that figures of other steps than their own depend on: few, and in memory all at once.

They are communication, labels, waits of streams and calls that wait for the device. What there are millions of, compute
kernels, copies, their launches and autograd's operators, is looked at stretch by stretch.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from zerotrace.analysis.bounds import in_doubt
from zerotrace.analysis.launches import is_call, waits_by_name
from zerotrace.analysis.needed import tells
from zerotrace.analysis.stretches import RankEvents
from zerotrace.ingest.classify import SYNC_CAT
from zerotrace.model import Category
from zerotrace.tables import BoolArray, codes_and_names, equals, optional_ints


def find_landmarks(events: RankEvents) -> pa.Table:
    """The landmarks of a rank: rows of :data:`zerotrace.schema.EVENTS` with the columns of their launches."""
    awaited = np.array(sorted(events.awaited), dtype=np.int64)

    def are_landmarks(some: pa.Table) -> BoolArray:
        names, distinct = codes_and_names(some, "name")
        told, waits = (np.array([*map(rule, distinct), False])[names] for rule in (tells, waits_by_name))
        ids, known = optional_ints(some, "correlation")
        _, has_device = optional_ints(some, "device")
        chosen = told | (waits & is_call(some)) | (~has_device & known & np.isin(ids, awaited))
        chosen |= equals(some, "category", Category.COMM.value) | equals(some, "cat", SYNC_CAT) | in_doubt(some)
        return np.asarray(chosen, dtype=bool)

    return events.of_all(are_landmarks)
