"""Several runs side by side: manifests and analyses in, one :class:`~zerotrace.model.Comparison` out."""

from __future__ import annotations

from zerotrace.analysis.compare.runs import compare

__all__ = ["compare"]
