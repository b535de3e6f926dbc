"""A run against conditions and a baseline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from zerotrace.analysis.check.conditions import Condition
from zerotrace.analysis.check.figures import FIGURES
from zerotrace.analysis.check.noise import Band, StepFigure, bytes_band, part_band, step_band
from zerotrace.analysis.findings.noise import FEW_STEPS
from zerotrace.analysis.work import differences, work_of
from zerotrace.errors import ComparisonError
from zerotrace.model import Analysis, Check, CheckedCondition, ComparedFigure, Judgement, Level
from zerotrace.version import VERSION

# How long a step takes: without a profiler, and with it.
_STEP, _SPAN = "unprofiled_step_ns", "span_ns"

#: The profiled step, and parts of it, that are held against the baseline's: more of any is worse.
_PARTS: dict[str, StepFigure] = {
    _SPAN: lambda part: part.span_ns,
    "compute_ns": lambda part: part.compute_ns,
    "exposed_transfer_ns": lambda part: part.exposed_transfer_ns,
    "exposed_wait_ns": lambda part: part.exposed_wait_ns,
    "blocking_ns": lambda part: part.blocking_ns,
}

_BYTES = ("peak_bytes", "resident_bytes", "sent_bytes")


def check(
    run: Analysis,
    conditions: Sequence[Condition] = (),
    baseline: Analysis | None = None,
    baseline_name: str | None = None,
) -> Check:
    """Judges a run.

    Args:
        run: its analysis.
        conditions: each names a figure of :data:`FIGURES`; the check fails if one holds.
        baseline: the analysis of a run of the same work on as many ranks; the check fails if a figure of this run is
            worse by more than the noise.
        baseline_name: how to call it.

    Raises:
        ComparisonError: the two runs do different work, or were analysed differently.
    """
    if baseline is not None:
        _refuse_other_work(run, baseline, baseline_name or baseline.run_name)
    judged = tuple(_judge(run, condition) for condition in conditions)
    compared = () if baseline is None else _compare_all(run, baseline)
    return Check(
        zerotrace_version=VERSION,
        run_name=run.run_name,
        conditions=judged,
        baseline_name=None if baseline is None else baseline_name or baseline.run_name,
        figures=compared,
        failed=any(c.holds for c in judged) or any(figure.judgement is Judgement.WORSE for figure in compared),
        unknown=(*_failed_ranks(run, baseline), *_unknown(judged, compared)),
    )


def _failed_ranks(*runs: Analysis | None) -> Iterator[str]:
    """Errors that a result was made in spite of: the rank that is not in it may be the worst of all."""
    for run in filter(None, runs):
        yield from (f"of {run.run_name}, {note.message}" for note in run.diagnostics if note.level is Level.ERROR)


def _unknown(judged: Iterable[CheckedCondition], compared: Iterable[ComparedFigure]) -> Iterator[str]:
    """Conditions on unknown figures, and a baseline of which no step time compares."""
    for condition in judged:
        if condition.holds is None:
            yield f"{condition.figure} is unknown, since {condition.reason}"
    steps = [figure for figure in compared if figure.figure in (_STEP, _SPAN)]
    if steps and all(figure.judgement is Judgement.UNKNOWN for figure in steps):
        yield f"the step time does not compare with the baseline's: {steps[0].reason}"


def _compare_all(run: Analysis, baseline: Analysis) -> tuple[ComparedFigure, ...]:
    """The figures that say whether a run became worse.

    The profiled step counts only where the unprofiled one does not compare: it is also what the profiler made of it.
    """
    found = {name: _compare(run, baseline, name) for name in (_STEP, *_PARTS, *_BYTES)}
    if found[_STEP].judgement is not Judgement.UNKNOWN:
        del found[_SPAN]
    return tuple(found.values())


def _judge(run: Analysis, condition: Condition) -> CheckedCondition:
    spec = FIGURES[condition.figure]
    value = spec.value(run)
    return CheckedCondition(
        condition=condition.text,
        figure=spec.name,
        unit=spec.unit,
        value=value,
        threshold=condition.threshold,
        holds=None if value is None else condition.holds(value),
        reason=spec.reason(run) if value is None else None,
    )


def _compare(run: Analysis, baseline: Analysis, name: str) -> ComparedFigure:
    spec = FIGURES[name]
    value, theirs = spec.value(run), spec.value(baseline)
    band, reason = None, None
    if value is None or theirs is None:
        which, whose = ("this run", run) if value is None else ("the baseline", baseline)
        reason = f"in {which} it is unknown, since {spec.reason(whose)}"
    else:
        band = _band(run, baseline, name, theirs)
        if band is None:
            reason = f"fewer than {FEW_STEPS} timed steps do not tell its noise"
    judgement = Judgement.UNKNOWN
    if value is not None and theirs is not None and band is not None:
        judgement = _judgement(value - theirs, band)
        if judgement is Judgement.EQUAL and band.width > max(value, theirs) > 0:
            judgement, reason = Judgement.UNKNOWN, "so few profiled steps leave it a noise that is larger than itself"
    return ComparedFigure(
        figure=name,
        unit=spec.unit,
        value=value,
        baseline=theirs,
        noise=band.noise if band else None,
        band=band.width if band else None,
        judgement=judgement,
        reason=reason,
    )


def _band(run: Analysis, baseline: Analysis, name: str, theirs: float) -> Band | None:
    if name == _STEP:
        return step_band(run, baseline)
    return part_band(run, baseline, _PARTS[name]) if name in _PARTS else bytes_band(theirs)


def _judgement(difference: float, band: Band) -> Judgement:
    if abs(difference) <= band.width:
        return Judgement.EQUAL
    return Judgement.WORSE if difference > 0 else Judgement.BETTER


def _refuse_other_work(run: Analysis, baseline: Analysis, name: str) -> None:
    found = [] if run.mode is baseline.mode else [f"{baseline.mode.value} time, not {run.mode.value} time"]
    if run.attribution is not baseline.attribution:
        found.append(f"attributed by {baseline.attribution.value}, not by {run.attribution.value}")
    sizes = [_world_size(analysis) for analysis in (baseline, run)]
    if sizes[0] != sizes[1]:
        found.append(f"{sizes[0]} ranks, not {sizes[1]}")
    if run.manifest is not None and baseline.manifest is not None:
        found += differences(work_of(baseline.manifest), work_of(run.manifest))
    if found:
        raise ComparisonError(
            f"the baseline {name} does not compare: {'; '.join(found)}",
            code="baseline_differs",
            hint="take a baseline of the same model, batch, precision and ranks, analysed with the same options",
        )


def _world_size(analysis: Analysis) -> int:
    if analysis.manifest is not None:
        return analysis.manifest.world_size
    return next((s.world_size for s in analysis.sources if s.world_size), len(analysis.sources))
