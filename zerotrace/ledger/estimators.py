"""DeepSpeed's own estimators of model states, rewritten so that they can stand beside a ledger without DeepSpeed.

Source: ``estimate_zero2_model_states_mem_needs`` in ``runtime/zero/stage_1_and_2.py`` and
``estimate_zero3_model_states_mem_needs`` in ``runtime/zero/stage3.py`` of 0.19.8.
"""

from __future__ import annotations

from zerotrace.ledger.settings import Settings
from zerotrace.ledger.shapes import Shapes


def estimate(shapes: Shapes, settings: Settings, world_size: int) -> tuple[int | None, str]:
    """Bytes on each device that DeepSpeed's estimator says, and which one that is.

    Stage 2: 2Ψ + 18Ψ/N, with the optimizer offloaded 2Ψ. Stage 3: 18Ψ/N + 4 × the largest layer, with the optimizer
    offloaded 2Ψ/N instead, with the parameters too the layer alone. For stages 0 and 1 it has none.
    """
    psi = shapes.num_params
    if settings.stage == 2:
        states = 0 if settings.offload_optimizer else int(18 * psi / world_size)
        return 2 * psi + states, "estimate_zero2_model_states_mem_needs: 2Ψ + 18Ψ/N"
    if settings.stage == 3:
        name = "estimate_zero3_model_states_mem_needs: 4 × largest layer + 18Ψ/N"
        if shapes.largest_layer is None:
            return None, f"{name}; the largest layer is unknown"
        layer = 4 * shapes.largest_layer
        if settings.offload_optimizer:
            return layer + (0 if settings.offload_param else int(2 * psi / world_size)), name
        return layer + int(18 * psi / world_size), name
    return None, f"DeepSpeed has no estimator for stage {settings.stage}"
