"""Steps without prefetch: while the coordinator records the order of modules anew, every gather is a demand.

DeepSpeed prefetches by the order of modules that it recorded in an earlier step. If a step runs other modules, it
throws the record away ("Invalidate trace cache"), and until there is a new one steps are *cold*: their figures say
nothing of prefetch.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from zerotrace.analysis.gathers.config import ZeroConfig
from zerotrace.analysis.gathers.rank import RankGathers
from zerotrace.analysis.gathers.submissions import KINDS
from zerotrace.ingest.steps import NO_STEP
from zerotrace.labels import GatherKind

_DEMAND, _PREFETCH = KINDS.index(GatherKind.DEMAND), KINDS.index(GatherKind.PREFETCH)

#: A step of fewer demands tells nothing of prefetch.
FEW_DEMANDS = 2


def cold_steps(ranks: Mapping[int, RankGathers], config: ZeroConfig | None) -> dict[tuple[int, int], bool | None]:
    """Which steps are cold.

    A step with demands and no prefetch is cold if another step of the run has some, or if the configuration asks for
    prefetch and lets all parameters be live at once, so that no limit could have stopped it. It is not where the
    configuration switches prefetch off. Else it may be cold or not.

    Args:
        ranks: the gathers of each rank.
        config: the run's configuration; ``None`` without a manifest.

    Returns:
        ``(rank, step)`` -> whether it is cold; ``None`` where that is unknown.
    """
    expected = config.always_prefetches if config is not None else None
    if any(bool((own.found.kind == _PREFETCH).any()) for own in ranks.values()):
        expected = True
    found: dict[tuple[int, int], bool | None] = {}
    for rank, own in ranks.items():
        for step in np.unique(own.step[own.step != NO_STEP]).tolist():
            kinds = own.found.kind[own.step == step]
            silent = int((kinds == _DEMAND).sum()) >= FEW_DEMANDS and not (kinds == _PREFETCH).any()
            found[rank, step] = expected if silent else False
    return found
