"""The figures of an analysis that conditions may name.

A figure over ranks has four names: ``exposed_ns`` is that of the rank where it is worst, ``exposed_ns.min``,
``exposed_ns.median`` and ``exposed_ns.max`` are over the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from statistics import median

from msgspec import Struct

from zerotrace.analysis.work import tokens_a_step
from zerotrace.model import (
    Analysis,
    Attribution,
    GatherTotals,
    Level,
    Mode,
    RankSummary,
    RankTax,
    Spread,
    StragglerVerdict,
    Unit,
)
from zerotrace.units import NS_PER_S

_Reason = Callable[[Analysis], str]


class FigureSpec(Struct, frozen=True, kw_only=True):
    """A figure by name."""

    name: str
    unit: Unit
    doc: str
    value: Callable[[Analysis], float | None]
    reason: _Reason
    """Why it is unknown, where it is."""
    over_ranks: bool = False
    """Whether it is one of several over the ranks; then this is the worst of them."""


def close_names(name: str) -> list[str]:
    """Names of figures that look like ``name``, the most similar first."""
    names = [known for known in FIGURES if "." not in known]
    return get_close_matches(name.partition(".")[0], names, n=3, cutoff=0.5)


def _of_ranks(
    name: str,
    doc: str,
    spread: Callable[[Analysis], Spread | None],
    reason: _Reason,
    *,
    unit: Unit = Unit.NS,
    low_is_bad: bool = False,
) -> Iterator[FigureSpec]:
    def one(read: Callable[[Spread], float]) -> Callable[[Analysis], float | None]:
        def value(analysis: Analysis) -> float | None:
            found = spread(analysis)
            return None if found is None else read(found)

        return value

    parts: dict[str, Callable[[Spread], float]] = {
        "": (lambda s: s.min) if low_is_bad else (lambda s: s.max),
        ".min": lambda s: s.min,
        ".median": lambda s: s.median,
        ".max": lambda s: s.max,
    }
    for suffix, read in parts.items():
        yield FigureSpec(name=name + suffix, unit=unit, doc=doc, value=one(read), reason=reason, over_ranks=not suffix)


def _over_ranks(analysis: Analysis, figure: Callable[[RankSummary], float | None]) -> Spread | None:
    values = [value for rank in analysis.ranks if (value := figure(rank)) is not None]
    return Spread(min=min(values), median=median(values), max=max(values)) if values else None


def _figure(read: Callable[[RankSummary], float | None]) -> Callable[[Analysis], Spread | None]:
    return lambda analysis: _over_ranks(analysis, read)


def _part(read: Callable[[RankSummary], float | None]) -> Callable[[Analysis], Spread | None]:
    """A part of the step, over the ranks."""

    def ratio(rank: RankSummary) -> float | None:
        value = read(rank)
        return None if value is None or not rank.span_ns else value / rank.span_ns

    return lambda analysis: _over_ranks(analysis, ratio)


def _clause(sentences: str) -> str:
    """The first sentence, as it goes on after a comma."""
    first = sentences.split(". ")[0].rstrip(".")
    return first[:1].lower() + first[1:]


def _no_ranks(_: Analysis) -> str:
    return "no rank has a step"


def _no_comm(_: Analysis) -> str:
    return "no rank communicates"


def _no_peers(_: Analysis) -> str:
    return "collectives are matched on no other rank, so that waiting is not told from transfer"


def _no_launches(analysis: Analysis) -> str:
    if analysis.mode is Mode.HOST:
        return "the time of this run is the host's, without launches to tell it by"
    if analysis.attribution is Attribution.LAUNCH:
        return "idle time is not defined where rows are attributed by launch"
    return "the traces do not tell it"


def _no_timed(analysis: Analysis) -> str:
    if analysis.manifest is None:
        return "the run has no manifest"
    return "the capture has no window of that kind"


def _no_gauge(analysis: Analysis) -> str:
    if analysis.manifest is None:
        return "the run has no manifest"
    return "the capture holds no memory gauges, which only CUDA devices have"


def _no_baseline(_: Analysis) -> str:
    return "the run was analysed without --baseline"


def _no_gathers(analysis: Analysis) -> str:
    return _clause(analysis.no_gathers or "its gathers do not tell it")


def _no_wire(analysis: Analysis) -> str:
    reason = analysis.wire.reason if analysis.wire else None
    return _clause(reason or "no collective tells its bytes")


def _no_memory(analysis: Analysis) -> str:
    reason = analysis.memory.reason if analysis.memory else analysis.memory_reason
    return _clause(reason or "nothing was measured by owner")


def _no_tax(analysis: Analysis) -> str:
    return _clause(analysis.overlap_tax.sentence) if analysis.overlap_tax else "nothing runs beside communication"


def _too_few_arrivals(analysis: Analysis) -> str:
    found = analysis.stragglers
    return _clause(found.sentence) if found else "no collective is matched on several ranks"


def _no_clock(_: Analysis) -> str:
    return "no ends of collectives were compared"


def _never(_: Analysis) -> str:
    return "it is unknown"


def _tokens_per_s(analysis: Analysis) -> float | None:
    step = analysis.verdict.unprofiled_step_ns
    tokens = tokens_a_step(analysis.manifest) if analysis.manifest else None
    return tokens * NS_PER_S / step if tokens and step else None


def _gathered(read: Callable[[GatherTotals], float | None]) -> Callable[[Analysis], float | None]:
    def value(analysis: Analysis) -> float | None:
        total = analysis.gathers.total if analysis.gathers else None
        return read(total.totals) if total else None

    return value


def _late_gathers(analysis: Analysis) -> float | None:
    total = analysis.gathers.total if analysis.gathers else None
    return total.num_late if total else None


def _demands(analysis: Analysis) -> float | None:
    total = analysis.gathers.total if analysis.gathers else None
    return total.num_demand if total else None


def _tax(read: Callable[[RankTax], float | None]) -> Callable[[Analysis], Spread | None]:
    def value(analysis: Analysis) -> Spread | None:
        taxes = analysis.overlap_tax.ranks if analysis.overlap_tax else ()
        values = [found for tax in taxes if (found := read(tax)) is not None]
        return Spread(min=min(values), median=median(values), max=max(values)) if values else None

    return value


#: Parts of the step that hang on the class of kernels of which nothing tells it.
_IN_DOUBT = frozenset(
    {"compute", "comm", "exposed", "exposed_transfer", "exposed_wait", "blocking", "overlapped", "idle", "host_bound"}
)


def _any(_: Analysis) -> bool:
    return True


def _sure(analysis: Analysis) -> bool:
    """Whether no kernel of unknown class runs in the steps: no gate is passed, and none closed, on a guess."""
    return all(rank.bounds is None for rank in analysis.ranks)


def _guarded(
    accept: Callable[[Analysis], bool], spread: Callable[[Analysis], Spread | None]
) -> Callable[[Analysis], Spread | None]:
    return lambda analysis: spread(analysis) if accept(analysis) else None


def _or_doubt(reason: _Reason) -> _Reason:
    return lambda analysis: (
        reason(analysis)
        if _sure(analysis)
        else "kernels run that may be communication, and nothing tells (unclassified_kernels): it is a bound"
    )


def _stragglers(analysis: Analysis) -> float | None:
    found = analysis.stragglers
    if found is None or found.verdict is StragglerVerdict.TOO_FEW:
        return None
    if found.verdict is not StragglerVerdict.STRAGGLER or found.is_immaterial:
        return 0.0
    together = found.group.ranks if found.group is not None and not found.group.is_early else ()
    return float(len({*together, *([] if found.rank is None else [found.rank])}))


def _fragmentation(analysis: Analysis) -> float | None:
    ranks = analysis.memory.ranks if analysis.memory else ()
    return max((rank.fragmentation_bytes for rank in ranks if rank.fragmentation_bytes is not None), default=None)


def _one(name: str, unit: Unit, doc: str, value: Callable[[Analysis], float | None], reason: _Reason) -> FigureSpec:
    return FigureSpec(name=name, unit=unit, doc=doc, value=value, reason=reason)


def _specs() -> Iterator[FigureSpec]:
    ns, size, ratio, count = Unit.NS, Unit.BYTES, Unit.RATIO, Unit.COUNT
    yield _one(
        "unprofiled_step_ns", ns, "median step of the slowest rank, no profiler",
        lambda a: a.verdict.unprofiled_step_ns, _no_timed,
    )  # fmt: skip
    yield _one("tokens_per_s", Unit.PER_S, "tokens a second over all ranks, no profiler", _tokens_per_s, _no_timed)
    yield _one(
        "dilation_ratio", ratio, "profiled step / unprofiled step", lambda a: a.verdict.dilation_ratio, _no_timed
    )
    yield _one("baseline_step_ns", ns, "step of the single device", lambda a: a.verdict.baseline_step_ns, _no_baseline)
    yield _one(
        "study_exposed_ns", ns, "unprofiled step − that of the single device",
        lambda a: a.verdict.study_exposed_ns, _no_baseline,
    )  # fmt: skip
    yield from _of_ranks("span_ns", "profiled step", lambda a: a.verdict.span_ns, _no_ranks)
    for word, doc, read, reason in _PARTS:
        accept, why = (_sure, _or_doubt(reason)) if word in _IN_DOUBT else (_any, reason)
        yield from _of_ranks(f"{word}_ns", doc, _guarded(accept, _figure(read)), why)
        yield from _of_ranks(f"{word}_ratio", f"{doc}, of the step", _guarded(accept, _part(read)), why, unit=ratio)
    yield from _of_ranks(
        "overlap_ratio", "hidden part of communication", _guarded(_sure, lambda a: a.verdict.overlap_ratio),
        _or_doubt(_no_comm), unit=ratio, low_is_bad=True,
    )  # fmt: skip
    yield from _of_ranks("peak_bytes", "peak memory", lambda a: a.verdict.peak_bytes, _no_gauge, unit=size)
    yield from _of_ranks(
        "resident_bytes", "memory between steps", lambda a: a.verdict.resident_bytes, _no_gauge, unit=size
    )
    yield _one("fragmentation_bytes", size, "reserved − allocated between steps", _fragmentation, _no_memory)
    yield _one(
        "memory_unexplained_ratio", ratio, "resident memory that no ledger explains",
        lambda a: a.memory.resident.unexplained_ratio if a.memory and a.memory.resident else None, _no_memory,
    )  # fmt: skip
    yield _one(
        "peak_unexplained_ratio", ratio, "peak memory that no ledger explains",
        lambda a: a.memory.peak.unexplained_ratio if a.memory and a.memory.peak else None, _no_memory,
    )  # fmt: skip
    yield _one("sent_bytes", size, "sent a rank and step", lambda a: a.wire.sent_bytes if a.wire else None, _no_wire)
    yield _one("wire_ratio", ratio, "sent bytes / 2Ψ", lambda a: a.wire.ratio if a.wire else None, _no_wire)
    yield _one(
        "wire_unexplained_ratio", ratio, "of it, beyond theory and all causes",
        lambda a: a.wire.unexplained_ratio if a.wire else None, _no_wire,
    )  # fmt: skip
    yield _one(
        "gather_hidden_ratio", ratio, "part of the gathers' time that compute hides",
        _gathered(lambda t: t.hidden_ratio), _no_gathers,
    )  # fmt: skip
    yield _one(
        "gather_hidden_transfer_ratio", ratio, "the same of their transfer alone",
        _gathered(lambda t: t.hidden_transfer_ratio), _no_gathers,
    )  # fmt: skip
    yield _one("num_late_gathers", count, "prefetches that hold compute back", _late_gathers, _no_gathers)
    yield _one("num_demand_gathers", count, "gathers for the module about to run", _demands, _no_gathers)
    yield _one(
        "num_cold_steps", count, "profiled steps without prefetch",
        lambda a: len(a.gathers.cold_steps) if a.gathers else None, _no_gathers,
    )  # fmt: skip
    yield _one("num_stragglers", count, "ranks late beyond chance, alone or together", _stragglers, _too_few_arrivals)
    yield from _of_ranks(
        "overlap_tax_ns", "compute lost beside communication, a step", _tax(lambda t: t.lost_ns), _no_tax
    )
    yield from _of_ranks(
        "overlap_net_ns", "hidden transfer − overlap tax, a step", _tax(lambda t: t.net_ns), _no_tax, low_is_bad=True
    )
    yield _one(
        "clock_residual_ns", ns, "worst difference between ends of a collective",
        lambda a: a.clock.residual_worst_ns if a.clock else None, _no_clock,
    )  # fmt: skip
    yield _one(
        "num_unmatched_collectives", count, "collectives without a partner",
        lambda a: a.collectives.num_unmatched if a.collectives and len(a.sources) > 1 else None, _no_peers,
    )  # fmt: skip
    yield _one("num_findings", count, "findings above the noise", lambda a: len(a.findings), _never)
    yield _one(
        "num_warnings", count, "warnings and errors about the input",
        lambda a: sum(note.level is not Level.INFO for note in a.diagnostics), _never,
    )  # fmt: skip


_PARTS: tuple[tuple[str, str, Callable[[RankSummary], float | None], _Reason], ...] = (
    ("compute", "compute", lambda r: r.compute_ns, _no_ranks),
    ("comm", "communication", lambda r: r.comm_ns, _no_ranks),
    ("exposed", "communication that no compute hides", lambda r: r.exposed_ns, _no_ranks),
    ("exposed_transfer", "exposed, after the last rank came", lambda r: r.exposed_transfer_ns, _no_peers),
    ("exposed_wait", "exposed, waiting for a late rank", lambda r: r.exposed_wait_ns, _no_peers),
    ("blocking", "exposed, and holds compute back", lambda r: r.blocking_ns, _no_launches),
    ("copy_only", "copies under neither", lambda r: r.copy_only_ns, _no_ranks),
    ("idle", "idle", lambda r: r.idle_ns, _no_launches),
    ("host_bound", "idle until the host launched", lambda r: r.host_bound_ns, _no_launches),
)

#: Every figure by its name.
FIGURES: Mapping[str, FigureSpec] = {spec.name: spec for spec in _specs()}
