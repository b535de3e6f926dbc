"""Several runs side by side: manifests and analyses in, one :class:`~zerotrace.model.Comparison` out."""

from __future__ import annotations

from zerotrace.analysis.compare.runs import compare, study_exposed_ns, unprofiled_step_ns

__all__ = ["compare", "study_exposed_ns", "unprofiled_step_ns"]
