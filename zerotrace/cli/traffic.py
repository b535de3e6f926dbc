"""Collectives and bytes on the wire as a few lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table
from rich.text import Text

from zerotrace.cli.terminal import printable
from zerotrace.model import CollectiveFigures, CollectiveKind, Collectives, Origin, WireCause, WireLedger
from zerotrace.units import format_ns, format_ratio, format_signed, format_traffic

_MAX_KINDS = 4

#: Kinds with less of the exposed time than this, and causes with less of the wire ratio, are in analysis.json alone.
_MINOR = 0.005


def collectives_table(collectives: Collectives, whole_trace: bool = False) -> Table | None:
    """The kinds with the most exposed time; ``None`` where none has any.

    Args:
        collectives: in figures.
        whole_trace: whether there are no steps, so that figures are of the whole trace.
    """
    shown = [kind for kind in collectives.kinds if (kind.exposed_ratio or 0.0) >= _MINOR][:_MAX_KINDS]
    if not shown:
        return None
    left = len(collectives.kinds) - len(shown)
    mean = "a rank, over the whole trace" if whole_trace else "a step and rank"
    caption = f"{mean}; GB/s on the bus, median" + (f"; {left} more in analysis.json" if left else "")
    table = Table(caption=caption, caption_justify="left", box=None)
    table.add_column("collective")
    for name in ("calls", "size", "transfer", "wait", "GB/s", "of exposed"):
        table.add_column(name, justify="right")
    for kind in shown:
        table.add_row(Text(_named(kind)), *_figures(kind))
    return table


def wire_lines(wire: WireLedger) -> Iterator[Text]:
    """What was sent, theory beside it, and the causes that matter."""
    if wire.ratio is None or wire.theory_ratio is None:
        if wire.sent_bytes != 0:
            yield Text(printable(f"Bytes on the wire: no ratio to theory, since {wire.reason}."), style="dim")
        return
    scheme = wire.scheme or f"stage {' or '.join(map(str, wire.stages))}"
    source = " (inferred)" if wire.stage_origin is Origin.INFERRED else ""
    line = (
        f"Sent {format_traffic(wire.sent_bytes)} a rank and step: wire ratio {wire.ratio:.2f}, "
        f"{wire.theory_ratio:g} in theory {'with' if wire.scheme else 'at'} {scheme}{source}"
    )
    parts = [f"{format_signed(c.ratio)} {c.name}{_keys(c)}" for c in wire.causes if abs(c.ratio) >= _MINOR]
    if abs(wire.unexplained_ratio or 0.0) >= _MINOR:
        parts.append(f"{format_signed(wire.unexplained_ratio or 0.0)} unexplained")
    by_label = " Sizes are those of the labels." if wire.sizes_by_label else ""
    yield Text(printable(f"{line}{': ' if parts else ''}{', '.join(parts)}.{by_label}"))


def _named(kind: CollectiveFigures) -> str:
    name = printable(kind.name) if kind.kind is CollectiveKind.OTHER else kind.kind.value
    return f"{name} {kind.phase}" if kind.phase else name


def _figures(kind: CollectiveFigures) -> tuple[str, ...]:
    busbw = "–" if kind.median_busbw_gbps is None else f"{kind.median_busbw_gbps:.1f}"
    return (
        f"{kind.num_calls:g}" if kind.num_calls >= 1 else f"{kind.num_calls:.2g}",
        format_traffic(kind.size_bytes),
        format_ns(kind.transfer_ns),
        format_ns(kind.wait_ns),
        busbw,
        format_ratio(kind.exposed_ratio),
    )


def _keys(cause: WireCause) -> str:
    """The first key behind a cause, without its section; the others are in analysis.json."""
    if not cause.keys:
        return ""
    key = cause.keys[0]
    value = "" if key.value is None else f" {key.value}"
    return f" ({key.key.rpartition('.')[2]}{value})"
