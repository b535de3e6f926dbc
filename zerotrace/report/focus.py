"""Of many ranks, those that are shown in full: their part of an analysis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from msgspec.structs import replace

from zerotrace.analysis.ranks import shown_ranks
from zerotrace.model import Analysis


class _OfRank(Protocol):
    @property
    def rank(self) -> int | None: ...


_Record = TypeVar("_Record", bound=_OfRank)


def focused(analysis: Analysis) -> Analysis:
    """The analysis with the records of the ranks shown in full alone, wherever there is one a rank.

    For tables and lanes. What is a figure of all ranks stays as it is; what a sentence says of all ranks is to be made
    from the whole analysis. Where all ranks are shown it is the analysis itself.
    """
    ranks = shown_ranks(analysis)
    if ranks is None:
        return analysis

    def kept(records: Iterable[_Record]) -> tuple[_Record, ...]:
        return tuple(record for record in records if record.rank in ranks)

    gathers, memory, hta = analysis.gathers, analysis.memory, analysis.hta
    tax, check = analysis.overlap_tax, analysis.blocking_check
    return replace(
        analysis,
        sources=kept(analysis.sources),
        windows=kept(analysis.windows),
        partition=kept(analysis.partition),
        ranks=kept(analysis.ranks),
        top_kernels=kept(analysis.top_kernels),
        reductions=kept(analysis.reductions),
        gathers=gathers and replace(gathers, steps=kept(gathers.steps), ranks=kept(gathers.ranks)),
        memory=memory and replace(memory, ranks=kept(memory.ranks), profiled=kept(memory.profiled)),
        hta=hta and replace(hta, overlap=kept(hta.overlap), idle=kept(hta.idle)),
        overlap_tax=tax and replace(tax, ranks=kept(tax.ranks)),
        blocking_check=check and replace(check, steps=kept(check.steps)),
    )
