"""Rules that look for what costs a run most. Each is a small function over the analysis.

A rule yields a finding wherever it sees one; how it compares with the noise of the run, and with other findings, is
decided here, once for all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from msgspec import Struct

from zerotrace.analysis.findings import coordinator, gathers, host, memory, overlap, ranks, reductions, traffic
from zerotrace.analysis.findings.noise import step_noise_ns
from zerotrace.model import Analysis, Finding

Rule = Callable[[Analysis], Iterator[Finding]]

#: Every rule, in no order: findings are sorted by what they cost.
RULES: tuple[Rule, ...] = (
    *host.RULES,
    *memory.RULES,
    *gathers.RULES,
    *coordinator.RULES,
    *reductions.RULES,
    *traffic.RULES,
    *ranks.RULES,
    *overlap.RULES,
)


class _Scale(Struct, frozen=True, kw_only=True):
    """What the costs of a run are measured against."""

    step_ns: float
    noise_ns: float
    peak_bytes: float | None


def find(analysis: Analysis, rules: Iterable[Rule] = RULES) -> tuple[Finding, ...]:
    """All findings of a run, worst first; none whose cost or predicted gain lies within the noise of the step time.

    Worst is what takes the largest part of the step, or of the peak memory where it costs memory.

    Args:
        analysis: complete but for its findings.
        rules: what is looked for.
    """
    scale = _scale(analysis)
    if scale is None:
        return ()
    found = [finding for rule in rules for finding in rule(analysis)]
    audible = [finding for finding in found if _audible(finding, scale)]
    return tuple(sorted(audible, key=lambda finding: (-_weight(finding, scale), finding.code)))


def _audible(finding: Finding, scale: _Scale) -> bool:
    """Whether cost and predicted gain, as far as they are known, rise above the noise."""
    gain = finding.gain.step_ns if finding.gain else None
    return all(time is None or time > scale.noise_ns for time in (finding.cost_ns, gain))


def _scale(analysis: Analysis) -> _Scale | None:
    verdict = analysis.verdict
    if verdict.span_ns is None or not verdict.span_ns.median:
        return None
    return _Scale(
        step_ns=verdict.span_ns.median,
        noise_ns=step_noise_ns(analysis),
        peak_bytes=verdict.peak_bytes.max if verdict.peak_bytes else None,
    )


def _weight(finding: Finding, scale: _Scale) -> float:
    time = (finding.cost_ns or 0) / scale.step_ns
    memory = (finding.cost_bytes or 0) / scale.peak_bytes if scale.peak_bytes else 0.0
    return max(time, memory)
