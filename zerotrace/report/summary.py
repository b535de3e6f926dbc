"""The words at the top of the page: what was read, the tiles of the verdict, the banner of diagnostics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from zerotrace.model import STEP_ALL, Analysis, Attribution, Mode, Spread
from zerotrace.report.words import Named, Shown, counted, joined, shown, tell
from zerotrace.units import NS_PER_S, format_bytes, format_count, format_ns

UNKNOWN = "–"

_ENGINES = {"deepspeed": "DeepSpeed"}
_VERSIONS = (("deepspeed", "DeepSpeed"), ("torch", "torch"), ("nccl", "NCCL"))


class Tile(Struct, frozen=True, kw_only=True):
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
        ranks: str = num_ranks(analysis)
        if worlds and worlds[-1] != len(analysis.sources):
            ranks = tell("{} of {}", ranks, shown(worlds[-1]))
        names = joined(", ", map(Named, _device_names(analysis)))
        return tuple(part for part in (ranks, names, joined(", ", map(Named, backends))) if part)
    versions = [tell(f"{label} {{}}", Named(manifest.versions[key])) for key, label in _VERSIONS
                if key in manifest.versions]  # fmt: skip
    counts = Counter(rank.device for rank in manifest.ranks)
    alike = len(counts) == 1 and counts.total() == manifest.world_size
    devices = [tell("{} × {}", shown(count) if alike else counted(count), Named(name))
               for name, count in counts.items()]  # fmt: skip
    return (
        manifest.scheme if manifest.stage is None else f"{_engine_name(manifest.engine)} {manifest.scheme}",
        Named(manifest.model.name),
        tell("Ψ {}", shown(manifest.model.num_params, format_parameters)),
        joined(" + ", devices) or plural(shown(manifest.world_size, format_count), "rank"),
        manifest.backend,
        joined(", ", versions),
    )


def num_ranks(analysis: Analysis) -> str:
    """``2 ranks``, of those that were read."""
    totals = analysis.totals
    return "some ranks" if totals is None else plural(shown(totals.num_ranks, format_count), "rank")


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
    ranks = num_ranks(analysis)
    what = tell("{}, no step window", ranks)
    if steps == [STEP_ALL]:
        what = tell("The whole trace of {}, without step windows", ranks)
    elif steps:
        what = tell(f"Profiled {_steps_text(steps)} of {{}}", ranks)
    events = "" if analysis.totals is None else plural(shown(analysis.totals.num_events, format_count), "event")
    elapsed = (
        tell("read and analysed in {}", shown(analysis.elapsed_s, lambda seconds: format_ns(seconds * NS_PER_S)))
        if analysis.elapsed_s is not None
        else ""
    )
    told = joined(", ", [part for part in (events, elapsed) if part])
    return tell("{}; {}.", what, told) if told else tell("{}.", what)


def trust_line(analysis: Analysis) -> str:
    """What the profiler did to the figures: dilation, or why it is unknown."""
    verdict = analysis.verdict
    if verdict.dilation_ratio is None or verdict.unprofiled_step_ns is None:
        return "Times are those of profiled steps; how much the profiler slows them is unknown here."
    dilation = shown(verdict.dilation_ratio, "{:.2f} ×".format)
    unprofiled = shown(verdict.unprofiled_step_ns, format_ns)
    if verdict.dilation_ratio < 1:
        return tell(
            "No dilation by the profiler is measurable here: profiled steps took {} as long, so that noise is larger "
            "than its cost; without it the step takes {}.",
            dilation,
            unprofiled,
        )
    return tell("The profiler dilates this run {}; without it the step takes {}.", dilation, unprofiled)


def late_line(analysis: Analysis) -> str:
    """Which ranks are late together, and what part of the step that is; or nothing."""
    found = analysis.stragglers
    if found is None or found.group is None or found.group.is_early or found.rank is not None or found.is_immaterial:
        return ""
    name, ratio = Named(found.group.name), found.late_ratio
    if ratio is None:
        return tell("The others wait for {}, late together.", name)
    return tell("The others wait for {}, late together: {} of the step in sum.", name, shown(ratio, format_percent))


def baseline_line(analysis: Analysis) -> str:
    """What the step is beside that of a single device, and why that is another figure than the trace's; or nothing."""
    verdict = analysis.verdict
    if verdict.baseline_name is None or verdict.study_exposed_ns is None:
        return ""
    alone = tell(
        "One device alone takes {} for the same work ({})",
        shown(verdict.baseline_step_ns, format_ns),
        Named(verdict.baseline_name),
    )
    difference = shown(verdict.study_exposed_ns, lambda time: format_ns(abs(time)))
    if verdict.study_exposed_ns < 0:
        return tell(
            "{}, {} more than this step: step − baseline says nothing of communication here.", alone, difference
        )
    return tell(
        "{}: by step − baseline, {} of the unprofiled step are exposed, beside {} of the profiled one in the trace. "
        "The first figure holds all that this run does more slowly, host time too.",
        alone,
        difference,
        format_spread(verdict.exposed_ns, format_ns),
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
    return tell(f"{ranges} {read}, × {{}} as long as without the profiler.", shown(dilation, "{:.2f}".format))


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
        _time_tile("compute", "Compute", verdict.compute_ns, verdict.compute_ratio, silent),
        _exposed_tile(analysis, silent),
        _overlap_tile(analysis, silent),
        *_prefetch_tile(analysis),
        _time_tile(
            "idle",
            "Idle",
            verdict.idle_ns,
            verdict.idle_ratio,
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
        return shown(spread.min, formatter)
    if low.rsplit(" ", 1)[-1] == high.rsplit(" ", 1)[-1]:
        low = low.rsplit(" ", 1)[0]
    elif spread.min == 0:
        low = "0"
    return tell("{}–{}", shown(spread.min, lambda _: low), shown(spread.max, formatter))


def _step_tile(analysis: Analysis) -> Tile:
    verdict = analysis.verdict
    profiled = format_spread(verdict.span_ns, format_ns)
    numbers = _spread_numbers("span-ns", verdict.span_ns)
    if verdict.unprofiled_step_ns is None:
        reason = "no capture manifest" if analysis.manifest is None else "the capture timed no unprofiled step"
        note: str = tell(f"{reason}; profiled {{}}", profiled)
        return Tile(key="step", label="Step, unprofiled", value=UNKNOWN, note=note, numbers=numbers)
    note = tell("profiled {}", profiled)
    if verdict.dilation_ratio is not None and verdict.dilation_ratio >= 1:
        note = tell("{}, × {}", note, shown(verdict.dilation_ratio, "{:.2f}".format))
    elif verdict.dilation_ratio is not None:
        note = tell("{}, no dilation measurable", note)
    numbers += (("unprofiled-step-ns", verdict.unprofiled_step_ns),)
    if verdict.dilation_ratio is not None:
        numbers += (("dilation-ratio", verdict.dilation_ratio),)
    value = shown(verdict.unprofiled_step_ns, format_ns)
    if verdict.baseline_step_ns is not None and verdict.study_exposed_ns is not None:
        note = tell("{}; {} on one device", note, shown(verdict.baseline_step_ns, format_ns))
        numbers += (("baseline-step-ns", verdict.baseline_step_ns), ("study-exposed-ns", verdict.study_exposed_ns))
    return Tile(key="step", label="Step, unprofiled", value=value, note=note, numbers=numbers)


def _time_tile(key: str, label: str, time: Spread | None, share: Spread | None, reason: str) -> Tile:
    if time is None:
        return Tile(key=key, label=label, value=UNKNOWN, note=reason)
    of_step = tell("{} of the profiled step", format_spread(share, format_percent))
    note = "of a profiled step" if share is None else of_step
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
    shares = verdict.exposed_ratio
    tile = _time_tile("exposed", "Exposed comm", verdict.exposed_ns, shares, silent)
    transfer, wait = verdict.exposed_transfer_ns, verdict.exposed_wait_ns
    if transfer is None or wait is None:
        return tile
    late = "late ranks" if late_line(analysis) else "a rank"
    note = tell(
        f"{{}} transfer, {{}} waiting for {late}", format_spread(transfer, format_ns), format_spread(wait, format_ns)
    )
    if shares is not None:
        note = tell("{}: {}", format_spread(shares, format_percent), note)
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
    if analysis.gathers is None:
        return ()
    label = "Prefetch hidden"
    ratio = analysis.gathers.hidden_ratio
    if ratio is None:
        return (Tile(key="prefetch", label=label, value=UNKNOWN, note="every step is cold: nothing is prefetched"),)
    transfer = analysis.gathers.hidden_transfer_ratio
    note = "of gather time, under compute"
    if transfer is not None:
        note = tell(f"{note}; {{}} of the transfer alone", format_spread(transfer, format_percent))
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


def _memory_tile(analysis: Analysis) -> Tile:
    label, resident, peak = "Resident · peak", analysis.verdict.resident_bytes, analysis.verdict.peak_bytes
    if resident is None and peak is None:
        reason = "measured on no rank"
        if analysis.manifest is None:
            reason = "no capture manifest"
        elif analysis.manifest.device == "cpu":
            reason = "not measured on CPU"
        return Tile(key="memory", label=label, value=UNKNOWN, note=reason)
    high = format_spread(peak, format_bytes)
    unit = f" {high.rsplit(' ', 1)[-1]}"
    low = format_spread(resident, format_bytes)
    if low.endswith(unit):
        low = format_spread(resident, lambda size: format_bytes(size).removesuffix(unit))
    return Tile(
        key="memory",
        label=label,
        value=tell("{} · {}", low, high),
        note="after the step · highest during it",
        numbers=_spread_numbers("resident-bytes", resident) + _spread_numbers("peak-bytes", peak),
    )


def _spread_numbers(name: str, spread: Spread | None) -> tuple[tuple[str, float], ...]:
    if spread is None:
        return ()
    return ((f"{name}-min", spread.min), (f"{name}-median", spread.median), (f"{name}-max", spread.max))


def _device_names(analysis: Analysis) -> list[str]:
    return list(dict.fromkeys(name for source in analysis.sources for name in source.devices if name))


def _steps_text(steps: Sequence[int]) -> str:
    if len(steps) == 1:
        return f"step {steps[0]}"
    if len(steps) > 2 and steps[-1] - steps[0] == len(steps) - 1:
        return f"steps {steps[0]} to {steps[-1]}"
    shown = [str(step) for step in steps] if len(steps) < 7 else [*map(str, steps[:5]), "…", str(steps[-1])]
    return f"steps {', '.join(shown[:-1])} and {shown[-1]}"


def plural(count: Shown, noun: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return tell(f"{{}} {noun}" if count.value == 1 else f"{{}} {noun}s", count)
