"""Findings about overlap: what compute pays for running beside communication."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from zerotrace.analysis.findings.torch_knobs import torch_engine
from zerotrace.model import Analysis, Finding, Gain, RankTax, TaxVerdict
from zerotrace.units import format_ns, format_ratio

_FEWER = "environment NCCL_MAX_CTAS, or NCCL_MAX_NCHANNELS: with fewer, collectives leave more of the device to compute"


def overlap_tax(analysis: Analysis) -> Iterator[Finding]:
    """Compute that runs slower beside collectives.

    Silent where too few kernels compare on a rank, where its tax is within noise, and where noise hides whether overlap
    wins or costs in all: ``|hidden transfer − tax|`` no larger than the uncertainty of the tax. Where overlap costs
    more than it hides on every rank, cost and gain are the difference; else cost, and gain at most, are the tax. All of
    the rank that pays least.
    """
    taxes = analysis.overlap_tax.ranks if analysis.overlap_tax is not None else ()
    if not taxes or any(not _is_certain(tax) for tax in taxes):
        return
    costs = all(_net(tax) < 0 for tax in taxes)
    least = min(taxes, key=lambda tax: -_net(tax) if costs else _lost(tax))
    cost = -_net(least) if costs else _lost(least)
    if cost <= 0:
        return
    slower = f"beside collectives compute takes {least.slowdown_ratio or 1.0:.2f} × as long as alone"
    yield Finding(
        code="overlap_costs_more" if costs else "overlap_tax",
        claim=f"Overlap costs more than it hides: {slower}."
        if costs
        else f"Overlap has its price: {slower}. {_balance(taxes)}",
        evidence=f"On rank {least.rank}, which pays least, compute loses {format_ns(_lost(least))} ± "
        f"{format_ns(least.error_ns)} a step, and hides {format_ns(least.hidden_transfer_ns)} of transfer. Kernels of "
        f"one name and shape are compared, {format_ratio(least.compared_ratio)} of the time beside collectives.",
        numbers={
            "rank": least.rank,
            "lost_ns": _lost(least),
            "error_ns": least.error_ns or 0.0,
            "hidden_transfer_ns": least.hidden_transfer_ns or 0.0,
            "net_ns": _net(least),
            "slowdown_ratio": least.slowdown_ratio or 1.0,
            "compared_ratio": least.compared_ratio or 0.0,
        },
        cost_ns=cost,
        knob=f"zero_optimization.overlap_comm: false; or {_FEWER}"
        if costs and torch_engine(analysis.manifest) is None
        else _FEWER,
        gain=Gain(
            step_ns=cost,
            basis="what compute loses beside collectives" + (", less the transfer that it hides" if costs else ""),
        ),
    )


def _is_certain(tax: RankTax) -> bool:
    """Whether the tax, and what overlap wins or costs in all, rise above the noise."""
    if tax.verdict is not TaxVerdict.MEASURED or tax.lost_ns is None or tax.net_ns is None:
        return False
    return abs(tax.net_ns) > (tax.error_ns or 0.0)


def _balance(taxes: Sequence[RankTax]) -> str:
    if all(_net(tax) > 0 for tax in taxes):
        return "What it hides is more."
    ranks = [str(tax.rank) for tax in taxes if _net(tax) < 0]
    return (
        f"On rank{'' if len(ranks) == 1 else 's'} {', '.join(ranks[:4])}{' …' if len(ranks) > 4 else ''} it hides less."
    )


def _lost(tax: RankTax) -> float:
    return tax.lost_ns or 0.0


def _net(tax: RankTax) -> float:
    return tax.net_ns or 0.0


RULES = (overlap_tax,)
