"""Section 7: what the words mean, what the rules took for what, HTA beside ours, and what was run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from msgspec import Struct

from zerotrace.model import Analysis, Attribution, Category, ClockReport, HostClock, HtaOverlap, KernelTime, Mode
from zerotrace.report.summary import UNKNOWN
from zerotrace.report.words import joined, shown, tell
from zerotrace.units import NS_PER_MS, format_count, format_ns

#: Recorded variables that nobody chose for the run: a label of the container image, and what a capture on the CPU
#: sets by itself.
_NOT_CHOSEN = frozenset({"NCCL_VERSION", "DS_ACCELERATOR", "GLOO_SOCKET_IFNAME"})

#: Hosts in the table of clocks.
MAX_HOSTS = 64

_SHELL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Definition(Struct, frozen=True):
    """One word of the page."""

    term: str
    formula: str | None
    meaning: str
    role: str | None = None
    """The colour in which figures draw it."""


class HtaComparison(Struct, frozen=True):
    """HTA's figure and ours for one quantity of one rank."""

    rank: int
    quantity: str
    unit: str
    """``%`` or ``ns``."""
    hta: float | None
    ours: float | None
    difference: float | None
    note: str | None

    def text(self, value: float | None, points: bool = False) -> str:
        """One of the values with its unit; the difference of two percentages is in points."""
        if value is None:
            return UNKNOWN
        if self.unit == "ns":
            return f"{milliseconds(value)} ms"
        return f"{signed(f'{value:.2f}')} {'points' if points else '%'}"


def milliseconds(value_ns: float | None) -> str:
    """Milliseconds with three digits behind the point, thousands set apart; ``–`` for unknown."""
    return UNKNOWN if value_ns is None else signed(f"{value_ns / NS_PER_MS:,.3f}")


def signed(text: str) -> str:
    """A number with a true minus sign, and with none where all its digits are zero."""
    return text.replace("-", "−" if any(digit in text for digit in "123456789") else "")


def definitions(mode: Mode, has_baseline: bool = False, has_gathers: bool = False) -> tuple[Definition, ...]:
    """The words of the page in the order in which one needs them; some only with a baseline, or with gathers."""
    device = mode is Mode.DEVICE
    row = "kernel, copy or set on a device" if device else "operator or gloo call on a host thread"
    comm_rule = (
        "Rows that carry collective metadata or, without it, a name of NCCL, RCCL or another known library."
        if device
        else "The gloo:* annotations of the backend."
    )
    compute_rule = (
        "Kernels that are neither communication nor a copy."
        if device
        else "Operators on threads that run no gloo call, without the c10d wrappers."
    )
    nothing = "Nothing runs on the device." if device else "No operator and no gloo call runs."
    idle_formula = "span − compute − exposed − copy only"
    return (
        Definition("step", None, "The host's annotation ProfilerStep#N: a window [start, end) on one rank."),
        Definition(
            "busy time", "|a ∪ b ∪ …|", f"Time during which at least one {row} runs. Rows that run at once count once."
        ),
        Definition("compute", "|compute rows|", compute_rule, "compute"),
        Definition("comm", "overlapped + exposed", comm_rule),
        Definition(
            "overlapped",
            "|comm ∩ compute|",
            "Communication while compute runs: it costs no time of its own.",
            "overlapped",
        ),
        Definition(
            "exposed",
            "|comm \\ compute|",
            "Communication with no compute beside it, waiting for other ranks included: "
            "an upper bound of what faster communication could win.",
            "exposed",
        ),
        *_exposed_parts(device),
        Definition(
            "copy only",
            "|copy \\ (compute ∪ comm)|",
            "Copies and sets while neither compute nor communication runs.",
            "copy",
        ),
        Definition("idle", idle_formula, nothing, None if device else "idle"),
        *(_idle_parts() if device else ()),
        Definition(
            "span",
            "compute + exposed + copy only + idle",
            "Length of the step window. The sum closes to the nanosecond, or the analysis stops.",
        ),
        Definition(
            "overlap ratio",
            "overlapped ÷ comm",
            "The share of communication that is hidden; unknown where there is none.",
        ),
        *_traffic_words(),
        *(_gather_words() if has_gathers else ()),
        Definition(
            "dilation",
            "profiled step ÷ unprofiled step",
            "What the profiler itself costs, where it is above 1; below, the noise of the steps is larger. "
            "Every time read from a trace contains it.",
        ),
        *(_OF_BASELINE if has_baseline else ()),
        Definition(
            "resident, peak",
            None,
            "Memory allocated after a step, and the most during one, as the allocator counts it.",
        ),
    )


_OF_BASELINE = (
    Definition(
        "step − baseline",
        "unprofiled step − unprofiled step of one device alone",
        "What the study calls exposed. It holds exposed communication and all else that costs this run time which one "
        "device does not spend, the engine’s on the host above all; and where optimizer states are sharded it is "
        "less by what each rank’s optimizer saves.",
    ),
)


def _exposed_parts(device: bool) -> tuple[Definition, ...]:
    """Exposed time taken apart: by the other ranks, and by what the host had launched."""
    across = (
        Definition(
            "exposed transfer",
            "exposed from max(start over ranks) on",
            "Exposed time after the last rank has entered the collective: from then on all of them move data.",
            "exposed",
        ),
        Definition(
            "waiting for a rank",
            "exposed − exposed transfer",
            "Exposed time before the last rank has entered the collective: faster links win nothing of it.",
            "waiting",
        ),
    )
    if not device:
        return across
    return (
        *across,
        Definition(
            "queued",
            "exposed ∩ [launch of the next compute kernel returned, …)",
            "The next compute kernel has been launched already, and the collective holds it back.",
        ),
        Definition(
            "sync",
            "exposed ∩ [synchronising call) before that launch",
            "The next compute kernel is not launched yet, because its thread stands in a call that waits for the "
            "device.",
        ),
        Definition(
            "shadow",
            "exposed − queued − sync",
            "The host is busy elsewhere and would launch no earlier: a faster collective wins nothing.",
        ),
        Definition("blocking", "queued + sync", "The part of exposed time that faster communication could win back."),
    )


def _idle_parts() -> tuple[Definition, ...]:
    """Idle time taken apart: in a gap [a, b) before the row whose launch call returned at L."""
    return (
        Definition(
            "host-bound",
            "min(max(L − a, 0), b − a)",
            "Idle until L, when the host had launched the row that ends the gap [a, b): the device waits for the host.",
            "host",
        ),
        Definition(
            "stalled", "(b − a) − host-bound", "Idle after L: launched, but held back by a dependency or the queue."
        ),
        Definition("tail", "window's end − last row's end", "Idle after the last row of the window."),
        Definition(
            "unlinked",
            "idle − host-bound − stalled − tail",
            "Idle before a row whose launch is not in the trace, so that its cause is unknown.",
        ),
    )


def _traffic_words() -> tuple[Definition, ...]:
    """Collectives over ranks, and what they send."""
    return (
        Definition(
            "wait, skew",
            "max(start over ranks) − own start; − earliest start",
            "How long one rank, and the first one, waits for the last member of a collective to start.",
        ),
        Definition(
            "transfer", "min(duration over ranks)", "What a collective takes once all of its members have started."
        ),
        Definition(
            "size, S", None, "Bytes of the output of a gather, of the input of everything else. A GB is 10⁹ bytes."
        ),
        Definition(
            "algbw, busbw",
            "S ÷ transfer; algbw × 2(n−1)/n, (n−1)/n or 1",
            "Bandwidths as nccl-tests has them: the factor is that of all-reduce, of all-gather, reduce-scatter and "
            "all-to-all, and of the others.",
        ),
        Definition(
            "sent",
            "S × 2(n−1)/n or S × (n−1)/n",
            "What a rank of n sends for an all-reduce, and for any other collective, as the mean over a ring.",
        ),
        Definition(
            "wire ratio",
            "sent a step ÷ (2Ψ bytes × (N−1)/N)",
            "2 for an all-reduce of gradients of two bytes; in theory 2 at stages 0 to 2, and 3 at stage 3.",
        ),
    )


def _gather_words() -> tuple[Definition, ...]:
    """Stage 3's gathers of parameters."""
    return (
        Definition(
            "gather",
            "hidden + exposed",
            "One submission of parameters by DeepSpeed's coordinator, with all collectives that it launches: a demand "
            "for the module about to run, a prefetch for later ones, or the refresh of persisted parameters.",
        ),
        Definition(
            "hidden", "|gather ∩ compute|", "Gather time with compute running on the same device.", "overlapped"
        ),
        Definition(
            "hidden ratio",
            "Σ hidden ÷ Σ gather",
            "Over all gather time, and over transfer alone: what is left once the last rank has arrived.",
        ),
        Definition(
            "slack",
            "need − end of the gather",
            "Need is the start of the first compute of the first module that uses one of the parameters.",
        ),
        Definition("late", None, "A prefetch of which some exposed time is blocking, however little."),
        Definition(
            "cold", None, "A step without prefetch, because DeepSpeed has no complete record of the order of modules."
        ),
    )


def attribution_text(attribution: Attribution) -> str:
    """How rows were given to steps."""
    if attribution is Attribution.LAUNCH:
        return (
            "by launch: a row belongs, whole, to the step that launched it. "
            "The timeline shows rows where they ran, so that its sums can differ from the bars at the borders of steps."
        )
    return "by clock: a row that crosses the border of a step is cut there."


def kernel_rows(analysis: Analysis) -> tuple[KernelTime, ...]:
    """The names with the most time, by rank, most first."""
    return tuple(sorted(analysis.top_kernels, key=lambda k: (k.rank, -k.total_ns, k.name)))


def kernel_role(category: Category) -> str:
    """The colour of a category in a table; communication takes that of its exposed part."""
    return {Category.COMPUTE: "compute", Category.COMM: "exposed", Category.COPY: "copy"}[category]


def clock_text(clock: ClockReport) -> str:
    """How the clocks were compared, and what came of it."""
    if not clock.num_ends:
        return "No matched collective ends on all its members at one moment, so the clocks could not be compared."
    compared = tell(
        "A collective ends on all its members at one moment: {} ends were compared with those on the lowest rank. They "
        "differ by {} in the median and {} at worst",
        shown(clock.num_ends, format_count),
        shown(clock.residual_median_ns, format_ns),
        shown(clock.residual_worst_ns, format_ns),
    )
    if len(clock.hosts) == 1:
        return tell("{}; within one host nothing is taken off.", compared)
    return tell(
        "{}, once the offset of each host’s clock is taken off: the median difference to the first host. That is done "
        "where ranks are compared, and in the timeline; the tables keep each rank’s own clock.",
        compared,
    )


def clock_hosts(clock: ClockReport) -> tuple[HostClock, ...]:
    """The hosts that have a row: all, or those on which most is left where there are more than :data:`MAX_HOSTS`."""
    if len(clock.hosts) <= MAX_HOSTS:
        return clock.hosts
    worst = sorted(clock.hosts, key=lambda host: -(host.residual_worst_ns or 0))[:MAX_HOSTS]
    return tuple(host for host in clock.hosts if host in worst)


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as ranges: ``0–7, 16``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return joined(", ", (joined("–", map(shown, run)) for run in runs))


def hta_comparisons(analysis: Analysis) -> tuple[HtaComparison, ...]:
    """Five quantities a rank, HTA's beside ours."""
    overlap = () if analysis.hta is None else analysis.hta.overlap
    return tuple(row for entry in overlap for row in _hta_rows(entry))


def _hta_rows(entry: HtaOverlap) -> tuple[HtaComparison, ...]:
    rank = entry.rank
    return (
        HtaComparison(
            rank, "overlap", "%", entry.hta_overlap_percent, entry.our_overlap_percent,
            entry.overlap_difference_percent, entry.note,
        ),
        HtaComparison(
            rank, "compute", "ns", entry.hta_compute_ns, entry.our_compute_ns, entry.compute_difference_ns, None
        ),
        HtaComparison(
            rank, "non-compute", "ns", entry.hta_non_compute_ns, entry.our_non_compute_ns,
            entry.non_compute_difference_ns, None,
        ),
        HtaComparison(rank, "idle", "ns", entry.hta_idle_ns, entry.our_idle_ns, entry.idle_difference_ns, None),
        HtaComparison(rank, "total", "ns", entry.hta_total_ns, entry.our_total_ns, entry.total_difference_ns, None),
    )  # fmt: skip


def command_text(analysis: Analysis) -> str | None:
    """The command of the capture as one would type it, the variables that change what is measured in front."""
    manifest = analysis.manifest
    if manifest is None:
        return None
    variables = [
        f"{name}={shlex.quote(value)}"
        for name, value in sorted(manifest.environment.items())
        if name not in _NOT_CHOSEN and _SHELL_NAME.fullmatch(name)
    ]
    return " ".join((*variables, shlex.join(manifest.command)))


def has_notes(rows: Sequence[HtaComparison]) -> bool:
    """Whether any row says why HTA and we differ."""
    return any(row.note for row in rows)


def configuration_text(analysis: Analysis) -> str | None:
    """The whole DeepSpeed configuration, or the settings of another engine, indented JSON; ``None`` without either."""
    manifest = analysis.manifest
    told = None if manifest is None else manifest.engine_settings if manifest.ds_config is None else manifest.ds_config
    return None if told is None else json.dumps(told, indent=2, ensure_ascii=False, default=str)
