"""The paper's ledger: 16 bytes a parameter, of which each stage shards more.

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, section 5.
"""

from __future__ import annotations

from zerotrace.ledger.shapes import Shapes
from zerotrace.model import LedgerLine, Owner, PaperLedger

_SOURCE = "the ZeRO paper, section 5"

#: The model states of mixed precision with Adam: owner, bytes a parameter, the first stage that shards them.
_STATES = (
    (Owner.PARAMS, "parameters", "param", 3),
    (Owner.GRADS, "gradients", "grad", 2),
    (Owner.MASTER, "fp32 parameters", "master", 1),
    (Owner.EXP_AVG, "first moments", "moment", 1),
    (Owner.EXP_AVG_SQ, "second moments", "moment", 1),
)


def paper_ledger(
    shapes: Shapes, stage: int, world_size: int, *, param_bytes: int = 2, grad_bytes: int = 2, state_bytes: int = 12
) -> PaperLedger:
    """Model states of one rank: 16Ψ; 4Ψ + 12Ψ/N; 2Ψ + 14Ψ/N; 16Ψ/N.

    Args:
        shapes: the model.
        stage: 0 to 3.
        world_size: N.
        param_bytes: bytes a parameter of the forward pass.
        grad_bytes: bytes a gradient.
        state_bytes: bytes of the optimizer a parameter: master copy and two moments, in equal parts.
    """
    sizes = {"param": param_bytes, "grad": grad_bytes, "master": state_bytes / 3, "moment": state_bytes / 3}
    psi = shapes.num_params
    lines = []
    for owner, what, kind, first_stage in _STATES:
        sharded = stage >= first_stage
        each = sizes[kind]
        lines.append(
            LedgerLine(
                owner=owner,
                what=what,
                formula=f"{each:g}Ψ/N = {each:g} × {psi:,} / {world_size}"
                if sharded
                else f"{each:g}Ψ = {each:g} × {psi:,}",
                bytes=each * psi / world_size if sharded else each * psi,
                source=_SOURCE,
            )
        )
    return PaperLedger(
        stage=stage,
        world_size=world_size,
        num_params=psi,
        lines=tuple(lines),
        bytes=sum(line.bytes for line in lines),
        padded_bytes=_padded(shapes, stage, world_size, param_bytes, grad_bytes, state_bytes),
    )


def _padded(shapes: Shapes, stage: int, world: int, param: int, grad: int, state: int) -> int | None:
    """Whole parts count Ψ elements, sharded ones the elements of a padded partition."""
    psi = shapes.num_params
    if stage == 0:
        return (param + grad + state) * psi
    if stage == 3:
        return (param + grad + state) * shapes.partition_numel(world) if shapes.numels is not None else None
    part = shapes.flat_partition_numel(world)
    if stage == 1:
        return (param + grad) * psi + state * part
    return param * psi + (grad + state) * part
