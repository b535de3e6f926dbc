"""The overlap tax of the committed captures, against a second, plain reading that shares no code with the first."""

from __future__ import annotations

import gzip
import json
import statistics
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from tests.golden.test_blocking import ns
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import TaxVerdict

TRACES = Path(__file__).resolve().parents[2] / "traces"


def second_reading(path: Path) -> tuple[int, int, float]:
    """Time beside communication, that of kernels compared, and what they lost."""
    events = [e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("cat") == "kernel"]
    comm = sorted((ns(e["ts"]), ns(e["ts"]) + ns(e["dur"])) for e in events if "Collective name" in e["args"])
    assert all(end <= start for (_, end), (start, _) in pairwise(comm)), "collectives run one after another"
    groups: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for event in events:
        if "Collective name" not in event["args"]:
            start, end = ns(event["ts"]), ns(event["ts"]) + ns(event["dur"])
            beside = sum(max(0, min(end, high) - max(start, low)) for low, high in comm)
            groups[f"{event['name']} {event['args']['grid']} {event['args']['block']}"].append((end - start, beside))
    total = compared = 0
    lost = 0.0
    for group in groups.values():
        total += sum(beside for _, beside in group)
        alone = sorted(duration for duration, beside in group if not beside)
        slow = [(duration, beside) for duration, beside in group if beside and 2 * beside >= duration]
        if len(alone) < 5 or len(slow) < 5:
            continue
        deciles = statistics.quantiles(alone, n=10, method="inclusive")
        if deciles[8] - deciles[0] <= 0.25 * statistics.median(alone):
            compared += sum(beside for _, beside in slow)
            lost += len(slow) * (statistics.median(duration for duration, _ in slow) - statistics.median(alone))
    return total, compared, lost


@pytest.mark.parametrize("run", ["stage0", "stage1", "stage2", "stage3"])
def test_the_tax_is_what_a_second_reading_finds(run: str, tmp_path: Path) -> None:
    analysis, _, _ = analyze([TRACES / run], tmp_path / "out", AnalyzeOptions(hta=False))
    assert analysis.overlap_tax is not None
    for tax in analysis.overlap_tax.ranks:
        total, compared, lost = second_reading(TRACES / run / f"rank_{tax.rank}.pt.trace.json.gz")
        assert tax.beside_ns == total
        assert tax.compared_ratio == (pytest.approx(compared / total) if total else None)
        assert tax.lost_ns == (pytest.approx(lost) if total and 2 * compared >= total else None)


def test_stage1_wins_by_overlap_what_stage3_pays_for_waiting(tmp_path: Path) -> None:
    found = {}
    for run in ("stage1", "stage3"):
        analysis, _, _ = analyze([TRACES / run], tmp_path / run, AnalyzeOptions(hta=False))
        assert analysis.overlap_tax is not None
        found[run] = analysis.overlap_tax.ranks[0]
    assert all(tax.verdict is TaxVerdict.MEASURED for tax in found.values())
    assert [round(tax.slowdown_ratio or 0, 2) for tax in found.values()] == [1.45, 1.36]
    # both lose 2 to 3 ms; at stage 3 what runs beside compute is mostly waiting for the other rank
    assert [round((tax.net_ns or 0) / 1e6, 1) for tax in found.values()] == [9.6, -1.1]
