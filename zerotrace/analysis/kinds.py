"""What collectives are called, and what a ring sends for each.

Backends and wrappers spell one collective in many ways (``_allgather_base``, ``allgather_into_tensor_coalesced``,
``ncclDevKernel_AllGather_RING_LL``, gloo's ``all_gather``); what they mean is one of few kinds.
"""

from __future__ import annotations

from zerotrace.model import CollectiveKind

# Looked for in this order, in the name without underscores: a reduce-scatter is no reduce.
_PARTS = (
    ("allreduce", CollectiveKind.ALL_REDUCE),
    ("allgather", CollectiveKind.ALL_GATHER),
    ("reducescatter", CollectiveKind.REDUCE_SCATTER),
    ("alltoall", CollectiveKind.ALL_TO_ALL),
    ("broadcast", CollectiveKind.BROADCAST),
    ("sendrecv", CollectiveKind.OTHER),
    ("send", CollectiveKind.SEND),
    ("recv", CollectiveKind.RECV),
    ("reduce", CollectiveKind.REDUCE),
)

# What a rank sends in a ring, in units of S (n−1)/n: the mean over the members.
_RING = {
    CollectiveKind.ALL_REDUCE: 2,
    CollectiveKind.ALL_GATHER: 1,
    CollectiveKind.REDUCE_SCATTER: 1,
    CollectiveKind.ALL_TO_ALL: 1,
    CollectiveKind.BROADCAST: 1,
    CollectiveKind.REDUCE: 1,
}


def kind_of(name: str) -> CollectiveKind:
    """The kind of a collective, from the name in the trace."""
    flat = name.lower().replace("_", "")
    return next((kind for part, kind in _PARTS if part in flat), CollectiveKind.OTHER)


def sent_share(kind: CollectiveKind, group_size: int) -> float | None:
    """What a rank sends for one byte of S, the mean over the members of a ring.

    2(n−1)/n for all-reduce; (n−1)/n for all-gather, reduce-scatter, all-to-all, broadcast and reduce. A send sends S,
    a receive nothing.

    Args:
        kind: of the collective.
        group_size: n, the number of members.

    Returns:
        The share; ``None`` where no price is defined for the kind.
    """
    if kind is CollectiveKind.SEND:
        return 1.0
    if kind is CollectiveKind.RECV:
        return 0.0
    weight = _RING.get(kind)
    return None if weight is None else weight * (group_size - 1) / group_size
