"""What must hold of every result, whatever the traces were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pyarrow.parquet as pq

from zerotrace.model import Analysis, Attribution, StepPartition
from zerotrace.store import read_analysis


def check_result(analysis: Analysis, folder: Path) -> None:
    """The identities of every result, in memory, in the tables and in the JSON."""
    for part in analysis.partition:
        _check_part(part, analysis.attribution)
    for summary in analysis.ranks:
        parts = [p for p in analysis.partition if (p.rank, p.device) == (summary.rank, summary.device) and p.known]
        assert 0 < summary.num_steps <= len(parts)
        assert abs(summary.comm_ns - summary.overlapped_ns - summary.exposed_ns) <= 1e-6 * max(summary.comm_ns, 1)
        assert summary.overlap_ratio is None or 0 <= summary.overlap_ratio <= 1
        low, high = min(p.comm_ns or 0 for p in parts), max(p.comm_ns or 0 for p in parts)
        assert low - 1 <= summary.comm_ns <= high + 1
    stored = json.loads((folder / "analysis.json").read_bytes(), parse_constant=_not_strict)
    # None of what is stored may differ from what was returned.
    assert len(stored["partition"]) == len(analysis.partition)
    assert read_analysis(folder) == msgspec.json.decode(msgspec.json.encode(analysis), type=Analysis)
    table = pq.read_table(folder / "partition.parquet").to_pylist()
    assert sum(row["comm_ns"] or 0 for row in table) == sum(part.comm_ns or 0 for part in analysis.partition)
    if (folder / "gathers.parquet").is_file():
        for row in pq.read_table(folder / "gathers.parquet").to_pylist():
            _check_gather(row)
    for kind in analysis.collectives.kinds if analysis.collectives is not None else ():
        assert kind.exposed_ns >= 0


def _check_part(part: StepPartition, attribution: Attribution) -> None:
    assert part.span_ns > 0
    if not part.known:
        return
    compute, comm, overlapped, exposed = part.compute_ns, part.comm_ns, part.overlapped_ns, part.exposed_ns
    assert compute is not None and comm is not None and overlapped is not None and exposed is not None
    assert comm == overlapped + exposed
    if attribution is Attribution.CLIP:
        assert overlapped <= compute
        assert part.copy_only_ns is not None and part.idle_ns is not None
        assert part.span_ns == compute + exposed + part.copy_only_ns + part.idle_ns
    _check_sum(part.idle_ns, part.host_bound_ns, part.stalled_ns, part.tail_ns, part.unlinked_ns)
    _check_sum(exposed, part.exposed_transfer_ns, part.exposed_wait_ns)
    _check_sum(exposed, part.blocking_queued_ns, part.blocking_sync_ns, part.shadow_ns)
    figures = (compute, overlapped, exposed, part.copy_only_ns, part.idle_ns)
    assert all(value is None or value >= 0 for value in figures)


def _check_sum(whole: int | None, *parts: int | None) -> None:
    known = [value for value in parts if value is not None]
    assert all(value >= 0 for value in known)
    if whole is not None and len(known) == len(parts):
        assert whole == sum(known)


def _check_gather(row: Mapping[str, Any]) -> None:
    if row["gather_ns"] is None:
        return
    _check_sum(row["gather_ns"], row["hidden_ns"], row["exposed_ns"])
    _check_sum(row["gather_ns"], row["transfer_ns"], row["wait_ns"])
    assert row["blocking_ns"] is None or 0 <= row["blocking_ns"] <= row["exposed_ns"]
    assert row["hidden_transfer_ns"] is None or 0 <= row["hidden_transfer_ns"] <= row["hidden_ns"]


def _not_strict(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is in analysis.json")
