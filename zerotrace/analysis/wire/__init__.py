"""The wire ledger: bytes sent a rank and step, theory beside them, and the gap by cause."""

from zerotrace.analysis.wire.by_label import traffic_by_label
from zerotrace.analysis.wire.ledger import LedgerRequest, wire_ledger
from zerotrace.analysis.wire.stage import stage_contradiction
from zerotrace.analysis.wire.traffic import RankTraffic, rank_traffic, wire_table

__all__ = [
    "LedgerRequest",
    "RankTraffic",
    "rank_traffic",
    "stage_contradiction",
    "traffic_by_label",
    "wire_ledger",
    "wire_table",
]
