"""A run's unprofiled step held against that of a single device: what the study calls exposed."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from zerotrace.analysis.verdict import slowest_step_ns
from zerotrace.analysis.work import differences, work_of
from zerotrace.errors import ComparisonError
from zerotrace.model import RunManifest, Verdict, WindowKind


def study_exposed_ns(step_ns: float | None, baseline_step_ns: float | None) -> float | None:
    """``step − baseline``, both unprofiled: what the study calls exposed; ``None`` where one is unknown.

    It holds all that a run does more slowly than one device alone: exposed communication, and just as well the time
    that the engine takes on the host. At stages 1 to 3 it is less by what a rank's optimizer saves, which updates its
    share of the parameters alone.
    """
    return None if step_ns is None or baseline_step_ns is None else step_ns - baseline_step_ns


def unprofiled_step_ns(manifest: RunManifest) -> float | None:
    """Median over the timed steps of the slowest rank's time; ``None`` without a timed window."""
    return slowest_step_ns(manifest.ranks, WindowKind.TIMED)


class Baseline(Struct, frozen=True, kw_only=True):
    """A run on a single device."""

    name: str
    manifest: RunManifest
    digest: str
    """Of the manifest: the same name may come to stand for another run."""

    @property
    def mark(self) -> str:
        """Tells this baseline from any other."""
        return f"{self.name}, manifest {self.digest}"


def check_baseline(baseline: Baseline, run_name: str, manifest: RunManifest | None) -> None:
    """Refuse a baseline that says nothing about a run.

    Args:
        baseline: the run on a single device.
        run_name: the run that is held against it.
        manifest: its manifest, if it has one.

    Raises:
        ComparisonError: the two do not do the same work, the baseline has several ranks, or a step time is missing.
    """
    if manifest is None:
        raise ComparisonError(
            f"{run_name} has no manifest, so that its unprofiled step is unknown",
            code="no_manifest",
            hint="leave out --baseline, or analyze the folder that `zerotrace capture` wrote",
        )
    if baseline.manifest.world_size != 1:
        raise ComparisonError(
            f"the baseline {baseline.name} is a run of {baseline.manifest.world_size} ranks; expected a single device",
            code="baseline_not_single",
            hint="capture one with `zerotrace capture --engine single`",
        )
    if differs := differences(work_of(baseline.manifest), work_of(manifest)):
        raise ComparisonError(
            f"the baseline {baseline.name} does other work than {run_name}: {'; '.join(differs)}",
            code="baseline_differs",
            hint="capture a baseline with the model, micro-batch and sequence of this run",
        )
    for name, its_manifest in ((run_name, manifest), (baseline.name, baseline.manifest)):
        if unprofiled_step_ns(its_manifest) is None:
            raise ComparisonError(
                f"{name} has no timed window, so that its unprofiled step is unknown",
                code="no_timed_window",
                hint="capture it with the window `timed`, which is among the defaults",
            )


def with_baseline(verdict: Verdict, baseline: Baseline) -> Verdict:
    """A verdict with the study's figure, for a run that :func:`check_baseline` has let through."""
    step_ns = unprofiled_step_ns(baseline.manifest)
    return replace(
        verdict,
        baseline_name=baseline.name,
        baseline_step_ns=step_ns,
        study_exposed_ns=study_exposed_ns(verdict.unprofiled_step_ns, step_ns),
    )
