"""A capture as comparisons take it: what was run, and what was found in it."""

from __future__ import annotations

from dataclasses import dataclass

from zerotrace.model import Analysis, RunManifest


@dataclass(frozen=True, kw_only=True)
class CapturedRun:
    """What is known of one run."""

    name: str
    manifest: RunManifest
    analysis: Analysis | None = None
    """``None`` where it was not analysed."""
