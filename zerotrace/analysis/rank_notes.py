"""What is to be said of one rank beside its figures."""

from __future__ import annotations

from collections.abc import Sequence

from zerotrace.analysis.labelled import UnreadLabels
from zerotrace.analysis.trust import RowCounts
from zerotrace.model import STEP_ALL, Attribution, Diagnostic, Level, StepPartition

#: Two ways of giving rows to steps that differ by more than this part of the span deserve a word.
ATTRIBUTION_TOLERANCE = 0.01

_MAX_NAME = 60


def note_unknown_steps(file: str, partition: Sequence[StepPartition]) -> list[Diagnostic]:
    """Says which steps have no device rows."""
    steps = sorted({part.step for part in partition if not part.known})
    if not steps:
        return []
    named = ", ".join(map(str, steps))
    return [
        Diagnostic(
            code="steps_without_device_events",
            level=Level.WARNING,
            file=file,
            count=len(steps),
            message=f"{file}: no device rows in step {named}: unknown there, and left out of every mean",
            hint="the records of these steps were lost or not taken; capture fewer steps at a time",
        )
    ]


def note_attribution_differs(
    file: str, clipped: Sequence[StepPartition], launched: Sequence[StepPartition], used: Attribution
) -> list[Diagnostic]:
    """Says when a step's own work and the work inside its window are not the same."""
    by_step = {(part.device, part.step): part for part in launched}
    worst, where = 0.0, 0
    for part in clipped:
        other = by_step[part.device, part.step]
        if part.step == STEP_ALL or not (part.known and other.known):
            continue
        for mine, theirs in (
            (part.compute_ns, other.compute_ns),
            (part.comm_ns, other.comm_ns),
            (part.exposed_ns, other.exposed_ns),
        ):
            share = abs((mine or 0) - (theirs or 0)) / part.span_ns
            if share > worst:
                worst, where = share, part.step
    if worst <= ATTRIBUTION_TOLERANCE:
        return []
    other_name = "launch" if used is Attribution.CLIP else "clip"
    return [
        Diagnostic(
            code="attribution_differs",
            level=Level.INFO,
            file=file,
            message=f"{file}: the device runs behind the host: clipped to step windows and attributed by launch differ "
            f"by up to {100 * worst:.1f} % of the span (step {where}); figures here are by {used.value}",
            hint=f"--attribute {other_name} gives the other view",
        )
    ]


def note_unlinked_rows(file: str, counts: Sequence[RowCounts]) -> list[Diagnostic]:
    """Says how many device rows have no launch."""
    first = [count.first_unlinked for count in counts if count.first_unlinked is not None]
    if not first:
        return []
    num_unlinked = sum(count.num_unlinked for count in counts)
    return [
        Diagnostic(
            code="kernels_without_launch",
            level=Level.INFO,
            file=file,
            count=num_unlinked,
            event=min(first),
            message=f"{file}: {num_unlinked} device rows whose launch is not in the trace",
            hint="expected at the start of a window, and in traces taken without CPU activities",
        )
    ]


def note_unread_labels(file: str, unread: UnreadLabels | None) -> list[Diagnostic]:
    """Says how many labels could not be read."""
    if unread is None:
        return []
    return [
        Diagnostic(
            code="labels_unread",
            level=Level.WARNING,
            file=file,
            count=unread.count,
            message=f"{file}: {unread.count} of {unread.num_labels} labels are malformed or of another version, and "
            f"were not read: {_shortened(unread.example)!r}; what they would tell is inferred, or unknown",
            hint="capture again, or analyze with the zerotrace that captured",
        )
    ]


def _shortened(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[: _MAX_NAME - 1]}…"
