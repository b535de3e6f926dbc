"""Several runs side by side: the table of the study, and how far the runs may be compared at all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from zerotrace.analysis.ablation import find_ablations
from zerotrace.analysis.baseline import study_exposed_ns, unprofiled_step_ns
from zerotrace.analysis.captured import CapturedRun
from zerotrace.analysis.compare.causes import step_causes
from zerotrace.analysis.compare.deltas import find_deltas
from zerotrace.analysis.compare.headline import headline
from zerotrace.analysis.compare.held import held_memory
from zerotrace.analysis.compare.labels import label_runs
from zerotrace.analysis.compare.losses import check_losses, loss_words
from zerotrace.analysis.compare.repeats import find_repeats
from zerotrace.analysis.compare.sent import sent_bytes
from zerotrace.analysis.compare.settings import differing_settings
from zerotrace.analysis.diagnostics import STAGE_CONTRADICTS
from zerotrace.analysis.findings.noise import FEW_STEPS, median_error, slowest_steps
from zerotrace.analysis.memory.ladder import Rung, ladder, rung
from zerotrace.analysis.work import differences, tokens_a_step, work_of
from zerotrace.model import Analysis, ComparedRun, Comparison, LadderStep, LossCheck, WindowKind
from zerotrace.units import NS_PER_S
from zerotrace.version import VERSION


def compare(runs: Sequence[CapturedRun], notes: Sequence[str] = ()) -> Comparison:
    """Puts runs side by side.

    The baseline is the first run on a single device without an engine, else the first on a single device. Formula of
    the study's exposed time: ``unprofiled step − baseline's unprofiled step``.

    Args:
        runs: at least one.
        notes: what was noticed when they were read.
    """
    alone = [run for run in runs if run.manifest.world_size == 1]
    baseline = next((run for run in alone if run.manifest.engine == "single"), alone[0] if alone else None)
    first = work_of(runs[0].manifest)
    differs = [differences(work_of(run.manifest), first) for run in runs]
    checks = [_check_losses(runs, place, differs) for place in range(len(runs))]
    compared = tuple(
        _compare(run, label, baseline, (*told, *_loss_words(check)), check)
        for run, label, told, check in zip(runs, label_runs(runs), differs, checks, strict=True)
    )
    repeats = find_repeats(runs, compared)
    return Comparison(
        zerotrace_version=VERSION,
        runs=compared,
        headline=headline(repeats, compared),
        baseline=baseline.name if baseline else None,
        ablations=tuple(find_ablations(runs)),
        ladder=_ladder(runs),
        settings=differing_settings([run.manifest for run in runs]),
        repeats=repeats,
        deltas=find_deltas(repeats, compared),
        notes=(*notes, *_notes(compared), *_unchecked(runs, differs, checks), *_doubts(runs)),
    )


def _ladder(runs: Sequence[CapturedRun]) -> tuple[LadderStep, ...]:
    """The ladder of stages among runs of the first one's model on as many ranks."""
    rungs = [found for run in runs if (found := rung(run.manifest)) is not None]
    alike = [found for found in rungs if _size(found) == _size(rungs[0])]
    return ladder(alike)


def _size(found: Rung) -> tuple[int, int]:
    return found.paper.num_params, found.paper.world_size


def _check_losses(runs: Sequence[CapturedRun], place: int, differs: Sequence[tuple[str, ...]]) -> LossCheck | None:
    """The losses of a run beside the first one's of as many ranks; without such a run, beside those of the first."""
    run, earlier = runs[place], [other for other, told in zip(runs[:place], differs) if not told]
    if differs[place]:
        return None
    alike = [other for other in earlier if other.manifest.world_size == run.manifest.world_size]
    for other in (*alike, *earlier):
        if (check := check_losses(run.manifest, other.manifest, other.name)) is not None:
            return check
    return None


def _loss_words(check: LossCheck | None) -> tuple[str, ...]:
    return () if check is None or check.equal else (loss_words(check),)


def _compare(
    run: CapturedRun,
    label: str,
    baseline: CapturedRun | None,
    differs: tuple[str, ...],
    losses: LossCheck | None,
) -> ComparedRun:
    manifest, analysis = run.manifest, run.analysis
    verdict, gathers = (analysis.verdict, analysis.gathers) if analysis else (None, None)
    hidden = gathers.total.totals if gathers and gathers.total else None
    step_ns, tokens = unprofiled_step_ns(manifest), tokens_a_step(manifest)
    exposed = None
    if baseline not in (None, run) and not differences(work_of(manifest), work_of(baseline.manifest)):
        exposed = study_exposed_ns(step_ns, unprofiled_step_ns(baseline.manifest))
    causes, no_causes = step_causes(analysis, step_ns)
    resident, peak = held_memory(run)
    timed = slowest_steps(manifest.ranks, WindowKind.TIMED)
    return ComparedRun(
        name=run.name,
        label=label,
        engine=manifest.engine,
        scheme=manifest.sharing.name if manifest.sharing else None,
        stage=manifest.stage,
        world_size=manifest.world_size,
        num_params=manifest.model.num_params,
        tokens=tokens,
        resident_bytes=_most(rank.resident_bytes for rank in manifest.ranks),
        peak_bytes=_most(rank.peak_bytes for rank in manifest.ranks),
        step_ns=step_ns,
        tokens_per_s=tokens * NS_PER_S / step_ns if tokens and step_ns else None,
        exposed_ns=verdict.exposed_ns if verdict else None,
        dilation_ratio=verdict.dilation_ratio if verdict else None,
        study_exposed_ns=exposed,
        differences=differs,
        loss_check=losses,
        step_error_ns=median_error(timed) if len(timed) >= FEW_STEPS else None,
        causes=causes,
        no_causes=no_causes,
        resident=resident,
        peak=peak,
        sent=sent_bytes(analysis.wire) if analysis else None,
        overlap_ratio=_overlap_ratio(analysis),
        hidden_ratio=hidden.hidden_ratio if hidden else None,
        hidden_transfer_ratio=hidden.hidden_transfer_ratio if hidden else None,
    )


def _overlap_ratio(analysis: Analysis | None) -> float | None:
    """Σ overlapped / Σ comm over ranks' mean steps; ``None`` where there is no communication."""
    comm = sum(rank.comm_ns for rank in analysis.ranks) if analysis else 0.0
    return sum(rank.overlapped_ns for rank in analysis.ranks) / comm if analysis and comm else None


def _notes(runs: Sequence[ComparedRun]) -> Iterable[str]:
    for run in runs:
        if run.differences:
            yield f"{run.name} does other work than {runs[0].name}, and does not compare: {'; '.join(run.differences)}."
        if run.step_ns is None:
            yield f"{run.name} has no timed window, so that its step time is unknown."


def _unchecked(
    runs: Sequence[CapturedRun], differs: Sequence[tuple[str, ...]], checks: Sequence[LossCheck | None]
) -> Iterable[str]:
    """Runs that say to do the same work, of which no loss tells whether they do."""
    first = runs[0].manifest.seed
    for run, told, check in zip(runs[1:], differs[1:], checks[1:]):
        if told or check is not None:
            continue
        seed = run.manifest.seed
        other = seed is not None and first is not None and seed != first
        why = f"its seed is {seed}, that of {runs[0].name} {first}" if other else "seeds or losses are not known"
        yield f"No loss tells whether {run.name} does the same work as {runs[0].name}: {why}."


def _doubts(runs: Sequence[CapturedRun]) -> Iterable[str]:
    for run in runs:
        for note in run.analysis.diagnostics if run.analysis is not None else ():
            if note.code == STAGE_CONTRADICTS:
                yield f"In {run.name} {note.message}."
        if run.analysis is not None and any(rank.bounds is not None for rank in run.analysis.ranks):
            yield (
                f"In {run.name} kernels run that may be communication, and nothing tells: its compute, exposed and "
                "hidden times are bounds at best; its own report shows them."
            )


def _most(values: Iterable[int | None]) -> int | None:
    return max((value for value in values if value is not None), default=None)
