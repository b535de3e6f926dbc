"""The nouns of zerotrace as enums and frozen dataclasses: few things, each with one meaning.

Many things (events, intervals) are Arrow tables, defined in :mod:`zerotrace.schema`. This module
imports nothing but the standard library, so that it can be used inside every rank of a capture.
Times are int64 nanoseconds, bytes are int64; ``None`` means *unknown*, never zero.
"""

from __future__ import annotations

from zerotrace.model.ablation import AblatedFigure, Ablation
from zerotrace.model.blocking import BlockingCheck, BlockingEvidence
from zerotrace.model.check import CHECK_VERSION, Check, CheckedCondition, ComparedFigure, Judgement, Unit
from zerotrace.model.clock import ClockReport, HostClock
from zerotrace.model.collectives import CollectiveFigures, Collectives, CollectiveSample, StepArrivals
from zerotrace.model.comparison import (
    COMPARISON_VERSION,
    Cause,
    CausePart,
    Change,
    ComparedRun,
    Comparison,
    Delta,
    HeldMemory,
    KindTraffic,
    OwnerBytes,
    Quantity,
    Repeats,
    SentBytes,
    Setting,
    StepCauses,
    Work,
)
from zerotrace.model.finding import MOST_FINDINGS, Finding, Gain, Place
from zerotrace.model.gathers import GatherGroup, GatherReport, GatherStep, GatherTotals, HeldGather, LinkUse, SlackBin
from zerotrace.model.hta import HtaIdle, HtaKernelType, HtaOverlap, HtaReport
from zerotrace.model.manifest import MANIFEST_VERSION, LabelsRecord, ModelShape, RankRecord, RunManifest, WindowRecord
from zerotrace.model.memory import (
    DeepSpeedLedger,
    LadderStep,
    LedgerLine,
    MemoryCurve,
    MemoryReport,
    OwnedBytes,
    OwnerCurve,
    OwnerGap,
    PaperLedger,
    PeakLedger,
    ProfiledMemory,
    RankMemory,
    Reconciliation,
)
from zerotrace.model.overlap_tax import KernelTax, NotCompared, OverlapTax, RankTax, TaxVerdict
from zerotrace.model.partition import STEP_ALL, RankSummary, StepPartition, StepWindow
from zerotrace.model.reductions import ReductionStep
from zerotrace.model.result import ANALYSIS_VERSION, Analysis, Diagnostic, KernelTime, Spread, TraceSource, Verdict
from zerotrace.model.stragglers import Lateness, OwnTime, StepLateness, Stragglers, StragglerVerdict
from zerotrace.model.trust import Bound, FigureBounds, Trust
from zerotrace.model.vocabulary import OWNER_MEANINGS, Attribution, Category, Level, Mode, Owner, WindowKind
from zerotrace.model.wire import CollectiveKind, Origin, WireCause, WireKey, WireLedger, WireRole, WireTraffic

__all__ = [
    "ANALYSIS_VERSION",
    "CHECK_VERSION",
    "COMPARISON_VERSION",
    "MANIFEST_VERSION",
    "MOST_FINDINGS",
    "OWNER_MEANINGS",
    "STEP_ALL",
    "AblatedFigure",
    "Ablation",
    "Analysis",
    "Attribution",
    "BlockingCheck",
    "BlockingEvidence",
    "Bound",
    "Category",
    "Cause",
    "CausePart",
    "Change",
    "Check",
    "CheckedCondition",
    "ClockReport",
    "CollectiveFigures",
    "CollectiveKind",
    "CollectiveSample",
    "Collectives",
    "ComparedFigure",
    "ComparedRun",
    "Comparison",
    "DeepSpeedLedger",
    "Delta",
    "Diagnostic",
    "FigureBounds",
    "Finding",
    "Gain",
    "GatherGroup",
    "GatherReport",
    "GatherStep",
    "GatherTotals",
    "HeldGather",
    "HeldMemory",
    "HostClock",
    "HtaIdle",
    "HtaKernelType",
    "HtaOverlap",
    "HtaReport",
    "Judgement",
    "KernelTax",
    "KernelTime",
    "KindTraffic",
    "LabelsRecord",
    "LadderStep",
    "Lateness",
    "LedgerLine",
    "Level",
    "LinkUse",
    "MemoryCurve",
    "MemoryReport",
    "Mode",
    "ModelShape",
    "NotCompared",
    "Origin",
    "OverlapTax",
    "OwnTime",
    "OwnedBytes",
    "Owner",
    "OwnerBytes",
    "OwnerCurve",
    "OwnerGap",
    "PaperLedger",
    "PeakLedger",
    "Place",
    "ProfiledMemory",
    "Quantity",
    "RankMemory",
    "RankRecord",
    "RankSummary",
    "RankTax",
    "Reconciliation",
    "ReductionStep",
    "Repeats",
    "RunManifest",
    "SentBytes",
    "Setting",
    "SlackBin",
    "Spread",
    "StepArrivals",
    "StepCauses",
    "StepLateness",
    "StepPartition",
    "StepWindow",
    "StragglerVerdict",
    "Stragglers",
    "TaxVerdict",
    "TraceSource",
    "Trust",
    "Unit",
    "Verdict",
    "WindowKind",
    "WindowRecord",
    "WireCause",
    "WireKey",
    "WireLedger",
    "WireRole",
    "WireTraffic",
    "Work",
]
