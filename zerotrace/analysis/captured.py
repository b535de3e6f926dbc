"""A capture as comparisons take it: what was run, and what was found in it."""

from __future__ import annotations

from msgspec import Struct

from zerotrace.model import Analysis, RunManifest


class CapturedRun(Struct, frozen=True, kw_only=True):
    """What is known of one run."""

    name: str
    manifest: RunManifest
    analysis: Analysis | None = None
    """``None`` where it was not analysed."""
