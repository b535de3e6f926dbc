"""The words at the top of the page: what was read, the tiles of the verdict, the banner of diagnostics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from zerotrace.model import STEP_ALL, Analysis, Attribution, Mode, RankSummary, Spread
from zerotrace.units import format_bytes, format_count, format_ns

UNKNOWN = "–"

_ENGINES = {"deepspeed": "DeepSpeed"}
_VERSIONS = (("deepspeed", "DeepSpeed"), ("torch", "torch"), ("nccl", "NCCL"))


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One figure of the verdict. The values are those of the analysis, for whoever reads the page by program."""

    key: str
    label: str
    value: str
    note: str
    numbers: tuple[tuple[str, float], ...] = ()
    """Name and exact value, written to ``data-`` attributes."""
    dilated: bool = False
    """Read from a profiled step: the dilation of the profiler is in it."""


def header_facts(analysis: Analysis) -> tuple[str, ...]:
    """Engine and stage, model, Ψ, devices, versions: from the manifest, else what the traces say."""
    manifest = analysis.manifest
    if manifest is None:
        worlds = sorted({source.world_size for source in analysis.sources if source.world_size})
        backends = sorted({source.backend for source in analysis.sources if source.backend})
        ranks = _plural(len({source.rank for source in analysis.sources}), "rank")
        of_world = f" of {worlds[-1]}" if worlds and worlds[-1] != len(analysis.sources) else ""
        return tuple(part for part in (ranks + of_world, _device_names(analysis), ", ".join(backends)) if part)
    versions = ", ".join(f"{label} {manifest.versions[key]}" for key, label in _VERSIONS if key in manifest.versions)
    counts = Counter(rank.device for rank in manifest.ranks)
    devices = " + ".join(f"{count} × {name}" for name, count in counts.items())
    return (
        manifest.scheme if manifest.stage is None else f"{_engine_name(manifest.engine)} {manifest.scheme}",
        manifest.model.name,
        f"Ψ {format_parameters(manifest.model.num_params)}",
        devices or _plural(manifest.world_size, "rank"),
        manifest.backend,
        versions,
    )


def _engine_name(engine: str) -> str:
    return _ENGINES.get(engine.lower(), engine)


def format_parameters(count: int) -> str:
    """A count of parameters: ``774.1 M``."""
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if count >= limit:
            return f"{count / limit:.1f} {unit}"
    return str(count)


def reading_line(analysis: Analysis) -> str:
    """How much was read, in one sentence.

    For example ``Profiled steps 2 and 3 of 2 ranks; 371,584 events, read and analysed in 1.9 s.``
    """
    steps = sorted({p.step for p in analysis.partition})
    ranks = _plural(len({source.rank for source in analysis.sources}), "rank")
    events = _plural(sum(source.num_events for source in analysis.sources), "event")
    what = f"{ranks[0].upper()}{ranks[1:]}, no step window"
    if steps == [STEP_ALL]:
        what = f"The whole trace of {ranks}, without step windows"
    elif steps:
        what = f"Profiled {_steps_text(steps)} of {ranks}"
    elapsed = "" if analysis.elapsed_s is None else f", read and analysed in {format_ns(analysis.elapsed_s * 1e9)}"
    return f"{what}; {events}{elapsed}."


def trust_line(analysis: Analysis) -> str:
    """What the profiler did to the figures: dilation, or why it is unknown."""
    verdict = analysis.verdict
    if verdict.dilation_ratio is None or verdict.unprofiled_step_ns is None:
        return "Times are those of profiled steps; how much the profiler slows them is unknown here."
    unprofiled = f"without it the step takes {format_ns(verdict.unprofiled_step_ns)}"
    if verdict.dilation_ratio < 1:
        return (
            f"No dilation by the profiler is measurable here: profiled steps took {verdict.dilation_ratio:.2f} × as "
            f"long, so that noise is larger than its cost; {unprofiled}."
        )
    return f"The profiler dilates this run {verdict.dilation_ratio:.2f} ×; {unprofiled}."


def baseline_line(analysis: Analysis) -> str:
    """What the step is beside that of a single device, and why that is another figure than the trace's; or nothing."""
    verdict = analysis.verdict
    if verdict.baseline_name is None or verdict.study_exposed_ns is None:
        return ""
    alone = f"One device alone takes {format_ns(verdict.baseline_step_ns)} for the same work ({verdict.baseline_name})"
    difference = format_ns(abs(verdict.study_exposed_ns))
    if verdict.study_exposed_ns < 0:
        return f"{alone}, {difference} more than this step: step − baseline says nothing of communication here."
    exposed = format_spread(verdict.exposed_ns, format_ns)
    return (
        f"{alone}: by step − baseline, {difference} of the unprofiled step are exposed, beside {exposed} of the "
        "profiled one in the trace. The first figure holds all that this run does more slowly, host time too."
    )


def tiles_line(analysis: Analysis) -> str:
    """What the ranges of the tiles run over, and which tiles the profiler has a part in."""
    ranges = "A range runs over the ranks' mean steps."
    dilation = analysis.verdict.dilation_ratio
    if dilation is None:
        return ranges
    read = "All but the first tile and memory are read from profiled steps"
    if dilation < 1:
        return f"{ranges} {read}."
    return f"{ranges} {read}, × {dilation:.2f} as long as without the profiler."


def format_percent(ratio: float | None) -> str:
    """A ratio in per cent with one digit behind the point, so that figures of one column can be compared.

    ``9.2 %``; ``< 0.1 %`` and ``> 99.9 %`` for what is not quite nothing or all; ``–`` for unknown.
    """
    if ratio is None:
        return UNKNOWN
    if 0 < ratio < 0.0005:
        return "< 0.1 %"
    if 0.9995 <= ratio < 1:
        return "> 99.9 %"
    return f"{100 * ratio:.1f} %"


def verdict_tiles(analysis: Analysis) -> tuple[Tile, ...]:
    """The tiles of the verdict, unknown ones with their reason; that of prefetch only where something is gathered."""
    verdict = analysis.verdict
    silent = "no step has device rows" if analysis.mode is Mode.DEVICE else "no step has operators"
    by_launch = analysis.attribution is Attribution.LAUNCH and verdict.span_ns is not None
    return (
        _step_tile(analysis),
        _time_tile("compute", "Compute", verdict.compute_ns, _shares(analysis, lambda r: r.compute_ns), silent),
        _exposed_tile(analysis, silent),
        _overlap_tile(analysis, silent),
        *_prefetch_tile(analysis),
        _time_tile(
            "idle",
            "Idle",
            verdict.idle_ns,
            _shares(analysis, lambda r: r.idle_ns),
            "not defined by launch" if by_launch else silent,
        ),
        _memory_tile(analysis),
    )


def format_spread(spread: Spread | None, formatter: Callable[[float], str]) -> str:
    """Smallest to largest with the unit once: ``58–63 ms``; one figure where both read the same."""
    if spread is None:
        return UNKNOWN
    low, high = formatter(spread.min), formatter(spread.max)
    if low == high:
        return low
    if low.rsplit(" ", 1)[-1] == high.rsplit(" ", 1)[-1]:
        low = low.rsplit(" ", 1)[0]
    elif spread.min == 0:
        low = "0"
    return f"{low}–{high}"


def _step_tile(analysis: Analysis) -> Tile:
    verdict = analysis.verdict
    profiled = format_spread(verdict.span_ns, format_ns)
    numbers = _spread_numbers("span-ns", verdict.span_ns)
    if verdict.unprofiled_step_ns is None:
        reason = "no capture manifest" if analysis.manifest is None else "the capture timed no unprofiled step"
        note = f"{reason}; profiled {profiled}"
        return Tile(key="step", label="Step, unprofiled", value=UNKNOWN, note=note, numbers=numbers)
    dilation = ""
    if verdict.dilation_ratio is not None:
        measurable = verdict.dilation_ratio >= 1
        dilation = f", × {verdict.dilation_ratio:.2f}" if measurable else ", no dilation measurable"
    numbers += (("unprofiled-step-ns", verdict.unprofiled_step_ns),)
    if verdict.dilation_ratio is not None:
        numbers += (("dilation-ratio", verdict.dilation_ratio),)
    value, note = format_ns(verdict.unprofiled_step_ns), f"profiled {profiled}{dilation}"
    if verdict.baseline_step_ns is not None and verdict.study_exposed_ns is not None:
        note += f"; {format_ns(verdict.baseline_step_ns)} on one device"
        numbers += (("baseline-step-ns", verdict.baseline_step_ns), ("study-exposed-ns", verdict.study_exposed_ns))
    return Tile(key="step", label="Step, unprofiled", value=value, note=note, numbers=numbers)


def _shares(analysis: Analysis, figure: Callable[[RankSummary], float | None]) -> Spread | None:
    """Spread over ranks of ``figure / span``, each rank's time by that rank's own step."""
    pairs = ((figure(rank), rank.span_ns) for rank in analysis.ranks)
    return spread(time / span for time, span in pairs if time is not None and span)


def _time_tile(key: str, label: str, time: Spread | None, share: Spread | None, reason: str) -> Tile:
    if time is None:
        return Tile(key=key, label=label, value=UNKNOWN, note=reason)
    note = "of a profiled step" if share is None else f"{format_spread(share, format_percent)} of the profiled step"
    return Tile(
        key=key,
        label=label,
        value=format_spread(time, format_ns),
        note=note,
        numbers=_spread_numbers(f"{key}-ns", time) + _spread_numbers(f"{key}-share", share),
        dilated=True,
    )


def _exposed_tile(analysis: Analysis, silent: str) -> Tile:
    verdict = analysis.verdict
    shares = _shares(analysis, lambda r: r.exposed_ns)
    tile = _time_tile("exposed", "Exposed comm", verdict.exposed_ns, shares, silent)
    transfer, wait = verdict.exposed_transfer_ns, verdict.exposed_wait_ns
    if transfer is None or wait is None:
        return tile
    parts = f"{format_spread(transfer, format_ns)} transfer, {format_spread(wait, format_ns)} waiting for a rank"
    note = parts if shares is None else f"{format_spread(shares, format_percent)}: {parts}"
    numbers = _spread_numbers("exposed-transfer-ns", transfer) + _spread_numbers("exposed-wait-ns", wait)
    return replace(tile, note=note, numbers=tile.numbers + numbers)


def _overlap_tile(analysis: Analysis, silent: str) -> Tile:
    label, ratio = "Comm hidden", analysis.verdict.overlap_ratio
    if ratio is None:
        reason = silent if analysis.verdict.span_ns is None else "no communication in the steps"
        return Tile(key="overlap", label=label, value=UNKNOWN, note=reason)
    return Tile(
        key="overlap",
        label=label,
        value=format_spread(ratio, format_percent),
        note="of communication time, under compute",
        numbers=_spread_numbers("overlap-ratio", ratio),
        dilated=True,
    )


def _prefetch_tile(analysis: Analysis) -> tuple[Tile, ...]:
    """Hidden ratio of stage 3's gathers, over the ranks; nothing where there are none."""
    report = analysis.gathers
    if report is None:
        return ()
    label = "Prefetch hidden"
    ratio = spread(group.totals.hidden_ratio for group in report.ranks)
    if ratio is None:
        return (Tile(key="prefetch", label=label, value=UNKNOWN, note="every step is cold: nothing is prefetched"),)
    transfer = spread(group.totals.hidden_transfer_ratio for group in report.ranks)
    note = "of gather time, under compute"
    if transfer is not None:
        note += f"; {format_spread(transfer, format_percent)} of the transfer alone"
    return (
        Tile(
            key="prefetch",
            label=label,
            value=format_spread(ratio, format_percent),
            note=note,
            numbers=_spread_numbers("hidden-ratio", ratio) + _spread_numbers("hidden-transfer-ratio", transfer),
            dilated=True,
        ),
    )


def spread(values: Iterable[float | None]) -> Spread | None:
    """Smallest, median and largest of the values that are known; ``None`` where none is."""
    known = [value for value in values if value is not None]
    return Spread(min=min(known), median=median(known), max=max(known)) if known else None


def _memory_tile(analysis: Analysis) -> Tile:
    label, resident, peak = "Resident · peak", analysis.verdict.resident_bytes, analysis.verdict.peak_bytes
    if resident is None and peak is None:
        reason = "measured on no rank"
        if analysis.manifest is None:
            reason = "no capture manifest"
        elif analysis.manifest.device == "cpu":
            reason = "not measured on CPU"
        return Tile(key="memory", label=label, value=UNKNOWN, note=reason)
    low, high = format_spread(resident, format_bytes), format_spread(peak, format_bytes)
    unit = high.rsplit(" ", 1)[-1]
    return Tile(
        key="memory",
        label=label,
        value=f"{low.removesuffix(f' {unit}')} · {high}",
        note="after the step · highest during it",
        numbers=_spread_numbers("resident-bytes", resident) + _spread_numbers("peak-bytes", peak),
    )


def _spread_numbers(name: str, spread: Spread | None) -> tuple[tuple[str, float], ...]:
    if spread is None:
        return ()
    return ((f"{name}-min", spread.min), (f"{name}-median", spread.median), (f"{name}-max", spread.max))


def _device_names(analysis: Analysis) -> str:
    names = dict.fromkeys(name for source in analysis.sources for name in source.devices if name)
    return ", ".join(names)


def _steps_text(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]}"
    shown = [str(step) for step in steps] if len(steps) < 7 else [*map(str, steps[:5]), "…", str(steps[-1])]
    return f"steps {', '.join(shown[:-1])} and {shown[-1]}"


def _plural(count: int, noun: str) -> str:
    return f"{format_count(count)} {noun}" if count == 1 else f"{format_count(count)} {noun}s"
