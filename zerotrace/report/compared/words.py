"""Differences as they are shown, and what the words of the page mean."""

from __future__ import annotations

from collections.abc import Callable

from zerotrace.model import Change, Delta, Quantity
from zerotrace.report.memory_words import signed_bytes
from zerotrace.report.method import Definition
from zerotrace.units import format_bytes, format_ns, format_traffic

QUANTITY_NAMES: dict[Quantity, str] = {
    Quantity.STEP: "step",
    Quantity.RESIDENT: "resident",
    Quantity.PEAK: "peak",
    Quantity.SENT: "sent",
}


def changes_of(delta: Delta) -> dict[Quantity, Change]:
    """The changes of a delta by quantity."""
    return {change.quantity: change for change in delta.changes}


def quantity_text(quantity: Quantity, value: float | None, sign: bool = False) -> str:
    """A figure with its unit; as a difference with its sign."""
    form: Callable[[float | None], str] = {
        Quantity.STEP: format_ns, Quantity.SENT: format_traffic,
    }.get(quantity, format_bytes)  # fmt: skip
    if value is None or not sign:
        return form(value)
    if form is format_bytes:
        return signed_bytes(value)
    return f"{'−' if value < 0 else '+' if value > 0 else ''}{form(abs(value))}"


WORDS = (
    Definition(
        "losses apart",
        "√mean((ours − theirs)² ÷ loss²)",
        "Rank 0’s losses after the same steps from the same seed, beside the first run’s of as many ranks; beside one "
        "of other ranks, the first loss alone. More than 1/128, the distance of two numbers of bf16, and the runs do "
        "not do the same work.",
    ),
    Definition(
        "step, unprofiled",
        "median over timed steps of the slowest rank’s time",
        "Measured without a profiler. Its standard error follows from how the timed steps vary.",
    ),
    Definition(
        "by cause",
        "profiled part × scale; Σ = step",
        "Parts of the profiled step: means over a rank’s steps, then over ranks. A profiler slows the host, so that "
        "devices idle longer and ranks wait longer for each other, and leaves the device’s own work as it is. So "
        "compute, transfer and copies keep their length, and waiting and idle time share the rest of the step. Where "
        "device work alone is longer than the step, and for runs on a CPU, all parts are scaled alike.",
    ),
    Definition(
        "exposed",
        "|comm \\ compute|",
        "Communication with no compute beside it, of the profiled step, on the rank with most of it.",
    ),
    Definition(
        "step − baseline",
        "step − step of one device alone",
        "What the study calls exposed. It holds all that a run does more slowly than one device, host time too.",
    ),
    Definition(
        "resident, peak",
        None,
        "Memory allocated after a timed step, and the most during one, on the rank with most. Owners are those of the "
        "memory window, whose steps may differ by some tensors.",
    ),
    Definition(
        "in theory",
        "16Ψ; 4Ψ + 12Ψ/N; 2Ψ + 14Ψ/N; 16Ψ/N",
        "Model states of a rank at stages 0 to 3, in bytes; activations and buffers are not in it. DDP is as stage 0, "
        "torch’s ZeroRedundancyOptimizer as stage 1, FSDP2 as stage 3.",
    ),
    Definition(
        "the engine’s ledger",
        None,
        "What this build of DeepSpeed, or torch’s engine, holds for the run’s configuration; at the peak, the highest "
        "instant of a step.",
    ),
    Definition(
        "wire ratio",
        "sent a step ÷ (2Ψ bytes × (N−1)/N)",
        "2 for an all-reduce of gradients of two bytes; in theory 2 at stages 0 to 2, for DDP and torch’s ZeRO-1, and "
        "for FSDP2 that keeps parameters for backward; 3 at stage 3 and for FSDP2 that gathers them again.",
    ),
    Definition(
        "equal",
        "|difference| ≤ noise",
        "Noise is the widest spread of repeats of one configuration, and for the step no less than twice the standard "
        "error of the difference. Without any noise, only what is the same is equal.",
    ),
)
