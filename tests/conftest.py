"""Fixtures that all tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.builders import TraceBuilder
from zerotrace.analysis.run import AnalyzeOptions, analyze
from zerotrace.model import Analysis

pytest_plugins = ["tests.captures", "tests.stores"]

Analyse = Callable[..., Analysis]


@pytest.fixture
def analyse(tmp_path: Path) -> Analyse:
    """Writes the given traces as one run and analyses it, without HTA and in this process."""

    def run(*traces: TraceBuilder, **options: object) -> Analysis:
        for trace in traces:
            trace.write(tmp_path / "run")
        chosen = AnalyzeOptions(**{"hta": False, "jobs": 1, "force": True, **options})  # type: ignore[arg-type]
        return analyze([tmp_path / "run"], options=chosen)[0]

    return run


@pytest.fixture
def collectives(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    """The table of the run that `analyse` wrote, as rows."""
    return lambda: pq.read_table(tmp_path / "run" / "analysis" / "collectives.parquet").to_pylist()
