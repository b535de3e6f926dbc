"""What a run sends in a step, by kind of collective, beside theory."""

from __future__ import annotations

from zerotrace.model import CollectiveKind, KindTraffic, SentBytes, WireLedger


def sent_bytes(wire: WireLedger | None) -> SentBytes | None:
    """Bytes on the wire by kind; ``None`` where they are unknown."""
    if wire is None or wire.sent_bytes is None:
        return None
    calls: dict[CollectiveKind, float] = {}
    sent: dict[CollectiveKind, float] = {}
    for traffic in wire.traffic:
        calls[traffic.kind] = calls.get(traffic.kind, 0.0) + traffic.num_calls
        sent[traffic.kind] = sent.get(traffic.kind, 0.0) + (traffic.sent_bytes or 0.0)
    return SentBytes(
        kinds=tuple(
            KindTraffic(kind=kind, num_calls=calls[kind], sent_bytes=size)
            for kind, size in sorted(sent.items(), key=lambda item: -item[1])
        ),
        sent_bytes=wire.sent_bytes,
        theory_bytes=wire.theory_bytes,
        ratio=wire.ratio,
        theory_ratio=wire.theory_ratio,
    )
