"""Puts the reports of all ranks together into the manifest of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from msgspec.structs import replace

from zerotrace.capture.ds_settings import plain_config
from zerotrace.capture.handoff import RankReport, RunFacts
from zerotrace.capture.models import MODELS
from zerotrace.capture.plan import BACKENDS
from zerotrace.capture.scrub import scrub_command, well_formed
from zerotrace.errors import CaptureError
from zerotrace.model import LabelsRecord, ModelShape, RunManifest, WindowKind
from zerotrace.version import VERSION


def build_manifest(
    reports: Sequence[RankReport],
    *,
    created: str,
    environment: Mapping[str, str],
    facts: RunFacts,
) -> RunManifest:
    """The manifest of a run.

    Args:
        reports: one a rank, in their order.
        created: start of the capture, ISO 8601, UTC.
        environment: the variables that change what is measured.
        facts: what was known beforehand; the engine itself has said the rest.

    Raises:
        CaptureError: the engine was none that is known, so that nothing can be said about its configuration.
    """
    first = reports[0]
    engine = facts.engine or first.engine
    if engine is None:
        raise unknown_engine()
    device = "cpu" if first.record.device == "cpu" else "cuda"
    own, program = MODELS.get(facts.program), well_formed(facts.program)
    return RunManifest(
        created=created,
        zerotrace_version=VERSION,
        command=scrub_command(facts.command),
        engine=engine.name,
        stage=engine.stage,
        world_size=len(reports),
        device=device,
        backend=BACKENDS[device],
        model=own.shape(first.num_params) if own else ModelShape(name=program, num_params=first.num_params),
        micro_batch=engine.micro_batch,
        sequence=facts.sequence,
        seed=facts.seed,
        ds_config=plain_config(engine.ds_config),
        engine_settings=plain_config(first.engine.settings) if first.engine is not None else None,
        buckets=first.buckets,
        shard_groups=first.shard_groups,
        versions=first.versions,
        environment=environment,
        losses=first.losses,
        ranks=tuple(report.record for report in reports),
        labels=_with_overhead(first.labels, reports),
        notes=tuple(map(well_formed, (*first.notes, *_without_tables(reports)))),
    )


def _without_tables(reports: Sequence[RankReport]) -> Iterator[str]:
    for report in reports:
        if report.no_tables is not None:
            yield f"rank {report.record.rank} has not read its own trace (--ingest): {report.no_tables}"


def unknown_engine() -> CaptureError:
    """An engine whose configuration nobody knows."""
    return CaptureError(
        "The session was given an engine that is neither DeepSpeed's nor one of torch's.",
        code="engine_unknown",
        hint="Pass the first of the values that deepspeed.initialize returns, or the model in torch's data "
        "parallelism, or an object that has it as `parallel`.",
    )


def _with_overhead(labels: LabelsRecord | None, reports: Sequence[RankReport]) -> LabelsRecord | None:
    """What the label hooks cost a step, by neighbours of which one has them."""
    if labels is None:
        return None
    labelled, without = (_slowest_ns(reports, kind) for kind in (WindowKind.LABELLED, WindowKind.UNLABELLED))
    if not labelled or not without:
        return labels
    # A host's speed drifts within seconds by more than the hooks cost: the difference of two medians holds that drift,
    # differences of neighbours do not (on two H200, of 60 pairs, a standard error of 1.1 % of a step instead of 2.1 %).
    cost_ns = median(mine - theirs for mine, theirs in zip(labelled, without))
    return replace(labels, overhead_ratio=1 + cost_ns / median(without))


def _slowest_ns(reports: Sequence[RankReport], kind: WindowKind) -> list[int]:
    """The slowest rank's time of each step of a window."""
    steps = [w.step_ns for report in reports for w in report.record.windows if w.kind is kind]
    return [max(ranks) for ranks in zip(*steps)]
