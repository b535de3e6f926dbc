"""Gates: figures of a run held against conditions, and against another run with a band of noise."""

from zerotrace.analysis.check.conditions import Condition, ConditionError, parse_condition
from zerotrace.analysis.check.figures import FIGURES, FigureSpec, close_names
from zerotrace.analysis.check.run import check

__all__ = ["FIGURES", "Condition", "ConditionError", "FigureSpec", "check", "close_names", "parse_condition"]
