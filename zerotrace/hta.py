"""Holistic Trace Analysis on our tables: the only module that imports ``hta``.

HTA's own loader rounds times and takes seconds a rank; here HTA gets ready frames, exact to the nanosecond, and
runs its analyses on them. What it says is stored with its name, beside our figures over the same rows.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pyarrow as pa
from hta.common.trace import Trace, transform_correlation_to_index
from hta.common.trace_symbol_table import TraceSymbolTable
from hta.trace_analysis import TraceAnalysis
from hta.utils.utils import get_kernel_type
from msgspec import Struct

from zerotrace.errors import ZerotraceError
from zerotrace.intervals import Intervals
from zerotrace.model import Category, HtaIdle, HtaKernelType, HtaOverlap, HtaReport
from zerotrace.store import analysis_folder, read_events
from zerotrace.tables import codes_and_names

TimeUnit = Literal["us", "ns"]

#: HTA's threshold between waiting for the host and the time that one kernel takes to follow another. Its default
#: is 30 in the unit of the frame, which is microseconds with HTA's own loader.
KERNEL_WAIT_NS = 30_000

#: Overlap percentages are equal within this many points (HTA rounds to two decimals).
OVERLAP_TOLERANCE = 0.01

_SYNC_CAT = "cuda_sync"

#: Columns of ours that HTA knows by another name.
_RENAMED = {
    "event": "index",
    "start_ns": "ts",
    "dur_ns": "dur",
    "transfer_bytes": "bytes",
    "wait_on_correlation": "wait_on_cuda_event_record_corr_id",
}
_NEEDED = ("event", "cat", "name", "category", "start_ns", "dur_ns", "step", "stream", "pid", "tid", "correlation",
           "external_id", "transfer_bytes", "wait_on_stream", "wait_on_correlation")  # fmt: skip

# What HTA's names for kinds of kernel mean in ours.
_OUR_CATEGORY = {"COMMUNICATION": "comm", "COMPUTATION": "compute", "MEMORY": "copy"}


class HtaError(ZerotraceError):
    """HTA failed on frames that are sound."""


class _ReadyTrace(Trace):  # type: ignore[misc]
    """An HTA Trace made of frames, not of files."""

    def __init__(self, frames: dict[int, pd.DataFrame], symbols: TraceSymbolTable) -> None:
        # The base class would look for files; everything that it sets up is set up here instead.
        self.trace_path = ""
        self.trace_files: dict[int, str] = {}
        self.traces = frames
        self.symbol_table = symbols
        self.meta_data: dict[int, dict[str, Any]] = {rank: {} for rank in frames}
        self.min_ts = 0
        self.is_parsed = True


class _ReadyAnalysis(TraceAnalysis):  # type: ignore[misc]
    """HTA's analyses over a ready Trace."""

    def __init__(self, trace: Trace) -> None:
        self.t = trace


def to_hta(run: str | Path, *, include_last_profiler_step: bool = True, unit: TimeUnit = "us") -> TraceAnalysis:
    """An analysed run as a ready ``hta.trace_analysis.TraceAnalysis``: every analysis of HTA, without its loader.

    Args:
        run: a run folder, or its analysis folder.
        include_last_profiler_step: HTA leaves the last step out by default; here it is kept by default.
        unit: unit of ``ts``, ``dur`` and of every result: microseconds as float (HTA's own), or nanoseconds as int64.

    Raises:
        StoreError: ``no_analysis`` if the run has not been analysed.
    """
    events = read_events(analysis_folder(Path(run)), [*_NEEDED])
    return _ReadyAnalysis(_build_trace(events, unit, include_last_profiler_step))


def hta_report(events: Iterable[tuple[int, pa.Table]]) -> HtaReport:
    """Runs HTA's overlap, temporal, idle and kernel breakdown.

    Args:
        events: ``(rank, table of EVENTS)`` of every rank.

    Raises:
        HtaError: if HTA raises, whatever it raises.
    """
    with _quiet():
        try:
            trace = _build_trace(events, "ns", include_last_profiler_step=True)
            analysis = _ReadyAnalysis(trace)
            return HtaReport(
                hta_version=version("HolisticTraceAnalysis"),
                overlap=tuple(_overlaps(trace)),
                idle=tuple(_idle(analysis)),
                kernel_types=tuple(_kernel_types(analysis)),
            )
        except Exception as error:
            raise HtaError(f"HTA failed: {type(error).__name__}: {error}", code="hta_failed") from error


def _build_trace(events: Iterable[tuple[int, pa.Table]], unit: TimeUnit, include_last_profiler_step: bool) -> Trace:
    symbols = TraceSymbolTable()
    frames = {rank: _frame(table, symbols, unit) for rank, table in events}
    trace = _ReadyTrace(frames, symbols)
    with _quiet():
        trace.align_and_filter_trace(include_last_profiler_step)
    for rank, frame in trace.traces.items():
        frame["end"] = frame["ts"] + frame["dur"]  # HTA aligns ts alone
        trace.traces[rank] = frame.set_index("index", drop=False).rename_axis(None)
    return trace


def _frame(table: pa.Table, symbols: TraceSymbolTable, unit: TimeUnit) -> pd.DataFrame:
    """One rank's events as HTA's loader would leave them, but with exact times."""
    columns: dict[str, Any] = {}
    for name in _NEEDED:
        column = table[name]
        if name == "category":
            columns[name] = pd.Categorical(column.to_pylist(), categories=[category.value for category in Category])
        elif pa.types.is_dictionary(column.type):
            columns[name] = _symbol_ids(table, name, symbols)
        else:
            columns[_RENAMED.get(name, name)] = column.fill_null(-1).to_numpy()
    frame = pd.DataFrame(columns).sort_values("index", ignore_index=True)
    if unit == "us":
        frame["ts"] = (frame["ts"] - frame["ts"].min()) / 1000.0
        frame["dur"] = frame["dur"] / 1000.0
    frame["memory_bw_gbps"] = np.where(
        (frame["bytes"] > 0) & (frame["dur"] > 0), frame["bytes"] / frame["dur"].where(frame["dur"] > 0, 1), 0.0
    ) / (1000.0 if unit == "us" else 1.0)
    frame["end"] = frame["ts"] + frame["dur"]
    frame.index = pd.Index(frame["index"])
    frame = transform_correlation_to_index(frame, symbols)
    return _with_iteration(frame)


def _with_iteration(frame: pd.DataFrame) -> pd.DataFrame:
    """HTA's ``iteration``: the step of a host row, and of a device row the step of its launch; -1 for none."""
    host_step = frame["step"].where(frame["stream"] < 0, -1)
    launch = frame["index_correlation"].where(frame["index_correlation"] > 0)
    launched_in = launch.map(host_step).fillna(-1).astype(np.int64)
    frame["iteration"] = np.where(frame["stream"] > 0, launched_in, host_step)
    return frame.drop(columns="step")


def _symbol_ids(table: pa.Table, column: str, symbols: TraceSymbolTable) -> np.ndarray[Any, np.dtype[np.int64]]:
    codes, names = codes_and_names(table, column)
    names = [*names, ""]
    symbols.add_symbols(names)
    ids = np.array([symbols.sym_index[name] for name in names], dtype=np.int64)
    return ids[codes]


def _overlaps(trace: Trace) -> Iterator[HtaOverlap]:
    for rank, frame in trace.traces.items():
        measured = _measure(trace, {rank: frame})
        ours = _ours(frame)
        yield HtaOverlap(
            rank=rank,
            hta_overlap_percent=measured.overlap_percent,
            our_overlap_percent=ours.overlap_percent,
            hta_compute_ns=measured.compute_ns,
            our_compute_ns=ours.compute_ns,
            hta_non_compute_ns=measured.non_compute_ns,
            our_non_compute_ns=ours.non_compute_ns,
            hta_idle_ns=measured.idle_ns,
            our_idle_ns=ours.idle_ns,
            hta_total_ns=measured.total_ns,
            our_total_ns=ours.total_ns,
            note=_explain(trace, rank, frame, measured, ours),
        )


class _Temporal(Struct, frozen=True):
    """Overlap and temporal breakdown: 100 % runs from the first to the last device row."""

    overlap_percent: float | None
    compute_ns: int
    non_compute_ns: int
    idle_ns: int
    total_ns: int


def _measure(trace: Trace, frames: dict[int, pd.DataFrame]) -> _Temporal:
    """HTA's own overlap and temporal breakdown of one rank."""
    analysis = _ReadyAnalysis(_ReadyTrace(frames, trace.symbol_table))
    (rank,) = frames
    has_comm = any(get_kernel_type(name) == "COMMUNICATION" for name in _device_names(trace, frames[rank]))
    percent = None
    if has_comm:  # HTA divides by the communication time
        percent = float(analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0])
    row = analysis.get_temporal_breakdown(visualize=False).iloc[0]
    return _Temporal(
        overlap_percent=percent,
        compute_ns=int(row["compute_time(us)"]),
        non_compute_ns=int(row["non_compute_time(us)"]),
        idle_ns=int(row["idle_time(us)"]),
        total_ns=int(row["kernel_time(us)"]),
    )


def _ours(frame: pd.DataFrame) -> _Temporal:
    """Our figures over the rows that HTA kept, each row whole."""
    unions = []
    for category in Category:
        rows = frame[frame["category"] == category.value]
        start, dur = rows["ts"].to_numpy(), rows["dur"].to_numpy()
        unions.append(Intervals.union(start, start + dur))
    compute, comm, copy = unions
    busy = compute | comm | copy
    total = int(busy.ends[-1] - busy.starts[0]) if len(busy) else 0
    return _Temporal(
        overlap_percent=100 * (comm & compute).length / comm.length if len(comm) else None,
        compute_ns=compute.length,
        non_compute_ns=busy.length - compute.length,
        idle_ns=total - busy.length,
        total_ns=total,
    )


def _explain(trace: Trace, rank: int, frame: pd.DataFrame, hta: _Temporal, ours: _Temporal) -> str | None:
    """Why HTA's figures differ from ours over the same rows; ``None`` where they do not."""
    if _agree(hta, ours):
        return None
    is_sync = frame["cat"] == trace.symbol_table.sym_index.get(_SYNC_CAT, -1)
    num_sync = int((is_sync & (frame["stream"] >= 0)).sum())
    without = _measure(trace, {rank: frame[~is_sync]}) if num_sync else hta
    parts = []
    if num_sync:
        parts.append(f"HTA counts {num_sync} cuda_sync rows as device work")
    if not _agree(without, ours):
        parts += _classed_differently(trace, frame[~is_sync])
        if frame.loc[frame["category"].notna(), "pid"].nunique() > 1:
            parts.append("HTA merges the devices of a process")
    elif without.overlap_percent is not None:
        parts.append(f"without them it gives {without.overlap_percent:.2f} %, as we do")
    return "; ".join(parts) or "unexplained: please report this trace"


def _agree(hta: _Temporal, ours: _Temporal) -> bool:
    if (hta.overlap_percent is None) != (ours.overlap_percent is None):
        return False
    if abs((hta.overlap_percent or 0) - (ours.overlap_percent or 0)) > OVERLAP_TOLERANCE:
        return False
    return (hta.compute_ns, hta.idle_ns, hta.total_ns) == (ours.compute_ns, ours.idle_ns, ours.total_ns)


def _classed_differently(trace: Trace, frame: pd.DataFrame) -> list[str]:
    """Names that HTA takes for another kind of work than we do, with the time that they hold."""
    rows = frame[frame["category"].notna()]
    found = []
    held = rows.groupby(["name", "category"], observed=True)["dur"].sum().reset_index()
    held = held.sort_values("dur", ascending=False)
    for name_id, category, total in zip(held["name"].tolist(), held["category"].tolist(), held["dur"].tolist()):
        name = trace.symbol_table.sym_table[name_id]
        kind = get_kernel_type(name)
        if _OUR_CATEGORY.get(kind) != category:
            found.append(f"HTA takes {name[:60]} ({total / 1e6:.3f} ms) for {kind.lower()}, we for {category}")
    return found[:3]


def _device_names(trace: Trace, frame: pd.DataFrame) -> list[str]:
    return [trace.symbol_table.sym_table[i] for i in frame.loc[frame["stream"] != -1, "name"].unique().tolist()]


def _idle(analysis: TraceAnalysis) -> Iterator[HtaIdle]:
    for rank in analysis.t.get_ranks():
        found, _ = analysis.get_idle_time_breakdown(
            ranks=[rank], consecutive_kernel_delay=KERNEL_WAIT_NS, visualize=False
        )
        for row in found.itertuples(index=False):
            ratio = None if pd.isna(row.idle_time_ratio) else float(row.idle_time_ratio)
            yield HtaIdle(
                rank=rank,
                stream=int(row.stream),
                reason=str(row.idle_category),
                idle_ns=int(row.idle_time),
                ratio=ratio,
            )


def _kernel_types(analysis: TraceAnalysis) -> Iterator[HtaKernelType]:
    kinds, _ = analysis.get_gpu_kernel_breakdown(visualize=False, include_memory_kernels=True)
    for row in kinds.itertuples(index=False):
        yield HtaKernelType(kernel_type=str(row.kernel_type), total_ns=int(row.sum), percent=float(row.percentage))


@contextmanager
def _quiet() -> Iterator[None]:
    """HTA logs its progress as warnings, and uses what pandas 2 announces to change."""
    logger = logging.getLogger("hta")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        logger.setLevel(level)
