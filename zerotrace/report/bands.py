"""The bands above a rank's lanes: its phases and modules, from the labels of a capture, on the host's time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from msgspec import Struct

from zerotrace.analysis.labelled import find_labels
from zerotrace.labels import Label, LabelEvent, Phase
from zerotrace.model import Analysis
from zerotrace.report.rows import Ints, Vocabulary

#: What a band's kind says, by its number: three phases, then modules. A module that is recomputed runs its forward
#: inside of the backward pass.
BAND_KINDS: tuple[str, ...] = (
    *(phase.value for phase in Phase), "module forward", "module backward", "module recomputed",
)  # fmt: skip

_WANTED = frozenset({LabelEvent.PHASE, LabelEvent.FORWARD, LabelEvent.BACKWARD})


class BandRows(Struct, frozen=True, eq=False):
    """Phases and modules of one rank. All arrays have one length, sorted by start, the longest first.

    Attributes:
        rank: global rank.
        start: start on the host's clock, ns.
        duration: ns.
        name: number of the module's name, or of the phase's, in the page's vocabulary.
        kind: index into :data:`BAND_KINDS`.
    """

    rank: int
    start: Ints
    duration: Ints
    name: Ints
    kind: Ints


def rank_bands(rank: int, table: pa.Table, names: Vocabulary) -> list[BandRows]:
    """The phases and modules of one rank: one :class:`BandRows`, or none where no label speaks of them.

    Args:
        rank: global rank.
        table: its events.
        names: where names are numbered.
    """
    spans = find_labels(table, _WANTED)
    told = [_tell(label) for label in spans.labels]
    rows = np.array([row for row, found in enumerate(told) if found is not None], dtype=np.int64)
    if not rows.size:
        return []
    found = [entry for entry in told if entry is not None]
    start, duration = spans.start[rows], np.maximum(spans.end[rows] - spans.start[rows], 0)
    kind = np.array([BAND_KINDS.index(kind) for kind, _ in found], dtype=np.int64)
    name = np.array([names.add(text) for _, text in found], dtype=np.int64)
    order = np.lexsort((kind, -duration, start))
    return [BandRows(rank=rank, start=start[order], duration=duration[order], name=name[order], kind=kind[order])]


def band_note(analysis: Analysis, bands: Sequence[BandRows]) -> str | None:
    """Why no phases are drawn, one sentence; ``None`` where some are."""
    if bands or not analysis.sources:
        return None
    return (
        "No phases and modules here: the traces carry no labels that name them. "
        "The detailed window of zerotrace capture writes them."
    )


def _tell(label: Label) -> tuple[str, str] | None:
    """Kind and name of what a label marks; ``None`` where it does not say which phase or module."""
    if label.event is LabelEvent.PHASE:
        return (label.phase.value, label.phase.value) if label.phase is not None else None
    if label.module is None:
        return None
    kind = "recomputed" if label.recompute else label.event.value
    return f"module {kind}", label.module or "(root)"
