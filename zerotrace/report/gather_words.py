"""What stage 3's gathers come to, in sentences: for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from zerotrace.model import GatherReport
from zerotrace.report.summary import format_percent
from zerotrace.report.words import joined, shown, tell
from zerotrace.units import format_count, format_ns


def gather_lead(report: GatherReport) -> str:
    """How many of which kind there are in a step, and how much of them compute hides."""
    means = report.means
    if report.total is None or means is None:
        return "Every step is cold: nothing was prefetched, and the figures say nothing of prefetch."
    kinds = (
        (means.num_prefetch, "prefetch", "prefetches"),
        (means.num_demand, "demand", "demands"),
        (means.num_refresh, "refresh", "refreshes"),
        (means.num_unknown, "gather of unknown kind", "gathers of unknown kind"),
    )
    counts = [_counted(count, one, many) for count, one, many in kinds if count]
    totals = report.total.totals
    told = tell("{} and {}", joined(", ", counts[:-1]), counts[-1]) if counts[1:] else counts[0]
    hidden = tell("Compute hides {} of their time", shown(totals.hidden_ratio, format_percent))
    if totals.hidden_transfer_ratio is not None:
        hidden = tell(
            "{}, and {} of the transfer alone, waiting left out",
            hidden,
            shown(totals.hidden_transfer_ratio, format_percent),
        )
    return tell("A step of a rank has {}. {}.", told, hidden)


def gather_remarks(report: GatherReport) -> Iterator[str]:
    """What else there is to know, one sentence each."""
    means = report.means
    if means is not None and means.num_late is not None and means.blocking_ns is not None:
        late = means.num_late
        lateness = _counted(late, "prefetch is late", "prefetches are late") if late else "No prefetch is late"
        yield tell("{}; gathers hold compute back for {}.", lateness, shown(means.blocking_ns, format_ns))
    if report.num_persisted is not None:
        count = shown(report.num_persisted, format_count)
        yield tell("{} small parameters are persisted: kept whole, and refreshed after each step.", count)
    if means is not None and means.coordinator_ns is not None:
        text = tell(
            "DeepSpeed's coordinator takes {} of the host's time a step", shown(means.coordinator_ns, format_ns)
        )
        if means.coordinator_host_bound_ns is not None:
            bound = shown(means.coordinator_host_bound_ns, format_ns)
            text = tell("{}; for {} of it the device is idle and waits for the host", text, bound)
        yield tell("{}.", text)
    if means is not None and means.num_forced_syncs:
        yield tell(
            "{} a step it makes the host wait for a pending fetch, {} in all.",
            _counted(means.num_forced_syncs, "time", "times"),
            shown(means.forced_sync_ns, format_ns),
        )
    yield from gather_cautions(report)


def gather_cautions(report: GatherReport) -> Iterator[str]:
    """What the figures are not over, and what they are not read from."""
    if report.cold_steps:
        steps = joined(", ", map(shown, report.cold_steps))
        yield tell("Cold, without any prefetch, and in none of these figures: step {}.", steps)
    if report.inferred_ratio:
        yield tell("{}: kind and phase are inferred from the order of the host's calls.", _why_inferred(report))


def _why_inferred(report: GatherReport) -> str:
    if report.num_unread_labels:
        verb = " is" if report.num_unread_labels == 1 else "s are"
        unread = shown(report.num_unread_labels, format_count)
        return tell(f"{{}} label{verb} malformed or of another version", unread)
    if report.inferred_ratio < 1:
        return tell("{} of the gathers have no label", shown(report.inferred_ratio, format_percent))
    return "There are no labels"


def _counted(count: float, one: str, many: str) -> str:
    return tell(f"{{}} {one if count == 1 else many}", shown(count, "{:.4g}".format))


def module_name(name: str | None) -> str:
    """A module as the page calls it."""
    return "unknown" if name is None else name or "(root)"
