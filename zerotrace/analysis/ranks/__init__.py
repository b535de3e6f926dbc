"""Runs of many ranks: what leads their page, and which ranks are shown in full."""

from zerotrace.analysis.ranks.choice import parse_ranks, require_ranks
from zerotrace.analysis.ranks.overview import MANY_RANKS, shown_ranks, with_overview

__all__ = ["MANY_RANKS", "parse_ranks", "require_ranks", "shown_ranks", "with_overview"]
